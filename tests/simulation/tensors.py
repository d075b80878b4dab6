# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of simulated requests: one integer, repeated, which says whose request it is and how far it has come."""

import struct

# Each model on the way of a request adds this to its value; what is below is the number of the request.
HOP = 1 << 40


def pack(value, elements):
    """The contents of a tensor."""
    return struct.pack("<q", value) * elements


def value_of(data):
    """The value of a tensor; -1 if its elements differ."""
    data = bytes(data)
    return struct.unpack_from("<q", data)[0] if data == data[:8] * (len(data) // 8) else -1


def request_of(value):
    """The number of the request that a value belongs to."""
    return value % HOP

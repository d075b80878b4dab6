# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The words of host, launcher and guardian."""

import pytest

from pyruntime.utils.launching import (
    EXITED,
    FAILED,
    REPLY_BYTES,
    STARTED,
    Interpreter,
    Order,
    decode_order,
    decode_reply,
    encode_order,
    encode_reply,
)


@pytest.mark.parametrize(
    "order",
    [Order("m_0", 1 << 20, None), Order("m\u00e4_0", 1, Interpreter("/bin/python", {"A": "\udcff", "B": ""}, True))],
)
def test_orders(order):
    """Names and variables may be any bytes that a file system or an environment has."""
    assert decode_order(encode_order(order)) == order


@pytest.mark.parametrize("reply", [(STARTED, 2**31), (FAILED, 0), (EXITED, -64)])
def test_replies(reply):
    """All have one size."""
    data = encode_reply(*reply)
    assert len(data) == REPLY_BYTES
    assert decode_reply(data) == reply

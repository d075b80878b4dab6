# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes outputs that the host has to a client's shared memory.

Stubs write theirs themselves. The host does not map the memory of clients, because it may shrink at any time: it writes
through the descriptor.
"""

from __future__ import annotations

import os
from dataclasses import replace

from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.regions import ClientRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import InferenceError


def put_in_place(response: InferResponse, client: ClientUse) -> InferResponse:
    """Write outputs to the client's memory where the client wants that. Raises InferenceError if it is too small."""
    outputs = []
    for output in response.outputs:
        place = client.places.get(output.name)
        if place is not None:
            size = len(output.data)
            if size > place.byte_size:
                raise InferenceError(
                    f"shared memory size specified with the request for output '{output.name}' ({place.byte_size} "
                    f"bytes) should be at least {size} bytes to hold the results"
                )
            _write(place.contents.memory, split(place.contents.address)[1], memoryview(output.data))
            output = OutputTensor(output.name, output.datatype, output.shape, b"", place=place.filled(size))
        outputs.append(output)
    return replace(response, outputs=outputs)


def _write(region: ClientRegion, offset: int, data: memoryview) -> None:
    if offset + len(data) > region.size():  # a write would make the file larger, which only the client may do
        raise InferenceError("the shared memory of an output is smaller than it was when it was registered")
    at = 0
    while at < len(data):
        at += os.pwrite(region.fileno(), data[at:], offset + at)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes responses as an entry of the cache. (pure)

    entry    := response | response* end | response+       the last two for a stream of responses
    response := length head padding (contents padding)*
    end      := length "null" padding                      the stream has ended without a further response
    length   := u64, little-endian: the bytes of the head
    head     := JSON, [[name, datatype, shape, size], ...]: the outputs, whose contents follow in the same order

Contents begin at multiples of ALIGNMENT. As in Triton, an entry does not contain the parameters of a response.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.arena import ALIGNMENT

_LENGTH_SIZE = 8


def encode(outputs: Sequence[OutputTensor] | None) -> bytes:
    """The part of an entry for a response with these outputs, none of which may be in client shared memory.

    None is for the end of a stream without a further response.
    """
    if outputs is None:
        outputs, head = (), b"null"
    else:
        head = orjson.dumps([(each.name, each.datatype, list(each.shape), len(each.data)) for each in outputs])
    parts: list[bytes | memoryview] = [
        len(head).to_bytes(_LENGTH_SIZE, "little"),
        head,
        _padding(_LENGTH_SIZE + len(head)),
    ]
    for output in outputs:
        parts += [output.data, _padding(len(output.data))]
    return b"".join(parts)


def decode(entry: memoryview) -> list[OutputTensor]:
    """The outputs of the only response of an entry; their contents are views of it.

    Raises ValueError for a malformed entry, and for a stream.
    """
    outputs, end = _decode_response(entry, 0)
    if outputs is None or end < len(entry):
        raise ValueError("it is a stream of responses")
    return outputs


def decode_stream(entry: memoryview) -> list[list[OutputTensor] | None]:
    """The outputs of all responses of an entry; the last one is None for an end without a further response.

    Raises ValueError for a malformed entry.
    """
    responses: list[list[OutputTensor] | None] = []
    at = 0
    while at < len(entry) or not at:
        if responses and responses[-1] is None:
            raise ValueError("it goes on behind its end")
        outputs, at = _decode_response(entry, at)
        responses.append(outputs)
    return responses


def _decode_response(entry: memoryview, at: int) -> tuple[list[OutputTensor] | None, int]:
    """The response that begins at `at`, and where it ends."""
    begin = at + _LENGTH_SIZE
    end = begin + int.from_bytes(entry[at:begin], "little")
    try:
        head = orjson.loads(entry[begin:end])
        at = end + len(_padding(end))
        if head is None:
            return None, at
        outputs = []
        for name, datatype, shape, size in head:
            contents = entry[at : at + size]
            if len(contents) != size:
                raise ValueError(f"output '{name}' is cut off")
            outputs.append(OutputTensor(name, datatype, shape, contents))
            at += size + len(_padding(size))
    except TypeError as exc:
        raise ValueError("its head does not describe outputs") from exc
    return outputs, at


def _padding(size: int) -> bytes:
    """The padding after `size` bytes up to the next multiple of ALIGNMENT."""
    return bytes(-size % ALIGNMENT)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Encodes a response as an entry of the cache. (pure)

    entry  := length head padding (contents padding)*
    length := u64, little-endian: the bytes of the head
    head   := JSON, [[name, datatype, shape, size], ...]: the outputs, whose contents follow in the same order

Contents begin at multiples of ALIGNMENT. As in Triton, an entry does not contain the parameters of a response.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.utils.arena import ALIGNMENT

_LENGTH_SIZE = 8


def encode(outputs: Sequence[OutputTensor]) -> bytes:
    """The entry of a response with these outputs, none of which may be in client shared memory."""
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
    """The outputs of an entry; their contents are views of it. Raises ValueError for a malformed entry."""
    begin = _LENGTH_SIZE + int.from_bytes(entry[:_LENGTH_SIZE], "little")
    outputs = []
    try:
        at = begin + len(_padding(begin))
        for name, datatype, shape, size in orjson.loads(entry[_LENGTH_SIZE:begin]):
            contents = entry[at : at + size]
            if len(contents) != size:
                raise ValueError(f"output '{name}' is cut off")
            outputs.append(OutputTensor(name, datatype, shape, contents))
            at += size + len(_padding(size))
    except TypeError as exc:
        raise ValueError("its head does not describe outputs") from exc
    return outputs


def _padding(size: int) -> bytes:
    """The padding after `size` bytes up to the next multiple of ALIGNMENT."""
    return bytes(-size % ALIGNMENT)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies and messages that are compressed, both ways: gzip, and deflate, which is the zlib format. (pure)

As in Triton, what is called by one of the names may be in the other's format: each says itself which one it is.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from pyruntime.utils.errors import Code, InferenceError

# What a client may compress with, and what it is told where it used something else.
ENCODINGS = ("gzip", "deflate")

# What a compressed message of gRPC may become, in bytes; a body of HTTP may become what --http-max-input-size says. It
# becomes a thousand times as large at worst.
DECOMPRESSED_BYTES_MAX = 64 << 20

# zlib's level. The zlib library's default takes six times as long as this, and makes floats in JSON 7 % smaller.
LEVEL = 1

# A file of gzip may be made of several, one after another: parallel compressors make one of every 64 KiB or more. Each
# costs as much as a few KiB of contents, however small it is.
MEMBERS_MAX = 4096

# So much is fed to zlib, and taken from it, at a time: a few milliseconds' work. What it leaves is copied.
_INPUT_BYTES = 64 << 10
_OUTPUT_BYTES = 1 << 20

# zlib's names for formats: the largest window, and which header.
_WINDOW = 15
_EITHER = _WINDOW + 32
_FORMATS = {"gzip": _WINDOW + 16, "deflate": _WINDOW}

_QUALITY = re.compile(r"q\s*=\s*([0-9](?:\.[0-9]*)?)")


def compress(data: bytes | memoryview, encoding: str, level: int = LEVEL) -> bytes:
    """`data` in the format of `encoding`, one of ENCODINGS; `level` is zlib's, from 1 to 9."""
    return compress_all([data], encoding, level)


def compress_all(parts: Iterable[bytes | memoryview], encoding: str, level: int = LEVEL) -> bytes:
    """As `compress`, of all parts, one after the other."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, _FORMATS[encoding])
    pieces = [compressor.compress(part) for part in parts]
    pieces.append(compressor.flush())
    return b"".join(pieces)


def decompress(data: bytes | bytearray | memoryview, encoding: str, limit: int) -> bytes:
    """What `data` was before it was compressed: at most `limit` bytes, and no more memory is used to find that out.

    Raises InferenceError (INVALID_ARG) where there would be more, and where `data` is not whole, is followed by
    something else or is not compressed at all.
    """
    pieces: list[bytes] = []
    left, members = limit, 1
    stream = zlib.decompressobj(_EITHER)
    view = memoryview(data)
    for at in range(0, len(view), _INPUT_BYTES):
        rest: bytes | memoryview = view[at : at + _INPUT_BYTES]
        while True:
            if stream.eof:
                members += 1
                if members > MEMBERS_MAX:
                    raise _invalid(f"the request is compressed in more than {MEMBERS_MAX} parts")
                stream = zlib.decompressobj(_FORMATS["gzip"])
            wanted = min(left + 1, _OUTPUT_BYTES)
            try:
                piece = stream.decompress(rest, wanted)
            except zlib.error:
                raise _invalid(
                    f"the request cannot be decompressed: it is not in the format of {encoding}, is damaged, or is "
                    "followed by something else"
                ) from None
            left -= len(piece)
            if left < 0:
                raise _invalid(f"the request has more than {limit} bytes once decompressed, the server accepts {limit}")
            pieces.append(piece)
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            # There may be more to come even though all input was taken.
            if not rest and (stream.eof or len(piece) < wanted):
                break
    if not stream.eof:
        raise _invalid(f"the request is compressed with {encoding}, and its end is missing")
    return b"".join(pieces)


def accepted_encoding(header: str) -> str:
    """The encoding for a response, by its request's Accept-Encoding; "" for none at all.

    It is the one of the largest weight, and of several with it the one that stands first. What "*" stands for may be
    sent as it is. A header that makes no sense is as good as none.
    """
    weights: dict[str, float] = {}
    for item in header.lower().split(","):
        name, _, parameter = item.partition(";")
        weights[name.strip()] = _weight(parameter.strip())
    known = ("identity", *ENCODINGS)
    others = weights.pop("*", 0.0)
    candidates = {name: weight for name, weight in weights.items() if name in known}
    for name in known:
        candidates.setdefault(name, others)
    best = max(candidates, key=candidates.__getitem__)
    return best if best != "identity" and candidates[best] > 0 else ""


def _weight(parameter: str) -> float:
    """The number in `q=<number>`: 1 where there is nothing, 0 where there is something else."""
    if not parameter:
        return 1.0
    found = _QUALITY.fullmatch(parameter)
    return float(found[1]) if found else 0.0


def _invalid(message: str) -> InferenceError:
    return InferenceError(message, Code.INVALID_ARG)

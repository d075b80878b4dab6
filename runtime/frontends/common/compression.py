# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Compresses and decompresses bodies and messages: gzip, and deflate, which is the zlib format. (pure)

As in Triton, data named gzip may be in the format of deflate and vice versa: the data itself says which one it is.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator

from pyruntime.utils.errors import Code, InferenceError

# The encodings that clients may use. An error for any other one lists them.
ENCODINGS = ("gzip", "deflate")

# The limit of a decompressed gRPC message, in bytes; --http-max-input-size limits HTTP bodies. Data grows by a factor
# of a thousand at worst.
DECOMPRESSED_BYTES_MAX = 64 << 20

# zlib's level. The library's default takes six times as long, and makes floats in JSON 7 % smaller.
LEVEL = 1

# A gzip file may have several members: parallel compressors make one for every 64 KiB or more. Each member costs as
# much time as a few KiB of contents, however small it is.
MEMBERS_MAX = 4096

# The bytes that one call gives to zlib. zlib copies the input that it leaves.
_INPUT_BYTES = 64 << 10
# The longest piece of decompressed data, in bytes: less than a millisecond's work.
PIECE_BYTES_MAX = 64 << 10

# zlib's numbers for formats: the size of the window, plus a number for the header.
_WINDOW = 15
_EITHER = _WINDOW + 32
_FORMATS = {"gzip": _WINDOW + 16, "deflate": _WINDOW}

_QUALITY = re.compile(r"q\s*=\s*([0-9](?:\.[0-9]*)?)")


def compress(data: bytes | memoryview, encoding: str, level: int = LEVEL) -> bytes:
    """Compress `data` with `encoding`, one of ENCODINGS; `level` is zlib's, from 1 to 9."""
    return compress_all([data], encoding, level)


def compress_all(parts: Iterable[bytes | memoryview], encoding: str, level: int = LEVEL) -> bytes:
    """Compress all parts, joined, as `compress` does."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, _FORMATS[encoding])
    pieces = [compressor.compress(part) for part in parts]
    pieces.append(compressor.flush())
    return b"".join(pieces)


def compress_pieces(parts: Iterable[bytes | memoryview], encoding: str) -> Iterator[bytes]:
    """The pieces of `parts`, joined and compressed, as `parts` come; some may be empty."""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _FORMATS[encoding])
    for part in parts:
        yield compressor.compress(part)
    yield compressor.flush()


def decompress(data: bytes | bytearray | memoryview, encoding: str, limit: int) -> bytes:
    """Decompress `data` to at most `limit` bytes, without using more memory than that.

    Raises InferenceError as `decompressed`.
    """
    return b"".join(decompressed(data, encoding, limit))


def decompressed(data: bytes | bytearray | memoryview, encoding: str, limit: int) -> Iterator[bytes]:
    """The decompressed `data` in pieces of at most PIECE_BYTES_MAX bytes, maybe empty ones; at most `limit` in all.

    A piece is made when it is asked for, so the caller decides how many there are in memory. There is no limit for the
    ratio: tensors of zeros are a thousandth of their size, and the limits of sizes suffice.

    Raises InferenceError (INVALID_ARG) for more than `limit` bytes, and where `data` is cut short, is followed by
    something else or is not compressed at all.
    """
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
            wanted = min(left + 1, PIECE_BYTES_MAX)
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
            yield piece
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            # zlib may hold more output although it has taken all input.
            if not rest and (stream.eof or len(piece) < wanted):
                break
    if not stream.eof:
        raise _invalid(f"the request is compressed with {encoding}, and its end is missing")


def accepted_encoding(header: str) -> str:
    """The encoding for a response, by its request's Accept-Encoding; "" for an uncompressed response.

    The encoding with the largest weight is chosen, the first one of several. "*" includes "identity", which wins over
    the others that it stands for. A malformed header counts as none.
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

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Large contents of runs of one unit, and their compressed forms. (pure)

A run is never whole in memory: a message of 60 MiB is compressed piece by piece.
"""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

MIB = 1 << 20
PIECE_BYTES = 1 << 18
# By the name in Content-Encoding, as zlib numbers the formats.
FORMATS = {"gzip": 31, "deflate": 15}


class Run(NamedTuple):
    """`unit`, so many times."""

    unit: bytes
    count: int = 1

    def pieces(self) -> Iterator[bytes]:
        """Its contents, in pieces of at most PIECE_BYTES or one unit."""
        each = max(1, PIECE_BYTES // max(1, len(self.unit)))
        for start in range(0, self.count, each):
            yield self.unit * min(each, self.count - start)


def fill(unit: bytes, size: int) -> Run:
    """As many units as fit into `size` bytes."""
    return Run(unit, size // len(unit))


def size_of(*runs: Run) -> int:
    """Bytes."""
    return sum(len(run.unit) * run.count for run in runs)


def plain(*runs: Run) -> bytes:
    """All of it."""
    return b"".join(run.unit * run.count for run in runs)


def compressed(*runs: Run, encoding: str = "gzip", level: int = 9) -> bytes:
    """One member of gzip, or a stream of deflate."""
    compressor = zlib.compressobj(level, wbits=FORMATS[encoding])
    pieces = [compressor.compress(piece) for run in runs for piece in run.pieces()]
    return b"".join([*pieces, compressor.flush()])

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Groups traces into files. (pure)

With a log frequency of n, each n traces go to a file of their own, `<file>.0`, `<file>.1` and so on. All others go to
one file, unless their number is limited: then they are kept until there are that many, for a file of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyruntime.runtime.tracing.sampling import Sampler
from pyruntime.runtime.tracing.trace import TREE_BYTES_MAX, Trace, Tree

# The most traces that are kept in memory for one file. If there are more, they go to more than one file.
KEPT_MAX = 10_000
KEPT_BYTES_MAX = 64 << 20


class Write(NamedTuple):
    """Traces for a file: one of their own if `apart`."""

    traces: list[Trace]
    apart: bool


@dataclass(slots=True)
class _Kept:
    traces: list[Trace] = field(default_factory=list)
    trees: int = 0
    size: int = 0


class Buckets:
    """The traces that are kept, by the sampler that has picked them."""

    def __init__(self) -> None:
        self._kept: dict[Sampler, _Kept] = {}

    def add(self, tree: Tree) -> Write | None:
        """Add a complete tree, which is then no longer under way. Returns what to write now, if anything."""
        sampler = tree.sampler
        frequency = sampler.values.log_frequency
        if not frequency and sampler.left < 0:
            return Write(tree.traces, apart=False)
        kept = self._kept.setdefault(sampler, _Kept())
        kept.traces += tree.traces
        kept.trees += 1
        kept.size += TREE_BYTES_MAX - tree.bytes_left
        is_last = not sampler.left and not sampler.under_way
        if kept.trees == frequency or is_last or kept.trees >= KEPT_MAX or kept.size >= KEPT_BYTES_MAX:
            return self.flush(sampler, apart=True)
        return None

    def flush(self, sampler: Sampler, apart: bool) -> Write | None:
        """Remove and return all that is kept of one sampler, if anything: the server stops, or its settings changed."""
        kept = self._kept.pop(sampler, None)
        return None if kept is None else Write(kept.traces, apart)

    def flush_all(self) -> list[Write]:
        """Remove and return all that is kept."""
        return [Write(kept.traces, sampler.values.log_frequency > 0) for sampler, kept in self._kept.items()]

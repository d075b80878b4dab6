# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which traces go into which file. (pure)

With a log frequency, so many traces go together to a file of their own, `<file>.0`, `<file>.1` and so on. All others go
to one file, unless their number is limited: then they are kept until there are that many, for a file of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyruntime.runtime.tracing.sampling import Sampler
from pyruntime.runtime.tracing.trace import TREE_BYTES_MAX, Trace, Tree

# What is kept for one file. If there is more, it goes to more than one.
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
    """What is kept, by the sampler that has picked it."""

    def __init__(self) -> None:
        self._kept: dict[Sampler, _Kept] = {}

    def add(self, tree: Tree) -> Write | None:
        """A tree is complete, and does not count as under way any longer. What is to be written now, if anything."""
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
        """All that is kept of one sampler, if anything: the server stops, or the sampler goes on in another way."""
        kept = self._kept.pop(sampler, None)
        return None if kept is None else Write(kept.traces, apart)

    def flush_all(self) -> list[Write]:
        """All that is kept."""
        return [Write(kept.traces, sampler.values.log_frequency > 0) for sampler, kept in self._kept.items()]

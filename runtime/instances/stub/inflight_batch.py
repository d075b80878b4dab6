# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One batch that is with a stub, and who executes it. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.scheduling.job import Job

# For each call that a batch waits for: who could serve it, and the model's name.
Calls = Sequence[tuple[Sequence[Waiting], str]]


@dataclass(slots=True, eq=False)
class InflightBatch:
    """See the module. It was sent at `sent_ns`, or waited from then on behind another one that ended at that time.

    As a worker (see deadlock.py) it is the thread that the batch has, or will have."""

    number: int
    batch: list[Job]
    sent_ns: int
    model_name: str
    calls_of: Callable[[int], Calls]
    # Serials of requests that a sender has answered to the end while execute still runs.
    finished: set[int] = field(default_factory=set)

    def waiting_calls(self) -> Calls:
        """See Waiting."""
        return self.calls_of(self.number)

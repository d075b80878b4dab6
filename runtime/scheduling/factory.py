# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Creates the scheduler that a model's configuration requires.

The rarer ones are imported with the first model that needs them, so that a server without such models starts faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.scheduling.batcher import Strategy
from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.runtime.scheduling.scheduler import JobScheduler, Scheduler

if TYPE_CHECKING:
    from pyruntime.runtime.scheduling.sequence_scheduler import Memory


def create_scheduler(
    spec: ModelSpec,
    on_change: Callable[[], None],
    statistics: ModelStatistics,
    memory: Memory,
    strategy: Strategy[Job] | None = None,
    grants: ResourceGrants | None = None,
) -> JobScheduler:
    """The scheduler of one version of a model; `memory` is its request memory.

    `strategy` is only for models with dynamic batching. `grants` are those of a server with a rate limiter.
    """
    if grants is not None and spec.sequence_batching is not None:
        from pyruntime.runtime.scheduling.limited_schedulers import LimitedSequenceScheduler

        return LimitedSequenceScheduler(spec, spec.sequence_batching, on_change, statistics, memory, grants)
    if grants is not None:
        from pyruntime.runtime.scheduling.limited_schedulers import LimitedScheduler

        return LimitedScheduler(spec, on_change, statistics, strategy, grants)
    if spec.sequence_batching is not None:
        from pyruntime.runtime.scheduling.sequence_scheduler import SequenceScheduler

        return SequenceScheduler(spec, spec.sequence_batching, on_change, statistics, memory)
    return Scheduler(spec, on_change, statistics, strategy)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the requests to one version of an ensemble share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pyruntime.runtime.calls.model_call import Callee, CallTracer
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.ensembles.credits import StepCredits
from pyruntime.runtime.ensembles.graph import Graph, Step
from pyruntime.runtime.execution.executor import CallBack
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.utils.errors import InferenceError

S = TypeVar("S")


class StepModel(Callee, Protocol):
    """A version of the model of a step: see inference/model_version.py."""

    @property
    def is_ready(self) -> bool: ...

    def expect(self) -> None: ...

    def arrived(self) -> None: ...

    def check_ready(self, call_back: CallBack) -> None: ...


class Ensemble(Generic[S]):
    """See the module. `credits` is None without `max_inflight_requests`; `S` is a start that waits for one."""

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        graph: Graph,
        memory: RequestMemory,
        statistics: ModelStatistics,
        find: Callable[[str, int], StepModel],
        tracer: CallTracer,
        peers: GpuPeers,
    ) -> None:
        """`find` returns the version that serves a model, and raises InferenceError. `peers` copy between GPUs."""
        ensemble = spec.ensemble
        assert ensemble is not None  # the loader looks
        self.spec = spec
        self.version = version
        self.graph = graph
        self.memory = memory
        self.statistics = statistics
        self.find = find
        self.tracer = tracer
        self.peers = peers
        limit = ensemble.max_inflight_requests
        self.credits: StepCredits[S] | None = StepCredits(limit) if limit else None
        self.is_batching = spec.max_batch_size > 0
        # The outputs as the steps make them.
        self.dims = {
            name: output.dims if output.reshape is None else output.reshape for name, output in spec.outputs.items()
        }
        self.reshapes = any(output.reshape is not None for output in spec.outputs.values())

    def is_step_ready(self, step: Step) -> bool:
        """Whether the model of a step is ready."""
        try:
            return self.find(step.model, step.version).is_ready
        except InferenceError:
            return False

    def check_step_ready(self, step: Step, call_back: CallBack) -> None:
        """Call back, at once or later, with whether the model of a step says that it is ready."""
        try:
            model = self.find(step.model, step.version)
        except InferenceError:
            call_back(False)
        else:
            model.check_ready(call_back)

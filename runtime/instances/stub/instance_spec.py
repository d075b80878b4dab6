# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a Python instance. (pure)"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.environments.environment import StubPython
from pyruntime.runtime.execution.executor import WarmUp
from pyruntime.runtime.instances.model_server import ModelServer
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics


@dataclass(frozen=True, slots=True)
class StubInstanceSpec:
    """All parameters of an instance of one model version; `signature` is that of its process, see InstanceProcess.

    `findings` is what all instances of the version report wrong outputs to.

    `concurrency` is how many threads of the process execute; `environment` is the Python that the model wants instead
    of the host's; `warm_up` is what it does before it is ready, in each life of its process. With `is_limited` it
    executes only when it is granted resources. `variables` are environment variables of its process, on top of those of
    its Python. `gpu` is the number of the GPU that it is on. `execution_timeout_ms` is how long an execution may take,
    0 for any time.
    """

    name: str
    spec: ModelSpec
    version: int
    location: dict[str, str]
    args: dict[str, str]
    memory: RequestMemory
    growth_bytes: int
    statistics: ModelStatistics
    server: ModelServer
    findings: OutputFindings
    concurrency: int = 1
    environment: StubPython = None
    warm_up: WarmUp | None = None
    signature: Hashable = ()
    is_limited: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    gpu: int | None = None
    execution_timeout_ms: int = 0

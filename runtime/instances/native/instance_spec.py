# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a native instance, and the parts of the extension that it uses. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyruntime.runtime.config.spec import InstanceSpec, ModelSpec
from pyruntime.runtime.execution.executor import ClientSocket, Loan, WarmUp
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.output_findings import OutputFindings
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import MemoryUsage, ModelStatistics

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

# TRITONSERVER_InstanceGroupKind.
_KINDS = {"AUTO": 0, "CPU": 1, "GPU": 2, "MODEL": 3}


class NativeHandle(Protocol):
    """The extension's Instance: see native/_triton.pyi."""

    def initialize(self) -> None: ...

    def execute(self, jobs: list[Job], wires: list[list[object]], serial: int, base: int, wake: bool) -> None: ...

    def execute_plain(
        self,
        plain: object,
        job: object,
        data: bytes,
        at: int,
        document_length: int,
        serial: int,
        client: ClientSocket | None,
        /,
    ) -> tuple[int, str] | None: ...

    def lend(self, plain: object, connection: object, data: bytes, client: ClientSocket, /) -> Loan | None: ...

    def claim(self, serial: int, /) -> bool: ...

    def wake(self) -> None: ...

    def cancel(self, serial: int) -> None: ...

    def take(self, serial: int) -> None: ...

    def is_ready(self) -> str | None: ...

    def finalize(self) -> None: ...

    @property
    def memory_usage(self) -> list[MemoryUsage]: ...


@dataclass(frozen=True, slots=True)
class NativeInstanceSpec:
    """All parameters of a native instance of one model version; `model` is the extension's.

    `findings` is what all instances of the version report wrong outputs to. `warm_up` is what it does before it is
    ready. With `is_limited` it executes only when it is granted resources.
    """

    instance: InstanceSpec
    spec: ModelSpec
    version: int
    model: _triton.Model
    memory: RequestMemory
    statistics: ModelStatistics
    findings: OutputFindings
    host_policy: str
    profiles: tuple[str, ...] = ()
    secondary_devices: tuple[tuple[str, int], ...] = ()
    warm_up: WarmUp | None = None
    is_limited: bool = False


class NativeExtension(Protocol):
    """The functions of the extension that an instance uses: see native/_triton.pyi."""

    def Instance(
        self,
        model: object,
        owner: object,
        name: str,
        kind: int,
        device_id: int,
        passive: bool,
        profiles: tuple[str, ...],
        secondary_devices: tuple[tuple[str, int], ...],
        host_policy: str,
        /,
    ) -> NativeHandle: ...

    def PlainRequests(
        self,
        model: object,
        inputs: Sequence[tuple[str, str, int, Sequence[int], bool]],
        outputs: Sequence[tuple[str, str, Sequence[int]]],
        max_batch_size: int,
        /,
    ) -> object: ...

    def OutputRegion(
        self, descriptor: int, size: int, first_address: int, cgroups: Sequence[tuple[str, str, str, Sequence[str]]], /
    ) -> object: ...

    def ClientSocket(self, descriptor: int, /) -> ClientSocket: ...

    def set_hurried(self, hurried: bool, /) -> None: ...


def create_handle(native: NativeExtension, spec: NativeInstanceSpec, owner: object) -> NativeHandle:
    """The extension's instance, not initialised yet. `owner` receives its events: see events.py."""
    instance = spec.instance
    return native.Instance(
        spec.model,
        owner,
        instance.name,
        _KINDS[instance.kind],
        instance.device_id,
        instance.passive,
        spec.profiles,
        spec.secondary_devices,
        spec.host_policy,
    )


def facts(spec: ModelSpec) -> tuple[bool, list[str], bool, list[tuple[str, str, list[int], str]]]:
    """The arguments of the extension's Model.configure behind the text of the configuration."""
    states = () if spec.sequence_batching is None else spec.sequence_batching.states
    return (
        spec.decoupled,
        list(spec.outputs),
        spec.iterative_sequence,
        [
            (
                state.output_name,
                state.datatype,
                [1] * (len(state.shape) - len(state.dims)) + list(state.dims),
                state.input_name if state.is_shared else "",
            )
            for state in states
        ],
    )

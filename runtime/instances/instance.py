# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What every kind of instance is to the model version that it belongs to. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.instances.plan import Batch
from pyruntime.runtime.instances.readiness import CallBack


class ModelInstance(Protocol):
    """One instance: PythonInstance or NativeInstance."""

    name: str
    down: str
    restarts: int

    @property
    def places(self) -> int: ...

    @property
    def is_idle(self) -> bool: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def waiting(self) -> int: ...

    @property
    def response_bytes(self) -> int: ...

    def execute(self, batch: Batch) -> None: ...

    def check_ready(self, call_back: CallBack) -> None: ...

    def workers(self) -> Sequence[Waiting]: ...

    async def stop(self, timeout_s: float) -> None: ...

    def kill(self) -> None: ...

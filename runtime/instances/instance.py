# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What every kind of instance is to the model version that it belongs to. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.instances.instance_spec import Batch
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

    def know(self, document: bytes, size: int, wire: list[Any]) -> Any | None:
        """Something by which `execute_known` finds requests like this one; None if the instance gains nothing by it.

        Their bodies are `size` bytes long and begin with `document`; the offsets in `wire` are counted from its end.
        """

    def execute_known(self, known: Any, job: Any, data: bytes, at: int) -> bool:
        """Run a request that is known, if that is what begins at a place in `data`. The instance must have a place.

        `job` is as good as a Job, without memory of its model's. It may be answered by `encoded`.
        """

    @property
    def may_read(self) -> bool:
        """Whether it may have connections lent to it, for now."""

    def lend(self, known: Any, connection: Any, data: bytes, at: int, rows: int) -> Any | None:
        """Run the known request that is all of `data`, and read the connection for more that are like it.

        `at` is where its body begins, and `rows` what each request has. What is returned gives the connection back when
        it is asked to (`take_back`), and says how many requests have begun (`begun`); None if nothing is lent. The
        connection is told when it is to be had back (`returned`), and makes a job of a request that is not over within
        its execution (`adopt`).
        """

    def adopt(self, job: Any, serial: int) -> None:
        """A request that came over a connection that was lent is this job from now on."""

    def check_ready(self, call_back: CallBack) -> None: ...

    def workers(self) -> Sequence[Waiting]: ...

    async def stop(self, timeout_s: float) -> None: ...

    def kill(self) -> None: ...

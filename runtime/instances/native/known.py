# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Known requests of a native instance: finding them, answering them, and reading connections that bring them.

See docs/explanation/decisions/0021 and 0022.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from pyruntime.runtime.execution.executor import ExecutorOwner, KnownRequest, LendableConnection, Loan
from pyruntime.runtime.instances.native.batches import NativeBatches
from pyruntime.runtime.instances.native.instance_spec import NativeExtension, NativeInstanceSpec
from pyruntime.runtime.instances.native.times import Execution, Times
from pyruntime.runtime.native.parameters import read_parameters

# An instance whose executions take longer than this on average, in nanoseconds, reads no connections itself: while it
# executes, it does not notice that a client hangs up.
LENDING_NS_MAX = 1_000_000

# A KnownJob, which has the attributes of a Job as well. Any: a type of both would be neither class, and the methods of
# NativeBatches take a Job.
_KnownJob: TypeAlias = Any


class KnownBatches(NativeBatches):
    """See the module."""

    def __init__(
        self,
        instance_spec: NativeInstanceSpec,
        owner: ExecutorOwner,
        native: NativeExtension,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """See NativeBatches."""
        super().__init__(instance_spec, owner, native, call_soon)
        self._native = native

    def know(self, document: bytes, size: int, pattern: list[object]) -> KnownRequest | None:
        """See KnownRequestExecutor."""
        read_parameters(pattern)
        return self._native.KnownRequest(self._spec.model, document, size, pattern)

    def execute_known(self, known: KnownRequest, job: _KnownJob, data: bytes, at: int) -> bool:
        """See KnownRequestExecutor."""
        serial = job.serial = self._serial
        job.instance = self
        # The event of a response that a native thread sends is late, so not while other requests may need the capacity.
        client = job.client_socket(self._native.ClientSocket) if self.capacity > len(self._inflight) else None
        try:
            if not self.handle.execute_known(known, job, data, at, serial, client):
                return False
        except MemoryError:
            return False  # it takes the path of other requests, or is refused there
        self._serial = serial + 1
        self._jobs[job] = job.arrived_ns
        self._inflight[serial] = job.rows
        self.capacity -= 1
        self._wake_soon()
        return True

    def claim(self, job: _KnownJob) -> bool:
        """Keep native threads from answering a known request. False if one has: `sent` follows with the next events."""
        return self.handle.claim(job.serial)

    def encoded(self, job: _KnownJob, response: bytes, times: Times, execution: Execution | None) -> None:
        """As `answered`, for a known request whose response is already encoded for the client."""
        if job in self._answered:
            self.released(job, False, times)
        else:
            del self._jobs[job]
            self.times.request(job, times, None, time.monotonic_ns())
            job.encoded(response)
        self._has_ended(execution)

    def sent(
        self,
        job: _KnownJob,
        rest: bytes | None,
        sent_ns: int,
        released: bool,
        times: Times | None,
        execution: Execution | None,
    ) -> None:
        """As `encoded`, for a response that was sent to the client except for `rest`; it may not be released."""
        if released and job not in self._answered:
            given_ns = self._jobs.pop(job)
            self.times.request(job, times or (True, given_ns, given_ns, sent_ns, sent_ns), None, sent_ns)
        else:
            self._answer(job)
            if released:
                self.released(job, False, times)
        job.sent(rest)
        self._has_ended(execution)

    # Connections that the instance reads itself.

    @property
    def may_read(self) -> bool:
        """Whether it may read connections itself: executions are short, make no calls, and need no latencies."""
        return (
            self._is_open
            and self._limit.average_ns <= LENDING_NS_MAX
            and not self._limit.makes_calls
            and self._statistics.latencies is None
        )

    def lend(self, known: KnownRequest, connection: LendableConnection, data: bytes, at: int, rows: int) -> Loan | None:
        """See KnownRequestExecutor."""
        if not self.may_read:
            return None
        client = connection.client_socket(self._native.ClientSocket)
        return None if client is None else self.handle.lend(known, connection, data, at, rows, client)

    def adopt(self, job: _KnownJob, serial: int) -> None:
        """See KnownRequestExecutor."""
        job.instance = self
        job.serial = serial
        self._jobs[job] = job.arrived_ns
        self._inflight[serial] = job.rows
        self.capacity -= 1

    def counted(self, count: int, rows: int, sums: tuple[int, ...]) -> None:
        """`count` requests of `rows` rows each have ended, each a batch of its own; `sums` are of their times."""
        *times, execution_ns = sums
        self._statistics.counted(count, rows, times, time.time_ns() // 1_000_000)
        self._limit.observe_sum(count, execution_ns)
        self._update_capacity()

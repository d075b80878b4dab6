# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Plain requests of a native instance: reading and answering them, and reading connections that bring them.

See docs/explanation/decisions/0021 and 0022.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from pyruntime.runtime.config.plain import declared_inputs, declared_outputs
from pyruntime.runtime.execution.executor import ExecutorOwner, LendableConnection, Loan
from pyruntime.runtime.instances.native.batches import NativeBatches
from pyruntime.runtime.instances.native.instance_spec import NativeExtension, NativeInstanceSpec
from pyruntime.runtime.instances.native.times import Execution, Times
from pyruntime.utils import fast_path

# An instance whose executions take longer than this on average, in nanoseconds, reads no connections itself: while it
# executes, it does not notice that a client hangs up.
LENDING_NS_MAX = 1_000_000

# A PlainJob, which has the attributes of a Job as well. Any: a type of both would be neither class, and the methods of
# NativeBatches take a Job.
_PlainJob: TypeAlias = Any


class PlainBatches(NativeBatches):
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
        # What native code reads requests with; None if Python reads all of them.
        self._plain = _read_by(instance_spec, native)

    @property
    def reads_plain(self) -> bool:
        """Whether native code reads requests, and answers them."""
        return self._plain is not None

    def execute_plain(self, job: _PlainJob, data: bytes, at: int, document_length: int) -> bool:
        """See PlainRequestExecutor."""
        serial = job.serial = self._serial
        job.instance = self
        # The event of a response that a native thread sends is late, so not while other requests may need the capacity.
        client = job.client_socket(self._native.ClientSocket) if self.capacity > len(self._inflight) else None
        try:
            read = self.handle.execute_plain(self._plain, job, data, at, document_length, serial, client)
        except MemoryError:
            return False  # it takes the path of other requests, or is refused there
        if read is None:
            return False
        job.rows, job.id = read
        self._serial = serial + 1
        self._jobs[job] = job.arrived_ns
        self._inflight[serial] = job.rows
        self.capacity -= 1
        self._wake_soon()
        return True

    def claim(self, job: _PlainJob) -> bool:
        """Keep native threads from answering a plain request. False if one has: `sent` follows with the next events."""
        return self.handle.claim(job.serial)

    def encoded(self, job: _PlainJob, response: bytes, times: Times, execution: Execution | None) -> None:
        """As `answered`, for a plain request whose response is already encoded for the client."""
        if job in self._answered:
            self.released(job, False, times)
        else:
            del self._jobs[job]
            self.times.request(job, times, None, time.monotonic_ns())
            job.encoded(response)
        self._has_ended(execution)

    def sent(
        self,
        job: _PlainJob,
        rest: bytes | None,
        sent_ns: int,
        released: bool,
        times: Times | None,
        execution: Execution | None,
    ) -> None:
        """As `encoded`, for a response that was sent to the client except for `rest`; it may not be released."""
        if released and job not in self._answered:
            given_ns = self._jobs.pop(job)
            spans = times or (True, given_ns, given_ns, sent_ns, sent_ns)
            # A backend may be over with a request after its client has the response.
            self.times.request(job, spans, None, max(sent_ns, spans[-1]))
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

    def lend(self, connection: LendableConnection, data: bytes) -> Loan | None:
        """See PlainRequestExecutor."""
        if not self.may_read:
            return None
        client = connection.client_socket(self._native.ClientSocket)
        return None if client is None else self.handle.lend(self._plain, connection, data, client)

    def adopt(self, job: _PlainJob, serial: int) -> None:
        """See PlainRequestExecutor."""
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


def _read_by(instance_spec: NativeInstanceSpec, native: NativeExtension) -> object | None:
    """The reader of plain requests to a model; None if each must be examined, or if that is not worthwhile.

    Requests that wait for others, or that are counted otherwise than as a whole, pass through Python.
    """
    spec = instance_spec.spec
    if fast_path.is_off():
        return None
    if spec.is_batched or spec.sequence_batching is not None or spec.decoupled or instance_spec.is_limited:
        return None
    if instance_spec.statistics.first_responses is not None:
        return None
    inputs, outputs = declared_inputs(spec), declared_outputs(spec)
    if inputs is None or outputs is None:
        return None
    return native.PlainRequests(instance_spec.model, inputs, outputs, spec.max_batch_size)

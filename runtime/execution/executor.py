# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The contract between a model version and the executors of its requests. (pure)

An executor takes batches as long as it has capacity, answers each job, and notifies its owner of changes. A Python
instance executes in a stub process and a native instance on a thread of this process; a C++ backend in a process of its
own is a Python instance whose model is the backend. Users of this contract do not depend on the kind of executor.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Protocol

from pyruntime.runtime.execution.deadlock import FREE, Waiting
from pyruntime.runtime.execution.job import Job, Running

Batch = list[Job]

# A model whose is_ready takes longer than this, in seconds, is not ready. Triton has the same limit.
IS_READY_TIMEOUT_S = 5.0
# Called with whether a model is ready.
CallBack = Callable[[bool], None]


def check_all(checks: Sequence[Callable[[CallBack], None]], call_back: CallBack) -> None:
    """Make all these checks, and call back once, at once or later, with whether each said yes. There must be some."""
    left, ready = len(checks), True

    def checked(is_ready: bool) -> None:
        nonlocal left, ready
        left, ready = left - 1, ready and is_ready
        if not left:
            call_back(ready)

    for check in checks:
        check(checked)


class ExecutorBatches(Running, Protocol):
    """The batches that are with an executor.

    While it executes a job, `Job.instance` refers to these, to cancel the job. A batch that has not begun and cannot
    begin soon goes back to the owner: see ExecutorOwner.put_back.
    """

    capacity: int
    """How many more batches it takes now. An attribute, because nearly every request asks."""

    @property
    def is_idle(self) -> bool:
        """Whether it executes nothing now."""

    @property
    def waiting(self) -> int:
        """How many of its requests wait behind others."""

    @property
    def running(self) -> Sequence[Waiting]:
        """The workers of the batches that it executes now, one for each: see deadlock.py."""

    def execute(self, batch: Batch) -> None:
        """Execute a batch. There must be capacity. Each job's `respond` is called in any case."""


class WarmingBatches(Protocol):
    """The batches of an executor that is not ready yet."""

    def warm_up(self, batch: Batch) -> None:
        """Execute a batch that came from no client. Each job's `respond` is called in any case."""


# Warms an executor up before it is ready, with so many batches at a time. Raises LoadError.
WarmUp = Callable[["Executor", WarmingBatches, int], Awaitable[None]]


class NoBatches:
    """The batches of an executor that cannot take any: its process has not started yet, or has died."""

    capacity = 0
    is_idle = False
    waiting = 0
    running: Sequence[Waiting] = ()

    def execute(self, batch: Batch) -> None:
        """See ExecutorBatches."""
        raise AssertionError("there is no capacity")

    def cancel(self, job: Job) -> None:
        """See execution.job.Running."""

    def worker_of(self, job: Job) -> Waiting:
        """See execution.job.Running."""
        return FREE


NO_BATCHES = NoBatches()


class Executor(Protocol):
    """Executes batches of one model version.

    `signature` is that of its instance, or of its process: see InstanceSpec and InstanceProcess. `down` is why no
    request may wait for it until its process is ready again, or "". `restarts` is how often its process was started
    again.
    """

    name: str
    signature: Hashable
    down: str
    restarts: int

    @property
    def inflight(self) -> ExecutorBatches:
        """Its batches. They are others after each restart."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests now. When it does not, the state of its model is lost."""

    @property
    def response_bytes(self) -> int:
        """How much shared memory its responses use, in bytes."""

    @property
    def plain(self) -> PlainRequestExecutor | None:
        """Executes requests that native code reads; None if the executor cannot."""

    def check_ready(self, call_back: CallBack) -> None:
        """Call back, at once or later, with whether it takes requests and its model says that it is ready."""

    def drop_sequences(self, ids: Sequence[int | str]) -> None:
        """Tell the model that these sequences, of which it has executed requests, end without an END request."""

    def workers(self) -> Sequence[Waiting]:
        """The threads that execute its requests, now or after a restart: see deadlock.py."""

    async def stop(self, timeout_s: float) -> None:
        """Finish all accepted batches and finalize; after `timeout_s` seconds, end it by force.

        Cancelling it leaves the executor stopping.
        """

    def kill(self) -> None:
        """End it at once, if that is possible."""


def state_of(executor: Executor) -> str:
    """The state of an executor, as metrics and the page name it: ready, starting or down."""
    if executor.is_ready:
        return "ready"
    return "down" if executor.down else "starting"


class ExecutorOwner(Protocol):
    """The model version that gives an executor its work. No method may raise."""

    def capacity_freed(self) -> None:
        """An executor can take another batch."""

    def put_back(self, batch: Batch) -> None:
        """Return a batch that never started to the front of the queue."""

    def reschedule(self, job: Job) -> None:
        """Append a job to the queue, because its model wants to execute it again."""

    def executor_changed(self) -> None:
        """An executor became ready, died, or is down."""


class ClientSocket(Protocol):
    """A client's connection, over which native threads may send responses."""

    def shut_down(self) -> None:
        """Send nothing more: the connection is closed."""


class PlainJob(Protocol):
    """A plain request while an instance executes it. It has the attributes of a Job, but no request memory."""

    instance: object
    serial: int
    id: str
    rows: int

    @property
    def arrived_ns(self) -> int: ...

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """The socket that a native thread may send the response over, made from its descriptor; None for none."""

    def encoded(self, response: bytes) -> None:
        """The instance has answered with the whole response, as bytes."""

    def sent(self, rest: bytes | None) -> None:
        """A native thread has sent the response, except for `rest`; None if nothing is left."""


class LendableConnection(Protocol):
    """A client's connection that an instance may read for a while."""

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """See PlainJob."""

    def adopt(self, serial: int, arrived_ns: int, id: str, rows: int) -> PlainJob:
        """The job for a request that its execution has not ended."""

    def returned(self) -> None:
        """The instance reads no more: the connection has to be taken back."""


class Loan(Protocol):
    """A connection that an instance reads."""

    @property
    def begun(self) -> int:
        """How many of its requests have begun."""

    def take_back(self) -> bytes:
        """End the loan. Returns the bytes that were read of the next request."""


class PlainRequestExecutor(Protocol):
    """Executes requests that native code reads from their bytes: see docs/explanation/decisions/0021 and 0022."""

    def execute_plain(self, job: PlainJob, data: bytes, at: int, document_length: int) -> bool:
        """Execute the request whose body begins at `at` in `data`; False if it is not plain. There must be capacity.

        The job gets its `id` and `rows`, and is answered by one of `respond`, `encoded` and `sent`.
        """

    @property
    def may_read(self) -> bool:
        """Whether connections may be lent to it now."""

    def lend(self, connection: LendableConnection, data: bytes) -> Loan | None:
        """Execute the plain request that is all of `data`, and read the connection for more requests to its target.

        Returns None if the connection is not lent.
        """

    def adopt(self, job: PlainJob, serial: int) -> None:
        """Use this job for the request `serial`, which arrived over a lent connection."""

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The contract between a model version and what executes its requests. (pure)

An executor takes batches as long as it has capacity, answers each job, and tells its owner what that changes. A Python
instance executes in a stub process and a native instance on a thread of this process; a C++ backend in a process of its
own is a Python instance whose model is the backend. Nobody above this contract knows which of them it has.

Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyruntime.runtime.instances.deadlock import Waiting
from pyruntime.runtime.scheduling.job import Job

Batch = list[Job]

# An is_ready of a model that takes longer than this means that it is not ready, in seconds. Triton's own limit.
IS_READY_TIMEOUT_S = 5.0
# Called with whether a model is ready.
CallBack = Callable[[bool], None]


class Executor(Protocol):
    """Executes batches of one model version.

    `down` says why it was given up, or is "". `restarts` is how often its process was started again.

    A job that it is executing is told so by `Job.instance`, by which it is cancelled: see scheduling.job.Running. It
    takes a batch back by itself where that has not begun and cannot begin soon: see ExecutorOwner.put_back.
    """

    name: str
    down: str
    restarts: int

    @property
    def capacity(self) -> int:
        """How many more batches it takes now."""

    @property
    def is_idle(self) -> bool:
        """Whether it executes nothing now."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests now. What its model keeps is lost when it is not."""

    @property
    def waiting(self) -> int:
        """How many requests it has been given that wait behind others."""

    @property
    def response_bytes(self) -> int:
        """How much shared memory its responses use, in bytes."""

    @property
    def known(self) -> KnownRequestExecutor | None:
        """How it executes requests that native code recognises; None if it cannot."""

    def execute(self, batch: Batch) -> None:
        """Execute a batch. There must be capacity. Each job's `respond` will be called, whatever happens."""

    def check_ready(self, call_back: CallBack) -> None:
        """Call back, at once or later, with whether it takes requests and its model says that it is ready."""

    def workers(self) -> Sequence[Waiting]:
        """The threads that execute its requests, now or after a restart: see deadlock.py."""

    async def stop(self, timeout_s: float) -> None:
        """Finish what was accepted and finalize; end by force what takes longer than `timeout_s` seconds.

        Cancelling it leaves the executor stopping.
        """

    def kill(self) -> None:
        """End it at once, where that is possible."""


class ExecutorOwner(Protocol):
    """Gives executors their work. No method may raise."""

    def capacity_freed(self) -> None:
        """An executor can take another batch."""

    def put_back(self, batch: Batch) -> None:
        """A batch that never started; it goes to the front of the queue."""

    def reschedule(self, job: Job) -> None:
        """The model wants this job executed again; it goes to the end of the queue."""

    def executor_changed(self) -> None:
        """An executor became ready, died, or was given up."""


class KnownRequest(Protocol):
    """What requests have in common that differ in the contents of their tensors only."""

    def remember(self, head: bytes, outputs: Sequence[tuple[str, str, Sequence[int], int]], /) -> None:
        """Encode responses whose outputs have these names, datatypes, shapes and sizes: `head`, then the contents."""


class ClientSocket(Protocol):
    """A client's connection, over which native threads may send responses."""

    def shut_down(self) -> None:
        """Send nothing more: the connection is closed."""


class KnownJob(Protocol):
    """A known request while an instance executes it. It has the attributes of a Job, but no request memory."""

    instance: object
    serial: int

    @property
    def rows(self) -> int: ...

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
        """See KnownJob."""

    def adopt(self, serial: int, arrived_ns: int) -> KnownJob:
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


class KnownRequestExecutor(Protocol):
    """Executes requests that native code recognises by their bytes: see docs/decisions/0021 and 0022."""

    def know(self, document: bytes, size: int, pattern: list[object]) -> KnownRequest | None:
        """Something by which `execute_known` finds requests like this one; None if nothing is gained by it.

        Their bodies are `size` bytes long and begin with `document`, and addresses in `pattern` count from its end.
        """

    def execute_known(self, known: KnownRequest, job: KnownJob, data: bytes, at: int) -> bool:
        """Execute a request that is known, if one begins at `at` in `data`. There must be capacity.

        `job` is as good as a Job, without memory of its model's. It may be answered by `encoded`.
        """

    @property
    def may_read(self) -> bool:
        """Whether it may have connections lent to it, for now."""

    def lend(self, known: KnownRequest, connection: LendableConnection, data: bytes, at: int, rows: int) -> Loan | None:
        """Execute the known request that is all of `data`, and read the connection for more that are like it.

        `at` is where its body begins, and `rows` what each request has. What is returned gives the connection back when
        it is asked to (`take_back`), and says how many requests have begun (`begun`); None if nothing is lent. The
        connection is told when it is to be had back (`returned`), and makes a job of a request that is not over within
        its execution (`adopt`).
        """

    def adopt(self, job: KnownJob, serial: int) -> None:
        """A request that came over a connection that was lent is this job from now on."""

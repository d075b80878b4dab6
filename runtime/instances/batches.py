# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The batches that are with one stub, from its first to its death.

Some batches may be with the stub at a time, so that it need not wait for the host between them. The stub answers one
before it starts the next; so after a death the first unanswered batch is what was running, and it fails, while those
behind it had not begun and go back to the scheduler. Nothing is lost and nothing runs twice.

How the stub came to be, and what follows its death, is the instance's business: see instances/python.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.inference import InferResponse, Parameter, Slot
from pyruntime.runtime.instances.connection import Answer, StubConnection
from pyruntime.runtime.instances.supervisor import ProcessExit
from pyruntime.runtime.instances.wire import OutputReader, response_parameters
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.scheduling.job import Job
from pyruntime.utils.errors import Code, InferenceError, LocalError, PeerError
from pyruntime.utils.messages import OK, Failed, Retired

# One batch runs, one waits behind it: without the second, a third of the throughput is lost.
PLACES_MIN = 2
# Batches that run for microseconds are worth more: every wake-up of the host or the stub then serves several of them,
# which halves the CPU per request. But what is posted to one instance cannot move to another that becomes idle first,
# so no more is posted than the stub works off in AHEAD_NS_MAX.
PLACES_MAX = 8
AHEAD_NS_MAX = 500_000
# How much the latest batch counts in the average duration: an eighth.
_AVERAGE_SHIFT = 3

Batch = list[Job]


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """All that it takes to start an instance of one model version."""

    name: str
    spec: ModelSpec
    version: int
    location: dict[str, str]
    args: dict[str, str]
    memory: RequestMemory
    growth_bytes: int
    statistics: ModelStatistics


class Owner(Protocol):
    """Who gives an instance its work. Every method is called on the event loop's thread and must not raise."""

    def place_freed(self) -> None:
        """An instance can take another batch."""

    def put_back(self, batch: Batch) -> None:
        """A batch that never started, because the instance died; it goes to the front of the queue."""

    def instance_changed(self) -> None:
        """An instance became ready, died, or was given up."""


@dataclass(slots=True, eq=False)
class _Posted:
    number: int
    batch: Batch
    sent_ns: int


class PostedBatches:
    """See the module. `places` is how many more batches the stub takes now."""

    def __init__(self, plan: InstancePlan, connection: StubConnection, owner: Owner) -> None:
        self.places = 0
        self._plan = plan
        self._connection = connection
        self._owner = owner
        self._reader = OutputReader(plan.spec, connection.responses.view)
        self._posted: deque[_Posted] = deque()
        self._retained: dict[tuple[int, int], list[Slot]] = {}
        self._open = False
        self._number = 0
        self._last_end_ns = 0
        self._average_ns = AHEAD_NS_MAX

    def __len__(self) -> int:
        return len(self._posted)

    def open(self) -> None:
        """The stub serves: it takes batches from now on."""
        self._open = True
        self.places = self._places()

    def close(self) -> None:
        """The stub takes no more batches: it is told to stop, or has hung up."""
        self._open = False
        self.places = 0

    def execute(self, batch: Batch) -> None:
        """Post a batch. The instance must have a place. Every job's `done` will be called, whatever happens."""
        self._number = number = self._number + 1
        sent_ns = time.monotonic_ns()
        try:
            self._connection.infer(number, [job.wire for job in batch])
        except LocalError as exc:
            failure = InferenceError(f"the request cannot be sent to {self._plan.name}: {exc}")
            for job in batch:
                self._finish(job, failure, sent_ns)
            return
        self.places -= 1
        self._posted.append(_Posted(number, batch, sent_ns))

    def answered(self, message: Answer) -> None:
        """What the stub says while it serves. Raises PeerError."""
        if isinstance(message, Retired):
            return self._retire(message.requests)
        posted = self._posted[0] if self._posted else None
        if posted is None or posted.number != message.batch:
            raise PeerError(f"batch {message.batch} is answered and is not the one that is due")
        batch = posted.batch
        # Reading the answer may still find it to be nonsense, so the batch counts as running until that is done.
        answers = [InferenceError(message.message)] * len(batch) if isinstance(message, Failed) else self._read(
            batch, message.responses
        )  # fmt: skip
        if message.retained:
            self._retain(message.batch, batch, message.retained)
        self._posted.popleft()
        now_ns = time.monotonic_ns()
        begin_ns, start_ns, end_ns = posted.sent_ns, message.start_ns, message.end_ns
        if begin_ns < self._last_end_ns:  # it waited behind another
            begin_ns = self._last_end_ns
        if not begin_ns <= start_ns <= end_ns <= now_ns:  # a stub may say anything
            start_ns = end_ns = now_ns
        self._last_end_ns = end_ns
        input_ns, infer_ns, output_ns = start_ns - begin_ns, end_ns - start_ns, now_ns - end_ns
        self._average_ns += (infer_ns - self._average_ns) >> _AVERAGE_SHIFT
        if self._open:
            self.places = self._places() - len(self._posted)
        statistics = self._plan.statistics
        rows = 0
        for job, answer in zip(batch, answers, strict=True):
            rows += job.rows
            if type(answer) is InferResponse:
                arrived_ns = job.arrived_ns
                statistics.success(
                    job.rows, begin_ns - arrived_ns, input_ns, infer_ns, output_ns, now_ns - arrived_ns
                )  # fmt: skip
                job.free()
                job.done(answer)
            elif isinstance(answer, InferenceError):
                self._finish(job, answer, now_ns)
        statistics.execution(rows, input_ns, infer_ns, output_ns, time.time_ns() // 1_000_000)
        self._owner.place_freed()

    def _places(self) -> int:
        """How many batches may be with the stub at a time."""
        # Where requests are batched, what waits had better wait in the queue: there it can still join a larger batch.
        if self._plan.spec.dynamic_batching is not None:
            return 1
        average_ns = self._average_ns
        if average_ns * PLACES_MAX <= AHEAD_NS_MAX:
            return PLACES_MAX
        return max(PLACES_MIN, AHEAD_NS_MAX // average_ns)

    def _read(self, batch: Batch, responses: list[Any]) -> Sequence[InferResponse | InferenceError]:
        """One answer for each job. Raises PeerError if any of them is bad."""
        plan = self._plan
        name, version, read = plan.spec.name, plan.version, self._reader.outputs
        release = self._connection.release
        answers: list[InferResponse | InferenceError] = []
        try:
            for job, (code, text, slot, tensors, parameters) in zip(batch, responses, strict=True):
                if code != OK:
                    answers.append(InferenceError(str(text), Code(code)))
                    continue
                if type(slot) is not int:
                    raise PeerError(f"a response lies in slot {slot!r}, which is no integer")
                outputs, size = read(tensors)
                answers.append(
                    InferResponse(
                        name,
                        version,
                        job.id,
                        outputs,
                        response_parameters(parameters) if parameters else _NO_PARAMETERS,
                        partial(release, slot, size) if slot >= 0 else _nothing,
                    )
                )
        except (TypeError, ValueError) as exc:
            raise PeerError("responses that do not match the batch") from exc
        return answers

    def _finish(self, job: Job, failure: InferenceError, now_ns: int) -> None:
        self._plan.statistics.failure(now_ns - job.arrived_ns)
        job.free()
        job.done(failure)

    # Memory that a model holds on to, and death.

    def _retain(self, number: int, batch: Batch, indexes: list[Any]) -> None:
        """Move the slots of requests whose inputs the model kept out of reach, so that nothing overwrites them."""
        for index in indexes:
            if type(index) is not int or not 0 <= index < len(batch) or (number, index) in self._retained:
                raise PeerError(f"request {index!r} is retained and does not exist, or is retained twice")
            self._retained[number, index], batch[index].slots = batch[index].slots, []

    def _retire(self, keys: list[Any]) -> None:
        for key in keys:
            known = type(key) is list and len(key) == 2 and type(key[0]) is int and type(key[1]) is int
            slots = self._retained.pop((key[0], key[1]), None) if known else None
            if slots is None:
                raise PeerError(f"request {key!r} is retired and was not retained")
            for slot in slots:
                slot.free()

    def died(self, exit: ProcessExit, restarts: bool) -> None:
        """The stub is gone: fail what it was running, and what it had not begun too unless the instance restarts."""
        self.close()
        for slots in self._retained.values():
            for slot in slots:
                slot.free()
        self._retained.clear()
        if not self._posted:
            return
        running = self._posted.popleft()
        failure = InferenceError(
            f"Stub process '{self._plan.name}' is not healthy. It was lost while it ran this request: {exit.describe()}"
        )
        now_ns = time.monotonic_ns()
        for job in running.batch:
            self._finish(job, failure, now_ns)
        while self._posted:
            waiting = self._posted.pop()
            if restarts:
                self._owner.put_back(waiting.batch)
            else:
                for job in waiting.batch:
                    self._finish(job, failure, now_ns)


_NO_PARAMETERS: dict[str, Parameter] = {}


def _nothing() -> None:
    """How a response without memory is released."""

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Passes the requests of one model version through the response cache.

It looks up each request before the request queues. A hit is answered at once; a miss is executed, and answered after
its response is inserted. Of a decoupled model the whole stream is inserted before its last response is sent, and a hit
is replayed: see streams.py. A failure of the cache is logged, and the request is executed as if there were no cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from pyruntime.runtime.caching.answers import CachedResponse, PreparedAnswers
from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.caching.entry import decode, decode_stream, encode
from pyruntime.runtime.caching.key import request_key
from pyruntime.runtime.caching.streams import Outputs, Replay, StreamKeeper, StreamRoom
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job, Relay, Respond
from pyruntime.runtime.memory.client_outputs import put_in_place
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.regions import ClientRegion, GrantedRegion, SharedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor, keep_open
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import Code, InferenceError

_LOG = logging.getLogger("pyruntime.caching")

# A key, and the responses in its entry, None for a miss.
Found = tuple[str, list[Outputs] | None]


class Model(Protocol):
    """The version whose requests they are."""

    spec: ModelSpec
    version: int
    memory: RequestMemory
    statistics: ModelStatistics

    def queue(self, job: Job) -> None:
        """Queue a job. Raises InferenceError, and then frees its memory."""

    def take_turn(self, job: Job) -> None:
        """A job is about to be answered without an execution."""


class CachedRequests:
    """See the module."""

    def __init__(self, cache: ResponseCache, model: Model) -> None:
        self._cache = cache
        self._model = model
        # The jobs in lookup, in order of arrival, with what follows for those that wait for others: the order of
        # responses, if the model has one, begins here.
        self._jobs: dict[Job, Callable[[], None] | None] = {}
        batching = model.spec.dynamic_batching
        self._is_ordered = batching is not None and batching.preserve_ordering
        # A response that has its place among others, and a stream, are not prepared.
        is_simple = not self._is_ordered and not model.spec.decoupled
        self.answers = PreparedAnswers(cache.answers, model.statistics) if cache.answers and is_simple else None
        self._inserting = 0
        self._replays: dict[Job, Replay] = {}
        self._room = StreamRoom()
        self._idle: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, job: Job) -> None:
        """Answer a job, or queue it. In any case its `respond` is called."""
        begun_ns = time.monotonic_ns()
        self._jobs[job] = None
        size = 0
        for tensor in job.tensors:
            size += tensor[4]
        self._cache.post(partial(self._look, job), partial(self._looked, job, begun_ns), size)

    def cancel(self, job: Job) -> bool:
        """Cancel a job in lookup, or in replay. False if the job is neither."""
        if job in self._jobs:
            job.cancelled = True
            return True
        replay = self._replays.get(job)
        if replay is None:
            return False
        job.cancelled = True
        replay.fail(InferenceError("", Code.CANCELLED))
        return True

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no lookup, insertion or replay is left, or for `timeout_s` seconds."""
        if self._is_idle:
            return
        self._idle = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def fail_replays(self, failure: InferenceError) -> None:
        """End all replays, whose clients take too long."""
        for replay in list(self._replays.values()):
            replay.fail(failure)

    def _look(self, job: Job) -> Found:
        """Look up a job. Runs on a thread."""
        model = self._model
        wanted = job.options.requested_outputs
        outputs = model.spec.outputs if wanted is None else wanted
        key = request_key(model.spec.name, model.version, outputs, _inputs(job, model.memory))
        try:
            entry = self._cache.lookup(key)
            if entry is None:
                return key, None
            return key, decode_stream(entry) if model.spec.decoupled else [decode(entry)]
        except (self._cache.failure, ValueError) as exc:
            _LOG.error("%s: lookup of a response of '%s' failed: %s", self._cache.name, model.spec.name, exc.args[-1])
            return key, None

    def _looked(self, job: Job, begun_ns: int, done: asyncio.Future[Found]) -> None:
        took_ns = time.monotonic_ns() - begun_ns
        if not self._is_ordered:
            del self._jobs[job]
            self._go_on(job, begun_ns, took_ns, done)
            return
        self._jobs[job] = partial(self._go_on, job, begun_ns, took_ns, done)
        while self._jobs:
            first, following = next(iter(self._jobs.items()))
            if following is None:
                return
            del self._jobs[first]
            following()

    def _go_on(self, job: Job, begun_ns: int, took_ns: int, done: asyncio.Future[Found]) -> None:
        """Answer or queue a job that was looked up."""
        if job.cancelled:
            self._fail(job, InferenceError("", Code.CANCELLED), FailureReason.CANCELED)
        elif (problem := done.exception()) is not None:
            self._fail(job, InferenceError(str(problem)), FailureReason.OTHER)
        else:
            key, responses = done.result()
            if responses is None:
                self._execute(job, key, took_ns)
            elif self._model.spec.decoupled:
                self._replay(job, responses, begun_ns, took_ns)
            else:
                (outputs,) = responses
                assert outputs is not None  # by `_look`
                self._answer(job, key, outputs, begun_ns, took_ns)
        self._note_if_idle()

    def _answer(self, job: Job, key: str, outputs: list[OutputTensor], begun_ns: int, took_ns: int) -> None:
        try:
            response = self._response(job, outputs, key)
        except InferenceError as exc:
            self._fail(job, exc, FailureReason.OTHER)
            return
        arrived_ns = job.arrived_ns
        self._model.statistics.cache_hit(begun_ns - arrived_ns, took_ns, time.monotonic_ns() - arrived_ns)
        self._model.take_turn(job)
        job.free()
        job.respond(response, True)

    def _response(self, job: Job, outputs: list[OutputTensor], key: str = "") -> InferResponse:
        """The response of the entry with a key, "" for one of a stream.

        Raises InferenceError if the client's memory is too small.
        """
        name, version = self._model.spec.name, self._model.version
        if job.client is None and key:
            return CachedResponse(name, version, job.id, outputs, key=key)
        # The contents of a client's memory are not known by the bytes of its requests.
        response = InferResponse(name, version, job.id, outputs)
        return response if job.client is None else put_in_place(response, job.client)

    def _replay(self, job: Job, stream: list[Outputs], begun_ns: int, took_ns: int) -> None:
        statistics, arrived_ns = self._model.statistics, job.arrived_ns

        def ended(failure: InferenceError | None) -> None:
            del self._replays[job]
            total_ns = time.monotonic_ns() - arrived_ns
            if failure is None:
                statistics.cache_hit(begun_ns - arrived_ns, took_ns, total_ns)
            else:
                statistics.failure(total_ns, FailureReason.CANCELED if job.cancelled else FailureReason.OTHER)
            self._note_if_idle()

        self._model.take_turn(job)
        job.free()
        replay = self._replays[job] = Replay(job, stream, partial(self._response, job), ended)
        replay.go_on()

    def _execute(self, job: Job, key: str, took_ns: int) -> None:
        if self._model.spec.decoupled:
            on_end = partial(self._insert_stream, key, took_ns)
            relay: Relay = StreamKeeper(job.respond, job, self._cache, self._room, on_end)
        else:
            relay = _Keeper(job.respond, partial(self._insert, key, took_ns))
        job.respond = relay
        try:
            self._model.queue(job)
        except InferenceError as exc:
            relay.client(exc, True)

    def _insert_stream(self, key: str, took_ns: int, entry: bytes | None, then: Callable[[], None]) -> None:
        """Insert a stream, None for one that is not to be kept, and then call `then`."""
        self._insert(key, took_ns, None if entry is None else lambda: entry, 0 if entry is None else len(entry), then)

    def _insert(
        self, key: str, took_ns: int, encoded: Callable[[], bytes] | None, size: int, then: Callable[[], None]
    ) -> None:
        """Count a miss, insert what `encoded` returns, about `size` bytes, and then call `then`."""
        statistics = self._model.statistics
        if encoded is None:
            statistics.cache_miss(took_ns)
            then()
            return
        begun_ns = time.monotonic_ns()

        def inserted(done: asyncio.Future[None]) -> None:
            self._inserting -= 1
            if (problem := done.exception()) is not None:
                name = self._model.spec.name
                reason = problem.args[-1] if problem.args else problem
                _LOG.error("%s: a response of '%s' was not inserted: %s", self._cache.name, name, reason)
            statistics.cache_miss(took_ns + time.monotonic_ns() - begun_ns)
            then()
            self._note_if_idle()

        self._inserting += 1
        self._cache.post(lambda: self._cache.insert(key, encoded()), inserted, size)

    @property
    def _is_idle(self) -> bool:
        return not self._jobs and not self._inserting and not self._replays

    def _note_if_idle(self) -> None:
        if self._idle is not None and self._is_idle:
            self._idle.set()

    def _fail(self, job: Job, failure: InferenceError, reason: FailureReason) -> None:
        self._model.statistics.failure(time.monotonic_ns() - job.arrived_ns, reason)
        job.free()
        job.respond(failure, True)


class _Keeper(Relay):
    """Has a response inserted before it is passed on. `insert` is CachedRequests._insert from `encoded` on."""

    __slots__ = ("_insert",)

    def __init__(
        self, client: Respond, insert: Callable[[Callable[[], bytes] | None, int, Callable[[], None]], None]
    ) -> None:
        super().__init__(client)
        self._insert = insert

    def __call__(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        encoded, size = None, 0
        # The client may change outputs in its shared memory at any time.
        if isinstance(outcome, InferResponse) and all(output.place is None for output in outcome.outputs):
            outputs = outcome.outputs
            encoded, size = partial(encode, outputs), sum(output.byte_size for output in outputs)
            keep_open(outcome)
        self._insert(encoded, size, partial(self.client, outcome, final))


def _inputs(job: Job, memory: RequestMemory) -> list[tuple[str, str, list[int], bytes | memoryview]]:
    """The inputs of a request, in any kind of memory. The contents may be shorter for client memory that has shrunk."""
    regions: dict[int, GrantedRegion] = {each.number: each for each in job.regions} if job.regions else {}
    inputs: list[tuple[str, str, list[int], bytes | memoryview]] = []
    for name, datatype, shape, at, size, _, _ in job.tensors:
        if isinstance(at, bytes):
            inputs.append((name, datatype, shape, at))
            continue
        number, offset = split(at)
        region = regions.get(number, memory.region)
        if isinstance(region, ClientRegion):
            inputs.append((name, datatype, shape, region.read(offset, size)))
        else:
            assert isinstance(region, SharedRegion)  # what lay on a GPU was copied before
            inputs.append((name, datatype, shape, region.view[offset : offset + size]))
    return inputs

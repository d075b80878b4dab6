# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Passes the requests of one model version through the response cache.

It looks up each request before the request queues. A hit is answered at once; a miss is executed, and answered after
its response is inserted. A failure of the cache is logged, and the request is executed as if there were no cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Protocol

from pyruntime.runtime.caching.cache import ResponseCache
from pyruntime.runtime.caching.entry import decode, encode
from pyruntime.runtime.caching.key import request_key
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.memory.client_outputs import put_in_place
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.observe.statistics import FailureReason, ModelStatistics
from pyruntime.runtime.regions import ClientRegion, GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import Code, InferenceError

_LOG = logging.getLogger("pyruntime.caching")

# A key, and the outputs in its entry, None for a miss.
Found = tuple[str, list[OutputTensor] | None]


class Model(Protocol):
    """The version whose requests they are."""

    spec: ModelSpec
    version: int
    memory: RequestMemory
    statistics: ModelStatistics

    def queue(self, job: Job) -> None:
        """Queue a job. Raises InferenceError, and then frees its memory."""


class CachedRequests:
    """See the module."""

    def __init__(self, cache: ResponseCache, model: Model) -> None:
        self._cache = cache
        self._model = model
        # The jobs in lookup, and the number of responses in insertion.
        self._jobs: set[Job] = set()
        self._inserting = 0
        self._idle: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, job: Job) -> None:
        """Answer a job, or queue it. In any case its `respond` is called."""
        begun_ns = time.monotonic_ns()
        self._jobs.add(job)
        size = sum(tensor[4] for tensor in job.tensors)
        self._cache.post(lambda: self._look(job), lambda done: self._looked(job, begun_ns, done), size)

    def cancel(self, job: Job) -> bool:
        """Cancel a job in lookup. False if the job is not in lookup."""
        if job not in self._jobs:
            return False
        job.cancelled = True
        return True

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no lookup or insertion is left, or for `timeout_s` seconds."""
        if not self._jobs and not self._inserting:
            return
        self._idle = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    def _look(self, job: Job) -> Found:
        """Look up a job. Runs on a thread."""
        model = self._model
        wanted = job.options.requested_outputs
        key = request_key(
            model.spec.name,
            model.version,
            model.spec.outputs if wanted is None else wanted,
            [
                (name, datatype, shape, _contents(job, model.memory, at, size))
                for name, datatype, shape, at, size, _, _ in job.tensors
            ],
        )
        try:
            entry = self._cache.lookup(key)
            return key, None if entry is None else decode(entry)
        except (self._cache.failure, ValueError) as exc:
            _LOG.error("%s: lookup of a response of '%s' failed: %s", self._cache.name, model.spec.name, exc.args[-1])
            return key, None

    def _looked(self, job: Job, begun_ns: int, done: asyncio.Future[Found]) -> None:
        self._jobs.discard(job)
        self._note_if_idle()
        if job.cancelled:
            self._fail(job, InferenceError("", Code.CANCELLED), FailureReason.CANCELED)
        elif (problem := done.exception()) is not None:
            self._fail(job, InferenceError(str(problem)), FailureReason.OTHER)
        else:
            key, outputs = done.result()
            took_ns = time.monotonic_ns() - begun_ns
            if outputs is not None:
                self._answer(job, outputs, begun_ns, took_ns)
            else:
                self._execute(job, key, took_ns)

    def _answer(self, job: Job, outputs: list[OutputTensor], begun_ns: int, took_ns: int) -> None:
        model = self._model
        response = InferResponse(model.spec.name, model.version, job.id, outputs)
        if job.client is not None:
            try:
                response = put_in_place(response, job.client)
            except InferenceError as exc:
                self._fail(job, exc, FailureReason.OTHER)
                return
        arrived_ns = job.arrived_ns
        model.statistics.cache_hit(begun_ns - arrived_ns, took_ns, time.monotonic_ns() - arrived_ns)
        job.free()
        job.respond(response, True)

    def _execute(self, job: Job, key: str, took_ns: int) -> None:
        respond = job.respond
        job.respond = self._keeping(respond, key, took_ns)
        try:
            self._model.queue(job)
        except InferenceError as exc:
            respond(exc, True)

    def _note_if_idle(self) -> None:
        if self._idle is not None and not self._jobs and not self._inserting:
            self._idle.set()

    def _fail(self, job: Job, failure: InferenceError, reason: FailureReason) -> None:
        self._model.statistics.failure(time.monotonic_ns() - job.arrived_ns, reason)
        job.free()
        job.respond(failure, True)

    def _keeping(self, respond: Respond, key: str, took_ns: int) -> Respond:
        """A function like `respond` that inserts a response into the cache before it passes it on."""

        def insert(outcome: InferResponse | InferenceError | None, final: bool) -> None:
            statistics = self._model.statistics
            if not isinstance(outcome, InferResponse) or any(output.place is not None for output in outcome.outputs):
                # The client may change outputs in its shared memory at any time.
                statistics.cache_miss(took_ns)
                respond(outcome, final)
                return
            response, begun_ns = outcome, time.monotonic_ns()

            def inserted(done: asyncio.Future[None]) -> None:
                self._inserting -= 1
                self._note_if_idle()
                if (problem := done.exception()) is not None:
                    name = self._model.spec.name
                    reason = problem.args[-1] if problem.args else problem
                    _LOG.error("%s: a response of '%s' was not inserted: %s", self._cache.name, name, reason)
                statistics.cache_miss(took_ns + time.monotonic_ns() - begun_ns)
                respond(response, final)

            self._inserting += 1
            size = sum(output.byte_size for output in response.outputs)
            self._cache.post(lambda: self._cache.insert(key, encode(response.outputs)), inserted, size)

        return insert


def _contents(job: Job, memory: RequestMemory, at: int | bytes, size: int) -> bytes | memoryview:
    """The contents of an input, in any kind of memory. May be shorter for client memory that has shrunk."""
    if isinstance(at, bytes):
        return at
    regions: dict[int, GrantedRegion] = {each.number: each for each in job.regions}
    number, offset = split(at)
    region = regions.get(number, memory.region)
    if isinstance(region, ClientRegion):
        return region.read(offset, size)
    return region.view[offset : offset + size]

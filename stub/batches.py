# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Executes batches: calls the model, answers, and keeps watch on what the model does not let go of.

A thread's batch is answered before it takes the next; the host relies on that when it decides, after a death, which
batches were running and which had not begun.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import time
import traceback
from typing import Any, Dict, Iterable, List, Set

from pyruntime.stub.client_memory import ClientOutputs
from pyruntime.stub.coroutines import Coroutines
from pyruntime.stub.input_lifetime import Retained
from pyruntime.stub.link import Link
from pyruntime.stub.loader import describe, trace
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.functions import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.responses import ResponseWriter, WrongResponses, check_responses
from pyruntime.stub.server import Server
from pyruntime.utils.errors import LocalError, PyruntimeError
from pyruntime.utils.messages import NO_SLOT, RESCHEDULED, SENDER, Failed, Infer, Result, Retired


class Batches:
    """See the module. `execute` may run in several threads at once, where the model is to have several."""

    def __init__(
        self,
        link: Link,
        writer: ResponseWriter,
        region: Any,
        name: str,
        root: str,
        outputs: Set[str],
        decoupled: bool,
    ) -> None:
        self.forked = False
        self.server: Server
        self._link = link
        self._writer = writer
        self._region = region
        # Set before the first batch; initialize may make calls before that.
        self.model: Any = None
        self._name = name
        self._root = root
        self._outputs = outputs
        self._decoupled = decoupled
        self._retained = Retained()
        self._lock = threading.RLock()
        self._running: Dict[int, int] = {}

    def waiting_batch(self) -> int:
        """The batch that waits when this thread does, 0 if there is none.

        What a thread of the model's own does, execute most likely waits for: unless the model is decoupled.
        """
        running = self._running
        batch = running.get(threading.get_ident(), 0)
        if not batch and not self._decoupled and len(running) == 1:
            batch = next(iter(running.values()), 0)
        return batch

    def is_running(self, batches: Iterable[int]) -> bool:
        """Whether execute has not returned from one of these."""
        return not set(batches).isdisjoint(list(self._running.values()))

    def execute(self, message: Infer, coroutines: Coroutines) -> None:
        """Execute one batch and answer it."""
        batch = message.batch
        region, outputs = self._region, self._outputs
        requests = [
            InferenceRequest._from_wire(region, wire, outputs, serial)
            for serial, wire in enumerate(message.requests, batch)
        ]
        ident = threading.get_ident()
        self._running[ident] = batch
        responses: Any = None
        failure = ""
        end_ns = 0
        start_ns = time.monotonic_ns()
        try:
            responses = self.model.execute(requests)
            if type(responses) is not list and inspect.iscoroutine(responses):
                if self._decoupled and coroutines.reads:
                    coroutines.run_in_background(self._finish(responses, requests))
                    responses = None
                else:
                    responses = coroutines.run(responses)
            end_ns = time.monotonic_ns()
            if self._decoupled:
                self._check_decoupled(responses)
            else:
                check_responses(responses, requests)
        except BaseException as exc:
            end_ns = end_ns or time.monotonic_ns()
            failure = self._failure(exc)
            traceback.clear_frames(exc.__traceback__)  # a coroutine's future and its traceback keep each other
        if self.forked:
            os._exit(0)  # the child of a fork has come back from execute: its work is done, and the answer is not its
        del self._running[ident]
        # From here on no traceback and no response of ours refers to the requests: only the model can.
        if failure:
            responses = None
            self._end_all(requests)
        else:
            if responses is None:
                responses = [None] * len(requests)
            wire = [self._answer(response, request) for response, request in zip(responses, requests)]
            responses = None
        held = self._retained.look(batch, requests)  # from here: it counts references to the list
        for serial in held:
            _keep(requests[serial - batch])
        retained = [serial - batch for serial in held]
        if failure:
            self._link.send(Failed(batch, failure, retained, start_ns, end_ns))
        else:
            self._send(Result(batch, wire, retained, start_ns, end_ns), requests)
        del requests
        if held:
            with self._lock:  # not sooner: a thread that lets go of one would tell the host before we have told it
                self._retained.watch(held)
        if len(self._retained):
            self.retire()

    def retire(self) -> None:
        """Tell the host of requests that the model holds no longer."""
        with self._lock:
            gone = self._retained.let_go() if len(self._retained) else []
        if gone and not self._link.closed:
            with contextlib.suppress(LocalError):  # the stub has just said that it stops, and nobody has to know
                self._link.send(Retired(gone))

    def _end_all(self, requests: List[InferenceRequest]) -> None:
        for request in requests:
            self._end(request)

    def _fail_all(self, requests: List[InferenceRequest], failure: str) -> None:
        for request in requests:
            if request._stream is not None:
                request._stream.fail(failure)

    def _end(self, request: InferenceRequest) -> bool:
        """From here on no sender answers this request. False if one has done so already."""
        if not request._end():
            return False
        if request._stream is not None:
            self.server.ended(request._serial)
        return True

    def _answer(self, response: Any, request: InferenceRequest) -> Any:
        """What stands in a Result for one request."""
        if response is not None:
            if self._end(request):
                return self._writer.write(response, request._outputs)
            LOGGER.warning("execute returned a response to a request that its sender had answered; it is dropped")
            return SENDER
        if request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE and self._end(request):
            return RESCHEDULED
        # Whoever still has the request can get a sender of it; if nobody has, the stream ends at once.
        request._get_stream(self.server).begin()
        return SENDER

    def _send(self, result: Result, requests: List[InferenceRequest]) -> None:
        try:
            self._link.send(result)
        except PyruntimeError as exc:  # a result with more text than a frame holds
            self._writer.free([each[2] for each in result.responses if type(each) is list and each[2] != NO_SLOT])
            self._end_all(requests)
            text = f"Failed to process the request(s) for model '{self._name}', message: {exc}"
            self._link.send(Failed(result.batch, text, result.retained, result.start_ns, result.end_ns))

    def _check_decoupled(self, responses: Any) -> None:
        if responses is not None:
            raise WrongResponses(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )

    async def _finish(self, coroutine: Any, requests: List[InferenceRequest]) -> None:
        """The rest of an execute that has returned as far as the host is concerned."""
        try:
            self._check_decoupled(await coroutine)
        except BaseException as exc:
            failure = self._failure(exc)
            traceback.clear_frames(exc.__traceback__)
            self._fail_all(requests, failure)
        requests.clear()
        self.retire()

    def _failure(self, exc: BaseException) -> str:
        """Log an exception of execute in full; what the clients read of it."""
        if isinstance(exc, WrongResponses):
            cause = str(exc)
            LOGGER.error("execute failed: %s", cause)
        else:
            LOGGER.error("execute failed\n%s", trace(exc))
            cause = describe(exc, self._root)
        return f"Failed to process the request(s) for model '{self._name}', message: {cause}"


def _keep(request: InferenceRequest) -> None:
    """Let the client do with its memory what it likes: the model holds on to the request."""
    outputs = request._outputs
    if type(outputs) is ClientOutputs:
        outputs.memory.keep()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ModelStreamInfer: any number of requests, and any number of responses to each.

Responses of models that are not decoupled keep the order of the requests; those of decoupled models are sent as they
come. A response is released when the client's windows have let all of it pass. As a model has a limited number of
unreleased responses, a slow client slows it down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.classification import classified
from pyruntime.runtime.frontends.common.compression import compress
from pyruntime.runtime.frontends.grpc.call import Connection, Raws
from pyruntime.runtime.frontends.grpc.call_request import CallRequest, Outcome
from pyruntime.runtime.frontends.grpc.head import CallHead, response_encoding
from pyruntime.runtime.frontends.grpc.infer_response import (
    Parts,
    empty_final,
    encode_error_event,
    encode_infer_event,
)
from pyruntime.runtime.frontends.grpc.inferring_call import InferringCall
from pyruntime.runtime.frontends.grpc.status import STATUS_OF, Status, encoded_head
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError

# Concurrent requests of one stream. Further ones wait at the client once its window is full.
REQUESTS_MAX = 1024
# Bytes that may wait for a client that does not read. Models stop far earlier, but errors do not: these end the stream.
WAITING_BYTES_MAX = 256 << 20


class StreamInferCall(InferringCall):
    """See the module."""

    is_stream = True
    _client_ended = False
    _held = False
    _draining = False
    # The model of the request that ended last.
    _last_model: ModelVersion | None = None

    def __init__(self, state: ServerState, connection: Connection, stream: int, head: CallHead) -> None:
        super().__init__(state, connection, stream, head)
        # All requests in flight, and those of them that are answered in order.
        self._requests: set[CallRequest] = set()
        self._ordered: deque[CallRequest] = deque()
        self._ends_at_error = self._head.metadata.get("triton_grpc_error") == "true"
        self._encoding = response_encoding(self._state.settings.grpc_compression_level, self._head)
        if self._encoding is not None:
            self._head_of_response = encoded_head(self._encoding[0])

    # Events of the client.

    def ended(self) -> None:
        """See Call."""
        self._client_ended = True
        self._end_if_done()

    @property
    def is_idle(self) -> bool:
        """See Call."""
        return not self._requests and self._unpacking is None and self._reservation is None

    def drain(self) -> None:
        """See Call."""
        self._draining = True
        self._end_if_done()

    # Requests.

    def message(self, message: bytes, ended: bool) -> None:
        """See Call."""
        if self._unpacking is None and len(message) <= LARGE_BYTES:
            self.receive(message)
            if ended and not self._over:
                self.ended()
        else:
            self._arrived(message, "", ended)

    def _arrived(self, message: bytes, encoding: str, ended: bool) -> None:
        if ended:
            self._client_ended = True
        self._unpack(message, encoding)
        self._hold_or_resume()

    def hold_back(self) -> Callable[[], None]:
        """See InferringCall. The client may send no more than its window meanwhile."""
        unpacking = self._begin_unpacking()
        unpacking.pause()
        self._hold_or_resume()
        return unpacking.resume

    def all_unpacked(self) -> None:
        """See InferringCall."""
        super().all_unpacked()
        self._hold_or_resume()
        self._end_if_done()

    def placed(self, meta: bytes, raws: Raws, ended: bool) -> None:
        """See Call."""
        self._receive_placed(meta, raws)
        if ended and not self._over:
            self.ended()

    def reject(self, request: CallRequest, failure: InferenceError) -> None:
        """See InferringCall. The error does not overtake the responses to earlier requests."""
        request.free()
        if request.job is None:  # otherwise its model refused to queue it
            request.model = None
            if request not in self._requests:
                self._begin_request(request)
            elif not request.in_order:
                request.in_order = True
                self._ordered.append(request)
        self.respond(request, failure, True)

    def _begin_request(self, request: CallRequest) -> None:
        self._state.in_flight += 1
        self._requests.add(request)
        if request.model is None or not request.model.spec.decoupled:
            request.in_order = True
            self._ordered.append(request)
        if len(self._requests) >= REQUESTS_MAX and not self._held:
            self._hold_or_resume()

    def _end_request(self, request: CallRequest) -> None:
        self._requests.discard(request)
        self._state.end_request()
        if self._held and len(self._requests) < REQUESTS_MAX:
            self._hold_or_resume()

    def _hold_or_resume(self) -> None:
        """Have the client stop if too much of what it sent waits, or go on."""
        held = len(self._requests) >= REQUESTS_MAX or self._unpacking is not None
        if held is self._held or self._over:
            return
        self._held = held
        session = self._connection.session
        if held:
            session.hold(self._stream)
        else:
            session.resume(self._stream)
            self._connection.said()

    # Responses.

    def respond(self, request: CallRequest, outcome: Outcome, final: bool) -> None:
        """See InferringCall."""
        if final:
            request.job = None  # it refers to us
        if self._over:
            if isinstance(outcome, InferResponse):
                outcome.release()
            return
        if not request.in_order:
            self._send(request, outcome, final)
            return
        request.outcome = outcome
        ordered = self._ordered
        while ordered and ordered[0].outcome is not None and not self._over:
            first = ordered.popleft()
            outcome, first.outcome = first.outcome, None
            self._send(first, outcome, True)

    def _send(self, request: CallRequest, outcome: Outcome, final: bool) -> None:
        session, stream = self._connection.session, self._stream
        if final:
            self._last_model = request.model
            self._end_request(request)
        self._begin()
        if isinstance(outcome, InferResponse) and request.model is not None:
            try:
                classes = request.options.classes
                answer = classified(outcome, classes, request.model.spec) if classes else outcome
                self._write(encode_infer_event(answer, final), outcome.release)
            except InferenceError as exc:
                outcome.release()
                outcome = exc
        elif outcome is None and final and request.options.empty_final_response and request.model is not None:
            self._write(empty_final(request.model.spec.name, request.model.version, request.id), None)
        if isinstance(outcome, InferenceError):
            if self._ends_at_error:
                self.fail(STATUS_OF[outcome.code], outcome.message)
                return
            said_final = None if request.model is None else final
            event = encode_error_event(outcome.message, *request.model_name, request.id, said_final)
            release = self._count_unread(len(event))
            if release is None:
                return
            self._write([event], release)
            if session.queued(stream) > WAITING_BYTES_MAX:
                self.fail(Status.RESOURCE_EXHAUSTED, f"more than {WAITING_BYTES_MAX} bytes wait for the client")
                return
        self._end_if_done()
        self._connection.said()

    def _write(self, parts: Parts, release: Callable[[], None] | None) -> None:
        session = self._connection.session
        if self._encoding is None:
            session.message(self._stream, parts, release)
            return
        # Released only once sent, although it was copied: otherwise a model would go on for a client that does not
        # read.
        session.message(self._stream, [compress(b"".join(parts), *self._encoding)], release, True)

    def _end_if_done(self) -> None:
        if self._requests or self._over or self._unpacking is not None:
            return
        if self._client_ended:
            self._begin()
            self._leave()
            self._connection.session.end(self._stream, self._ok_trailers(self._last_model))
            self._connection.said()
        elif self._draining and self._reservation is None:
            self._end_idle()

    # The end.

    def _cancel(self) -> None:
        self._free()
        requests, self._requests = self._requests, set()
        self._ordered.clear()
        for request in requests:
            job, request.job = request.job, None
            if isinstance(request.outcome, InferResponse):
                request.outcome.release()
            if job is not None and request.model is not None:
                request.model.cancel(job)
            self._state.end_request()

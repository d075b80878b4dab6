# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ModelInfer: one request, one response."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyruntime.runtime.caching.answers import PreparedAnswers, Repeatable
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.classification import classified
from pyruntime.runtime.frontends.common.compression import compress
from pyruntime.runtime.frontends.grpc.call import Place, Raws
from pyruntime.runtime.frontends.grpc.call_request import CallRequest, Outcome
from pyruntime.runtime.frontends.grpc.head import Encoding, response_encoding
from pyruntime.runtime.frontends.grpc.infer_response import Parts, encode_any, encode_infer
from pyruntime.runtime.frontends.grpc.inferring_call import InferringCall
from pyruntime.runtime.frontends.grpc.repeated_requests import RepeatedResponse, is_repeatable, request_key
from pyruntime.runtime.frontends.grpc.status import HEAD, OK_TRAILERS, STATUS_OF, Status, encoded_head
from pyruntime.runtime.frontends.grpc.unpacking import LARGE_BYTES
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.threads import ANSWERED_AT_ONCE_MAX, at_once, in_thread
from pyruntime.runtime.native.plain import write_message
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError

_SECOND = "a call of one request has a second message"


class InferCall(InferringCall):
    """See the module."""

    _request: CallRequest | None = None
    # What an equal request is known by, if an answer to it may be prepared.
    _repeatable: Repeatable | None = None
    # Whether the request counts as in flight: once its message is complete. Before, only its client waits for it.
    _counted = False

    @property
    def waits_for_client(self) -> bool:
        """See Call."""
        return not self._counted

    def message(self, message: bytes, ended: bool) -> None:
        """See Call."""
        if self._counted:
            self.fail(Status.INTERNAL, _SECOND)
            return
        self._counted = True
        self._state.in_flight += 1
        if len(message) > LARGE_BYTES:
            self._unpack(message, "")
        else:
            self.receive(message)

    def _arrived(self, message: bytes, encoding: str, ended: bool) -> None:
        if self._counted:
            self.fail(Status.INTERNAL, _SECOND)
            return
        self._counted = True
        self._state.in_flight += 1
        self._unpack(message, encoding)

    def place(self, meta: bytes, left: int) -> Place:
        """See Call."""
        if self._counted:
            self.fail(Status.INTERNAL, _SECOND)
            return False
        return super().place(meta, left)

    def placed(self, meta: bytes, raws: Raws, ended: bool) -> None:
        """See Call."""
        self._counted = True
        self._state.in_flight += 1
        self._receive_placed(meta, raws)

    def ended(self) -> None:
        """See Call."""
        if not self._counted:
            self.fail(Status.INTERNAL, "a call of one request has no message")

    def drain(self) -> None:
        """See Call. A call that already holds memory for its message goes on."""
        if not self._counted and self._reservation is None:
            self._end_idle()

    def _is_answered(self, answers: PreparedAnswers, message: bytes, id: str) -> bool:
        """See InferringCall."""
        if not is_repeatable(self._state, self._head, id, len(message)):
            return False
        key = request_key(message)
        if key is None:
            return False
        answer = answers.find(key)
        if answer is None:
            self._repeatable = Repeatable(key, id, len(message))
            return False
        self._connection.repeats(self._head.packed)
        self._connection.session.respond(self._stream, HEAD, answer.parts(id), OK_TRAILERS)
        self._end()
        return True

    def _begin_request(self, request: CallRequest) -> None:
        self._request = request

    def reject(self, request: CallRequest, failure: InferenceError) -> None:
        """See InferringCall."""
        request.free()
        self._request = None
        self.fail(STATUS_OF[failure.code], failure.message)

    def respond(self, request: CallRequest, outcome: Outcome, final: bool) -> None:
        """See InferringCall."""
        assert outcome is not None  # models that answer with nothing, or more than once, are refused
        self._request = request.job = None  # each of them refers to us
        if isinstance(outcome, InferenceError):
            self.fail(STATUS_OF[outcome.code], outcome.message)
            return
        if self._over:
            outcome.release()
            return
        level = self._state.settings.grpc_compression_level
        encoding = None if level == "none" else response_encoding(level, self._head)
        if encoding is not None or request.options.classes or self._head.load_format:
            self._make_answer(request, outcome, encoding)
            return
        parts = write_message(outcome, None) if self._repeatable is None else None
        if parts is None:
            try:
                parts = encode_any(outcome)
            except InferenceError as exc:
                outcome.release()
                self.fail(STATUS_OF[exc.code], exc.message)
                return
        if self._repeatable is not None:
            self._prepare(request, outcome, parts)
        self._connection.session.respond(self._stream, HEAD, parts, OK_TRAILERS, outcome.release)
        self._end()

    def _prepare(self, request: CallRequest, response: InferResponse, parts: Parts) -> None:
        """Prepare the answer to equal requests. `response` is in `parts`, encoded with an id."""
        assert self._repeatable is not None  # the caller looks
        assert request.model is not None  # it has answered
        answers = request.model.answers
        if answers is not None:
            # The id is the second part.
            common = [parts[0], *parts[2:]] if response.id else parts
            answers.prepare(self._repeatable, response, sum(map(len, common)), partial(RepeatedResponse, common))

    def _make_answer(self, request: CallRequest, response: InferResponse, encoding: Encoding | None) -> None:
        """Classify or compress a response, in a thread if it is large, and answer with the result."""
        assert request.model is not None  # it has answered
        work = partial(_make_parts, response, request.options.classes, request.model.spec, encoding)
        then = partial(self._answer, request.model, response, encoding)
        if sum(output.byte_size for output in response.outputs) > ANSWERED_AT_ONCE_MAX:
            in_thread(self._state.tasks, work, then, "make a response")
        else:
            at_once(work, then)

    def _answer(
        self, model: ModelVersion, response: InferResponse, encoding: Encoding | None, parts: Parts | InferenceError
    ) -> None:
        if isinstance(parts, InferenceError):
            response.release()
            self.fail(STATUS_OF[parts.code], parts.message)
            return
        if self._over:
            response.release()
            return
        session, stream = self._connection.session, self._stream
        session.begin(stream, HEAD if encoding is None else encoded_head(encoding[0]))
        session.message(stream, parts, response.release, encoding is not None)
        session.end(stream, self._ok_trailers(model))
        self._end()

    def _end(self) -> None:
        self._over = True
        if self._end_deadline is not None:
            self._end_deadline()
        self._counted = False
        self._connection.answered(self._stream)
        self._state.end_request()

    def _cancel(self) -> None:
        self._free()
        request, self._request = self._request, None
        if request is not None and request.job is not None and request.model is not None:
            request.model.cancel(request.job)
        self._end_count()

    def _end_count(self) -> None:
        if self._counted:
            self._counted = False
            self._state.end_request()


def _make_parts(
    response: InferResponse, classes: Mapping[str, int], spec: ModelSpec, encoding: Encoding | None
) -> Parts:
    """Encode a response, with classes in place of some outputs, and compress it."""
    parts = encode_infer(classified(response, classes, spec) if classes else response)
    return parts if encoding is None else [compress(b"".join(parts), *encoding)]

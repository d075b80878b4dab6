# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""ModelInfer: one request, one response."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.classification import classified
from pyruntime.runtime.frontends.common.compression import compress
from pyruntime.runtime.frontends.common.threads import at_once, in_thread
from pyruntime.runtime.frontends.grpc.infer_request import PLAIN, InferOptions, Target
from pyruntime.runtime.frontends.grpc.infer_response import Parts, encode_infer
from pyruntime.runtime.frontends.grpc.inferring_call import InferringCall
from pyruntime.runtime.frontends.grpc.response_encoding import Encoding, response_encoding
from pyruntime.runtime.frontends.grpc.status import HEAD, OK_TRAILERS, STATUS_OF, Status, encoded_head
from pyruntime.runtime.frontends.http.infer_exchange import ANSWERED_AT_ONCE_MAX
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling.job import Job, Respond
from pyruntime.utils.errors import Code, InferenceError

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"
_SECOND = "a call of one request has a second message"


class InferCall(InferringCall):
    """See the module."""

    _options: InferOptions = PLAIN
    _model: ModelVersion | None = None
    _job: Job | None = None
    # From its message on the request is in flight. Before, while it comes in, nobody waits for it but its client.
    _counted = False

    def _resolve(self, target: Target) -> ModelVersion:
        model = super()._resolve(target)
        if model.spec.decoupled:
            raise InferenceError(_DECOUPLED, Code.UNSUPPORTED)
        return model

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
        super().message(message, False)

    def place(self, meta: bytes, left: int) -> memoryview | Literal[False] | None:
        """See Call."""
        if self._counted:
            self.fail(Status.INTERNAL, _SECOND)
            return False
        return super().place(meta, left)

    def placed(self, meta: bytes, raws: tuple[tuple[int, int], ...], ended: bool) -> None:
        """See Call."""
        self._counted = True
        self._state.in_flight += 1
        super().placed(meta, raws, False)

    def ended(self) -> None:
        """See Call."""
        if not self._counted:
            self.fail(Status.INTERNAL, "a call of one request has no message")

    def drain(self) -> None:
        """See Call. A large message that is coming in is waited for by its model."""
        if not self._counted and self._expecting is None:
            self.fail(Status.UNAVAILABLE, "Server exiting")

    def _respond_to(self, model: ModelVersion, id: str, options: InferOptions) -> Respond:
        self._options = options
        return self._done

    def _started(self, model: ModelVersion, job: Job) -> None:
        self._model, self._job = model, job
        model.start(job)

    def _refuse(self, name: str, id: str, failure: InferenceError, version: str = "") -> None:
        self._job = None
        self.fail(STATUS_OF[failure.code], failure.message)

    def _done(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        assert outcome is not None  # models that answer with nothing, or more than once, are refused
        self._job = None  # it refers to us
        if isinstance(outcome, InferenceError):
            self.fail(STATUS_OF[outcome.code], outcome.message)
            return
        if self._over:
            outcome.release()
            return
        encoding = response_encoding(self._state.settings.grpc_compression_level, self._head)
        if encoding is not None or self._options.classes:
            self._make_answer(outcome, encoding)
            return
        try:
            parts = encode_infer(outcome)
        except InferenceError as exc:
            outcome.release()
            self.fail(STATUS_OF[exc.code], exc.message)
            return
        self._connection.session.respond(self._stream, HEAD, parts, OK_TRAILERS, outcome.release)
        self._end()

    def _make_answer(self, response: InferResponse, encoding: Encoding | None) -> None:
        """Answer with a response whose contents have to be gone through first."""
        assert self._model is not None  # it has answered
        work = partial(_make_parts, response, self._options.classes, self._model.spec, encoding)
        then = partial(self._answer, response, encoding)
        if sum(output.byte_size for output in response.outputs) > ANSWERED_AT_ONCE_MAX:
            in_thread(self._state.tasks, work, then, "make a response")
        else:
            at_once(work, then)

    def _answer(self, response: InferResponse, encoding: Encoding | None, parts: Parts | InferenceError) -> None:
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
        session.end(stream, OK_TRAILERS)
        self._end()

    def _end(self) -> None:
        self._leave()
        self._end_count()
        self._connection.said()

    def _cancel(self) -> None:
        self._free()
        job, self._job = self._job, None
        if job is not None and self._model is not None:
            self._model.cancel(job)
        self._end_count()

    def _end_count(self) -> None:
        if self._counted:
            self._counted = False
            self._state.end_request()


def _make_parts(
    response: InferResponse, classes: Mapping[str, int], spec: ModelSpec, encoding: Encoding | None
) -> Parts:
    """The message of a response: with the classes of some outputs, and compressed."""
    parts = encode_infer(classified(response, classes, spec) if classes else response)
    return parts if encoding is None else [compress(b"".join(parts), *encoding)]

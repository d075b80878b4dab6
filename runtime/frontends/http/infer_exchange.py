# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of an inference: one request and one response, without copies of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX, PreparedAnswers, Repeatable
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.frontends.common.classification import classified
from pyruntime.runtime.frontends.common.compression import compress_all
from pyruntime.runtime.frontends.http.exchange import JOINED_BYTES_MAX
from pyruntime.runtime.frontends.http.json_large import LargeDocument
from pyruntime.runtime.frontends.http.json_pieces import LARGE_BYTES
from pyruntime.runtime.frontends.http.kserve_request import (
    ALL_BINARY,
    ALL_JSON,
    OutputOptions,
    decode_infer,
    output_options,
)
from pyruntime.runtime.frontends.http.kserve_response import encode_infer
from pyruntime.runtime.frontends.http.large_answer import large_body
from pyruntime.runtime.frontends.http.large_exchange import LargeExchange
from pyruntime.runtime.frontends.http.plain_answer import plain_answer
from pyruntime.runtime.frontends.http.repeated_requests import RepeatedResponse, repeatable, without_id
from pyruntime.runtime.frontends.http.response_head import infer_head, with_line
from pyruntime.runtime.inference.intake import Reservation
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.threads import ANSWERED_AT_ONCE_MAX, PARSED_AT_ONCE_MAX, at_once, in_thread
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.requests.types import InferRequest, InferResponse
from pyruntime.utils.errors import InferenceError

# A body in the heap is copied to request memory at once up to this size, in bytes: less than a millisecond's work.
COPIED_AT_ONCE_MAX = 1 << 20


class Answer(NamedTuple):
    """A body in parts. `document_length` is its Inference-Header-Content-Length in bytes, 0 for none.

    `encoding` is that of the body, "" for an uncompressed one.
    """

    document_length: int
    parts: list[bytes | memoryview]
    encoding: str = ""


class InferExchange(LargeExchange[OutputOptions]):
    """See the module."""

    options = ALL_JSON
    _reservation: Reservation | None = None
    # The bytes of a body in reserved memory that `direct_body` and `more_direct` gave memory for.
    _prepared = 0
    # The request's document, if a thread has parsed it.
    _document: Mapping[str, object] | None = None
    # What an equal request is known by, if an answer to it may be prepared.
    _repeatable: Repeatable | None = None

    # The request.

    def direct_body(self) -> memoryview | None:
        """See Exchange. A body with binary tensors goes to the request region of its model."""
        model, head = self._model, self.head
        lead, size = head.header_length, head.content_length
        if self._refusal is not None or model is None or lead is None or not 0 <= lead < size:
            return None
        if head.encoding:  # the size of the decompressed body is unknown
            return None
        if model.answers is not None and size <= REQUEST_BYTES_MAX:
            return None  # the cache may have the answer
        try:
            self._reservation = self._state.intake.reserve(model, size, size, lead)
        except InferenceError as exc:
            self._refusal = exc
        return None if self._reservation is None else self.more_direct()

    def more_direct(self) -> memoryview | None:
        """See Exchange."""
        assert self._reservation is not None  # it has the memory
        slot, begin = self._reservation.slot, self._prepared
        try:
            self._prepared = slot.grow(begin + 1)
        except InferenceError as exc:
            self._end_reservation().free()
            self._refusal = exc
            return None
        return slot.view[begin : self._prepared]

    def _act(self) -> None:
        """Queue the request, once its tensors are in request memory. Threads copy and parse what is large."""
        model, body, lead = self._model, self._body, self.head.header_length
        if self._reservation is not None:
            assert model is not None  # it gave the memory
            slot = self.slot = self._end_reservation()
            model.check_serving()
        else:
            if model is None or model.is_gone:  # it may have been replaced while the body came in
                model = self._find_model()
            if model.answers is not None and self._is_answered(model.answers):
                return
            if lead is not None and 0 <= lead < len(body):
                if len(body) > COPIED_AT_ONCE_MAX:
                    self._copy(model, body, lead)
                    return
                slot = self.slot = model.memory.allocate(len(body), lead, body)
            else:
                slot = None
        if slot is not None and self._claim is not None:
            slot = self.slot = self._count_slot(slot)
        length = len(body) if lead is None else lead
        if length > PARSED_AT_ONCE_MAX and (slot is not None or lead is None):
            self._parse(body if slot is None else slot.view[:length].tobytes())
            return
        if lead is not None and (slot is None or not lead):
            self._state.intake.submit(self, model)
        else:
            # The memory has the bytes of the body, which are faster to read where they were.
            base, memory = (0, body) if slot is None else (slot.offset, body or slot.view)
            plain = model.plain.read_document(memory, length, base, model.memory.allocate)
            if plain is None:
                self._state.intake.submit(self, model)
            else:
                if self.head.forwarded:
                    plain = plain.forwarding(self.head.forwarded)
                options = ALL_BINARY if plain.binary is True else output_options(plain.binary)
                self._state.intake.submit_plain(self, model, plain, options)
        # A slot may have taken over the claim, but never the turn.
        if self._claim is not None or self._turn is not None:
            self._end_claim()

    def _is_answered(self, answers: PreparedAnswers) -> bool:
        """Answer the request with what was prepared for it. Returns False if that is nothing."""
        request = repeatable(self._state, self.head, self._body)
        if request is None or not self.keep_alive:
            return False
        answer = answers.find(request.key)
        if answer is None:
            self._repeatable = request
            return False
        if self._claim is not None:
            self._end_claim()
        self.parts = answer.parts(request.id)
        head = self.head
        self.is_repeated = not (head.encoding or head.chunked or head.expects_continue)
        self._connection.answered()
        return True

    def _prepare(self, response: InferResponse, document_length: int, encoding: str = "") -> None:
        """Prepare the answer to equal requests. `response` is in `parts`, encoded with an id."""
        assert self._repeatable is not None  # the callers look
        assert self._model is not None  # it has answered
        answers, parts, length = self._model.answers, self.parts, self.length
        assert parts is not None  # they are made

        def make() -> RepeatedResponse:
            body = b"".join(parts)[-length:]
            return RepeatedResponse(*without_id(document_length, body, response.id), encoding)

        # The end of the connection may have been announced meanwhile.
        if answers is not None and self.keep_alive:
            answers.prepare(self._repeatable, response, self.length, make)

    def _copy(self, model: ModelVersion, body: bytes | bytearray, lead: int) -> None:
        """Copy a large body to request memory in a thread, and then act as if it had arrived there."""
        self._reservation = self._state.intake.reserve(model, 0, len(body), lead)
        assert self._reservation is not None  # no bytes are still to arrive
        slot = self._reservation.slot

        def copy() -> None:
            slot.commit()
            slot.fill(body)

        self._run(copy, self._copied, "copy a request")

    def _copied(self, _: None) -> None:
        self._body = b""
        self._end_turn()
        self._act()

    def _parse(self, text: bytes | bytearray) -> None:
        """Have threads read a large document, and parse its tensors into request memory; and then submit the request.

        The bytes of the document are in the heap, and are given back once the tensors are in request memory.
        """
        self._received = self._received or len(text)
        document = LargeDocument(text, lambda: self.is_unwanted)
        self._run(document.read, partial(self._reserve, document), "read a request")

    def _reserve(self, document: LargeDocument, nbytes: int) -> None:
        """Make room for what the tensors have more than the document, and for copies."""
        assert self._claim is not None  # it has its turn
        wanted = nbytes if self.slot is not None else max(nbytes - self._received, 0)
        if not wanted or self._claim.take_or_wait(wanted, partial(self._has_room, document, nbytes)):
            self._pack(document, nbytes)

    def _has_room(self, document: LargeDocument, nbytes: int, failure: InferenceError | None) -> None:
        try:
            if failure is not None:
                raise failure
            self._pack(document, nbytes)
        except InferenceError as exc:
            self.reject(exc)

    def _pack(self, document: LargeDocument, nbytes: int) -> None:
        assert self._model is not None  # or nothing had been read
        commit: Callable[[], None] | None = None
        if self.slot is not None:
            # Binary tensors are in request memory already. Those of the document are copied there.
            memory, base = memoryview(bytearray(nbytes)), -1
        elif not nbytes:
            memory, base = memoryview(b""), -1
        else:
            self._reservation = self._state.intake.reserve(self._model, 0, nbytes)
            assert self._reservation is not None  # no bytes are still to arrive
            slot = self._reservation.slot
            memory, base, commit = slot.view, slot.offset, slot.commit

        def pack() -> Mapping[str, object]:
            if commit is not None:
                commit()
            return document.pack(memory, base)

        self._run(pack, self._parsed, "parse a request")

    def _parsed(self, document: Mapping[str, object]) -> None:
        assert self._model is not None  # or nothing had been parsed
        if self._reservation is not None:
            self.slot = self._count_slot(self._end_reservation())
        self._model.check_serving()
        self._document = document
        self._submit(self._model)
        self._document = None

    def decode(self, model: ModelVersion) -> tuple[InferRequest, OutputOptions]:
        """See IncomingRequest."""
        slot, memory, length, document = self.slot, self._state.client_memory, self.head.header_length, self._document
        if document is not None and length is None:
            body, base = memoryview(b""), -1  # the tensors know where they are
        else:
            body, base = (memoryview(self._body), -1) if slot is None else (slot.view, slot.offset)
        return decode_infer(body, length, model.spec, memory, base=base, document=document)

    def _end_reservation(self) -> RequestSlot:
        reservation, self._reservation = self._reservation, None
        assert reservation is not None  # the callers look
        return reservation.end()

    def _free(self) -> None:
        if self._reservation is not None:
            self.slot = self._end_reservation()
        super()._free()

    # The response.

    def respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        assert outcome is not None  # models that answer with nothing, or more than once, are refused by the head
        self.job = None  # it refers to us
        if isinstance(outcome, InferenceError):
            self.reject(outcome)
        elif self.abandoned:
            outcome.release()
        elif self.head.response_encoding or self.head.load_format or not self._answer_plainly(outcome):
            self._make_answer(outcome)

    def _answer_plainly(self, response: InferResponse) -> bool:
        """Answer with a response that native code writes. Returns False if it does not."""
        lines = b"" if self.keep_alive and not self._says_to_stay else self._lines()
        answer = plain_answer(response, self.options, lines, JOINED_BYTES_MAX)
        if answer is None:
            return False
        self.parts, self.length, document_length = answer
        self.release = response.release
        if self._repeatable is not None:
            self._prepare(response, document_length)
        self._connection.answered()
        return True

    def _make_answer(self, response: InferResponse) -> None:
        """Encode a response, in a thread if that takes long, and answer with the result."""
        assert self._model is not None  # it has answered
        encoding = self.head.response_encoding
        if json_bytes(response, self.options) > LARGE_BYTES:
            begin = partial(large_body, response, self.options, self._model.spec, encoding)
            self._answer_in_pieces(response, begin, encoding)
            return
        work = partial(make_answer, response, self.options, self._model.spec, encoding)
        then = partial(self._answer, response)
        if costs_time(response, self.options, encoding, ANSWERED_AT_ONCE_MAX):
            in_thread(self._state.tasks, work, then, "make a response")
        else:
            at_once(work, then)

    def _answer(self, response: InferResponse, answer: Answer | InferenceError) -> None:
        if isinstance(answer, InferenceError):
            response.release()
            self.reject(answer)
            return
        if self.abandoned:
            response.release()
            return
        self.length = sum(map(len, answer.parts))
        head = infer_head(answer.document_length, self.length, self._lines(), answer.encoding)
        if self.head.load_format:
            head = with_line(head, self._load_report_line())
        self.parts = [head, *answer.parts]
        if self._repeatable is not None:
            self._prepare(response, answer.document_length, answer.encoding)
        if answer.encoding:
            response.release()
        else:
            self.release = response.release
        self._connection.answered()


def make_answer(response: InferResponse, options: OutputOptions, spec: ModelSpec, encoding: str) -> Answer:
    """The answer with outputs as `options` say, compressed with `encoding`.

    The parts of a compressed answer do not refer to the response's memory. Raises InferenceError as `classify` and
    `encode_infer`.
    """
    if options.classes:
        response = classified(response, options.classes, spec)
    document, document_length, binary = encode_infer(response, options)
    parts = [document, *binary]
    return Answer(document_length, [compress_all(parts, encoding)] if encoding else parts, encoding)


def json_bytes(response: InferResponse, options: OutputOptions) -> int:
    """The size of the contents that the answer has as JSON, in bytes, without those that become classes."""
    return sum(
        len(output.data)
        for output in response.outputs
        if output.place is None and output.name not in options.classes and not options.is_binary(output.name)
    )


def costs_time(response: InferResponse, options: OutputOptions, encoding: str, nbytes_max: int) -> bool:
    """Whether the answer converts or compresses more than `nbytes_max` bytes of contents."""
    nbytes = 0
    for output in response.outputs:
        if encoding or output.name in options.classes or not options.is_binary(output.name):
            nbytes += len(output.data)
    return nbytes > nbytes_max

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of an inference: one request, one response, and tensors that nobody copies in between."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from pyruntime.runtime.config.inputs import check_strings, has_many_strings
from pyruntime.runtime.frontends.common.forwarding import forward
from pyruntime.runtime.frontends.common.threads import at_once, in_thread
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.infer_answer import Answer, costs_time, make_answer
from pyruntime.runtime.frontends.http.json_large import parse_large
from pyruntime.runtime.frontends.http.known_exchange import know
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY, ALL_JSON, OutputOptions, decode_infer
from pyruntime.runtime.frontends.http.response_head import infer_head
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.requests.types import InferRequest, InferResponse, Slot
from pyruntime.utils.errors import InferenceError

# A document is parsed at once up to this size, in bytes: at most some ten milliseconds' work. A larger one is left to a
# thread.
PARSED_AT_ONCE_MAX = 128 << 10
# A response is put into words, classes or fewer bytes at once where it has no more bytes than this: at most a few
# milliseconds' work. A larger one is left to a thread.
ANSWERED_AT_ONCE_MAX = 64 << 10
# Memory that bodies have of which only the heads are there, of all requests together, in bytes. Beyond it a body has
# memory for what has come, and is copied when all of it is there: who only says that much will come must not have it.
EXPECTED_BYTES_MAX = 1 << 30


class InferExchange(Exchange):
    """See the module."""

    _executes = True
    _options: OutputOptions = ALL_JSON
    _slot: RequestSlot | None = None
    # The model waits for the body, which comes in to its memory.
    _expected = False

    def direct_body(self) -> memoryview | None:
        """The place in the request region of a body with binary tensors."""
        model, request = self._model, self._head
        lead = request.header_length
        if self._refusal is not None or model is None or lead is None or not 0 <= lead < request.content_length:
            return None
        if request.encoding:  # how much memory it needs is not known yet
            return None
        expected = self._state.expected_bytes
        if expected and expected + request.content_length > EXPECTED_BYTES_MAX:
            return None
        try:
            model.check_serving()
            self._slot = model.memory.allocate(request.content_length, lead)
        except InferenceError as exc:
            self._refusal = exc
            return None
        self._expected = True
        self._state.expected_bytes += request.content_length
        model.expect()
        return self._slot.view

    def _act(self) -> None:
        model = self._model
        assert model is not None  # or the request was refused
        if self._expected:
            self._arrived(model)
        elif model.is_gone:  # it was replaced while the body came in, or unloaded
            model = self._model = self._state.resolve(self._head.route.model, self._head.route.version)
        model.check_serving()
        lead, slot, forwarded = self._head.header_length, self._slot, self._head.forwarded
        if slot is None and lead is not None and 0 <= lead < len(self._body):
            slot = self._slot = model.memory.allocate(len(self._body), lead)
            slot.fill(self._body)
        length = len(self._body) if lead is None else lead
        if length > PARSED_AT_ONCE_MAX and (slot is not None or lead is None):
            text = bytes(self._body) if slot is None else slot.view[:length].tobytes()
            in_thread(self._state.tasks, partial(parse_large, text), self._parsed, "parse a request")
            return
        if slot is None or not lead:
            # There is nothing to remember where the body is JSON, or all contents.
            self._decode(model, None)
            return
        header = bytes(self._body[:lead]) if self._body else slot.view[:lead].tobytes()
        plan = None if forwarded else model.plans.find(header, slot.size)
        if plan is not None:
            if plan.known is not False:
                know(self._state, model, self._head, header, slot.size, plan)
            self._options = plan.options
            self._slot = None  # the job's from here on
            job = plan.job(slot, self._done, time.monotonic_ns())
        else:
            memory = self._state.client_memory
            request, self._options = decode_infer(slot.view, lead, model.spec, memory, base=slot.offset)
            if forwarded:
                forward(request, forwarded)
            self._give_slot(request.slots)
            if has_many_strings(request):
                self._check_strings(model, request)
                return
            job = model.accept(request, self._done)
            if not request.id and not forwarded:  # one that has an id is not likely to come again
                model.plans.remember(header, slot.size, job, slot, self._options)
        self._start(model, job)

    def _parsed(self, document: dict[str, Any] | InferenceError) -> None:
        """The document was large, and a thread has parsed it."""
        if self._abandoned:
            return
        try:
            if isinstance(document, InferenceError):
                raise document
            assert self._model is not None  # or nothing had been parsed
            self._model.check_serving()
            self._decode(self._model, document)
        except InferenceError as exc:
            self._fail(exc)

    def _decode(self, model: ModelVersion, document: dict[str, Any] | None) -> None:
        """Go on with a request that is not worth remembering."""
        slot, forwarded = self._slot, self._head.forwarded
        body = memoryview(self._body) if slot is None else slot.view
        base = -1 if slot is None else slot.offset
        request, self._options = decode_infer(
            body, self._head.header_length, model.spec, self._state.client_memory, base=base, document=document
        )
        if forwarded:
            forward(request, forwarded)
        self._give_slot(request.slots)
        if has_many_strings(request):
            self._check_strings(model, request)
        else:
            self._start(model, model.accept(request, self._done))

    def _check_strings(self, model: ModelVersion, request: InferRequest) -> None:
        """Have a thread count the strings first."""
        then = partial(self._strings_checked, model, request)
        in_thread(self._state.tasks, partial(check_strings, request), then, "count strings")

    def _strings_checked(self, model: ModelVersion, request: InferRequest, result: InferenceError | None) -> None:
        if self._abandoned or isinstance(result, InferenceError):
            request.free()
            if isinstance(result, InferenceError):
                self._fail(result)
            return
        try:
            self._start(model, model.accept(request, self._done))
        except InferenceError as exc:
            self._fail(exc)

    def _arrived(self, model: ModelVersion) -> None:
        self._expected = False
        self._state.expected_bytes -= self._head.content_length
        model.arrived()

    def _give_slot(self, slots: list[Slot]) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slots.append(slot)

    def _done(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        assert outcome is not None  # models that answer with nothing, or more than once, are refused by the head
        self._job = None  # it refers to us
        if isinstance(outcome, InferenceError):
            self._fail(outcome)
            return
        if self._abandoned:
            outcome.release()
            return
        if self._head.response_encoding or self._options is not ALL_BINARY:
            self._make_answer(outcome)
            return
        self._answer_in_binary(outcome)

    def _make_answer(self, response: InferResponse) -> None:
        """Answer with a response whose contents have to be gone through first."""
        assert self._model is not None  # it has answered
        encoding = self._head.response_encoding
        work = partial(make_answer, response, self._options, self._model.spec, encoding)
        then = partial(self._answer, response)
        if costs_time(response, self._options, encoding, ANSWERED_AT_ONCE_MAX):
            in_thread(self._state.tasks, work, then, "make a response")
        else:
            at_once(work, then)

    def _answer(self, response: InferResponse, answer: Answer | InferenceError) -> None:
        if isinstance(answer, InferenceError):
            response.release()
            self._fail(answer)
            return
        if self._abandoned:
            response.release()
            return
        self.length = sum(map(len, answer.parts))
        head = infer_head(answer.document_length, self.length, self.keep_alive, answer.encoding)
        self.parts = [head, *answer.parts]
        if answer.encoding:
            response.release()
        else:
            self.release = response.release
        self._connection.answered()

    def _free(self) -> None:
        if self._expected and self._model is not None:
            self._arrived(self._model)
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.free()

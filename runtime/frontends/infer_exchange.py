# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of an inference: one request, one response, and tensors that nobody copies in between."""

from __future__ import annotations

import time

from pyruntime.runtime.frontends.exchange import Exchange
from pyruntime.runtime.frontends.http_head import infer_head
from pyruntime.runtime.frontends.kserve_request import ALL_JSON, OutputOptions, decode_infer
from pyruntime.runtime.frontends.kserve_response import encode_infer
from pyruntime.runtime.inference import InferResponse, Slot
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.model import ModelVersion
from pyruntime.utils.errors import InferenceError


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
        try:
            model.check_serving()
            self._slot = model.memory.allocate(request.content_length, lead)
        except InferenceError as exc:
            self._refusal = exc
            return None
        self._expected = True
        model.expect()
        return self._slot.view

    def _act(self) -> None:
        model = self._model
        assert model is not None  # or the request was refused
        if self._expected:
            self._arrived(model)
        elif model.is_gone:  # it was replaced while the body came in, or unloaded
            model = self._model = self._core.resolve(self._head.route.model, self._head.route.version)
        model.check_serving()
        lead, slot = self._head.header_length, self._slot
        if slot is None and lead is not None and 0 <= lead < len(self._body):
            slot = self._slot = model.memory.allocate(len(self._body), lead)
            slot.fill(self._body)
        if slot is None or not lead:
            # There is nothing to remember where the body is JSON, or all contents.
            body = memoryview(self._body) if slot is None else slot.view
            request, self._options = decode_infer(body, lead, model.spec, base=-1 if slot is None else slot.offset)
            self._give_slot(request.slots)
            self._start(model, model.accept(request, self._done))
            return
        header = bytes(self._body[:lead]) if self._body else slot.view[:lead].tobytes()
        plan = model.plans.find(header, slot.size)
        if plan is not None:
            self._options = plan.options
            self._slot = None  # the job's from here on
            job = plan.job(slot, self._done, time.monotonic_ns())
        else:
            request, self._options = decode_infer(slot.view, lead, model.spec, base=slot.offset)
            self._give_slot(request.slots)
            job = model.accept(request, self._done)
            model.plans.remember(header, job, slot, self._options)
        self._start(model, job)

    def _arrived(self, model: ModelVersion) -> None:
        self._expected = False
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
        try:
            document, document_length, binary = encode_infer(outcome, self._options)
        except InferenceError as exc:
            outcome.release()
            self._fail(exc)
            return
        length = len(document)
        for part in binary:
            length += len(part)
        self.length = length
        self.parts = [infer_head(document_length, length, self.keep_alive), document, *binary]
        self.release = outcome.release
        self._connection.answered()

    def _free(self) -> None:
        if self._expected and self._model is not None:
            self._arrived(self._model)
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.free()

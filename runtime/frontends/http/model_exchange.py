# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The base of exchanges whose requests a model executes: infer, generate and generate_stream."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.frontends.http.exchange import ACTIVITIES, Exchange, nothing_to_release
from pyruntime.runtime.frontends.http.response_head import load_report_line
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.memory.requests import CountedSlot, RequestSlot
from pyruntime.runtime.requests.types import InferRequest, InferResponse
from pyruntime.utils.errors import Code, InferenceError

O = TypeVar("O")  # noqa: E741 - the options of the response


class ModelExchange(Exchange, Generic[O]):
    """See the module, and IncomingRequest."""

    activities = ACTIVITIES
    is_ordered = False
    body_bytes_max = sys.maxsize
    slot: RequestSlot | None = None
    job: Job | None = None
    options: O
    # The model, once it is needed: while the body arrives, or when it is complete.
    _model: ModelVersion | None = None
    # Whether the model may be decoupled.
    _takes_decoupled = False

    def check_head(self) -> bool:
        """See Exchange. A request to a model that does not serve is refused before its body arrives."""
        if self._refusal is None:
            try:
                self._find_model()
            except InferenceError as exc:
                self._refusal = exc
        return self._refusal is None

    def _find_model(self) -> ModelVersion:
        """The model that serves the request now. Raises InferenceError."""
        route = self.head.route
        self._model = model = self._state.resolve(route.model, route.version)
        if model.spec.decoupled and not self._takes_decoupled:
            raise InferenceError(
                "HTTP end point doesn't support models with decoupled transaction policy", Code.UNSUPPORTED
            )
        return model

    def _decompress(self) -> None:
        if self._model is None:
            self._find_model()
        super()._decompress()

    def _submit(self, model: ModelVersion) -> None:
        """Queue a large request. Its tensors are in request memory then."""
        self._state.intake.submit(self, model)
        self._end_claim()

    def _count_slot(self, slot: RequestSlot) -> RequestSlot:
        """The slot of a body with a claim. What it has more than was received counts until it is freed."""
        claim, self._claim = self._claim, None
        assert claim is not None  # the callers look
        grown = slot.size - (self._received or slot.size)
        if grown <= 0:
            claim.end()
            return slot
        claim.give_back(claim.held - grown)
        return CountedSlot(slot, partial(self._state.soon, claim.end))

    def hold_back(self) -> Callable[[], None]:
        """See IncomingRequest. Requests may overtake each other; the connection sends their answers in order."""
        return nothing_to_release

    @abstractmethod
    def decode(self, model: ModelVersion) -> tuple[InferRequest, O]:
        """See IncomingRequest."""

    @abstractmethod
    def respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""

    def _load_report_line(self) -> bytes:
        """The header of the load report that the client asks for in a successful response."""
        assert self._model is not None  # it has answered
        return load_report_line(self._state.load_reports.report(self._model, self.head.load_format))

    def cancel(self) -> None:
        """See Exchange."""
        super().cancel()
        if self.job is not None and self._model is not None:
            self._model.cancel(self.job)

    def _free(self) -> None:
        self.job = None
        slot, self.slot = self.slot, None
        if slot is not None:
            slot.free()

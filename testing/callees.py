# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces the models that a model under test calls (BLS), and records the calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from pyruntime.runtime.calls.model_call import is_decoupled, not_ready
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.requests.types import InferRequest, InputTensor
from pyruntime.stub.host import Answers
from pyruntime.stub.pb_utils import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    InferenceRequest,
    InferenceResponse,
    TritonError,
    TritonModelException,
)
from pyruntime.testing.exchange import Exchange
from pyruntime.testing.tensors import contents_of, read_tensor, to_array, to_tensor
from pyruntime.utils.errors import Code, InferenceError


class Call(dict[str, NDArray[Any]]):
    """One call of the model: its inputs by name, and its other properties as attributes.

    `requested_outputs` is None if it named none. `model_version` is -1 for any, `timeout` is in microseconds.
    """

    def __init__(self, request: InferenceRequest, decoupled: bool) -> None:
        super().__init__(
            {
                tensor.name(): to_array(tensor._datatype, tensor.shape(), contents_of(tensor))
                for tensor in request.inputs()
            }
        )
        self.model_name, self.model_version = request._target
        self.request_id = request.request_id()
        self.correlation_id = request.correlation_id()
        self.flags = request.flags()
        self.timeout = request.timeout()
        self.parameters: dict[str, str | int | bool] = json.loads(request.parameters())
        self.requested_outputs = request.requested_output_names() or None
        self.decoupled = decoupled
        # Whether the model has cancelled the call before the last response.
        self.cancelled = False

    def __repr__(self) -> str:
        return f"<Call of {self.model_name} {list(self)}>"


# The results that a function in place of a model may return. For a decoupled model it returns an iterable of these.
Outcome = Mapping[str, Any] | InferenceResponse | TritonError | Exception
Function = Callable[[Call], Outcome | Iterable[Outcome]]


class LoadedCallee(Protocol):
    """A loaded model that another one may call."""

    spec: ModelSpec
    version: int

    def begin(self, request: InferRequest) -> Exchange:
        """Start a request, or refuse it."""


class Callees:
    """The models that a model may call, by name: functions, or other loaded models."""

    def __init__(
        self,
        callees: Mapping[str, Function | LoadedCallee],
        is_ready: Callable[[str, str], bool],
        on_answer: Callable[[], None],
    ) -> None:
        """`is_ready` returns whether a version of a model ("" for any) may be called now.

        `on_answer` is called before each answer of a called model.
        """
        self.calls: list[Call] = []
        self._callees = dict(callees)
        self._is_ready = is_ready
        self._on_answer = on_answer

    def has(self, name: str, version: str) -> bool:
        """Whether there is a model with this name and version ("" for any)."""
        callee = self._callees.get(name)
        return callee is not None and (callable(callee) or version in ("", str(callee.version)))

    def call(self, request: InferenceRequest, decoupled: bool) -> Answers:
        """See Host. Raises any exception of the function, because it may be an assertion of the test."""
        call = Call(request, decoupled)
        self.calls.append(call)
        name, version = request._target
        callee = self._callees.get(name)
        if callee is None or not self._is_ready(name, str(version) if version >= 0 else ""):
            return _refusal(call, not_ready(name))
        if not callable(callee):
            if callee.spec.decoupled and not decoupled:
                return _refusal(call, is_decoupled(name))
            exchange = callee.begin(_as_sent(request))
            return ModelAnswers(call, exchange, callee.spec.decoupled, self._on_answer)
        outcome = callee(call)
        if isinstance(outcome, (Mapping, InferenceResponse, TritonError, Exception)):
            return GivenAnswers(call, iter([outcome]))
        if not isinstance(outcome, Iterable):
            raise TypeError(f"what stands in for model '{name}' must return a dict of arrays, found {type(outcome)}")
        if not decoupled:
            return _refusal(call, is_decoupled(name))
        return GivenAnswers(call, iter(outcome))


class GivenAnswers(Answers):
    """The results of a function. A generator continues when the model takes the next response."""

    def __init__(self, call: Call, outcomes: Iterator[Outcome]) -> None:
        self._call = call
        self._outcomes = outcomes
        self._has_ended = False

    def next(self) -> InferenceResponse | None:
        """See Answers."""
        if not self._has_ended:
            for outcome in self._outcomes:
                return _as_response(self._call, outcome)
        self._has_ended = True
        return None

    def cancel(self) -> None:
        """See Answers."""
        if not self._has_ended:
            self._call.cancelled = self._has_ended = True

    def when_next(self, wake: Callable[[], None]) -> None:
        """See Answers."""
        wake()


class ModelAnswers(Answers):
    """The responses of another loaded model."""

    def __init__(self, call: Call, exchange: Exchange, decoupled: bool, on_answer: Callable[[], None]) -> None:
        """`decoupled` if the model may send any number of them."""
        self._call = call
        self._exchange = exchange
        self._on_answer = on_answer
        # As in Triton, an end without a response counts as an empty response.
        self._owes_end = decoupled

    def next(self) -> InferenceResponse | None:
        """See Answers."""
        try:
            result = self._exchange.take()
        except TimeoutError as exc:
            raise TritonModelException(str(exc)) from exc
        finally:
            self._on_answer()
        if result is None:
            owes_end, self._owes_end = self._owes_end, False
            return InferenceResponse() if owes_end else None
        self._owes_end = self._owes_end and not result.is_final
        if result.error is not None:
            return InferenceResponse(error=TritonError(result.error.message, result.error.code))
        outputs = [read_tensor(each.name, each.datatype, each.shape, each.data) for each in result.tensors]
        return InferenceResponse._from_wire(outputs, json.dumps(result.parameters) if result.parameters else "")

    def cancel(self) -> None:
        """See Answers."""
        if not self._exchange.is_finished:
            self._call.cancelled = self._exchange.request.cancelled = True

    def when_next(self, wake: Callable[[], None]) -> None:
        """See Answers."""
        self._exchange.when_next(wake)

    def __del__(self) -> None:
        self._exchange.drop()


def _as_sent(request: InferenceRequest) -> InferRequest:
    """A call as the server passes it to the called model."""
    flags = request.flags()
    return InferRequest(
        request._target[0],
        id=request.request_id(),
        inputs=[InputTensor(each.name(), each._datatype, each.shape(), contents_of(each)) for each in request.inputs()],
        requested_outputs=sorted(request.requested_output_names()) or None,
        parameters=json.loads(request.parameters()),
        sequence_id=request.correlation_id(),
        sequence_start=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        sequence_end=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        timeout_us=request.timeout(),
        trace=request.trace().get_context() or "",
    )


def _as_response(call: Call, outcome: Outcome) -> InferenceResponse:
    if isinstance(outcome, InferenceResponse):
        return outcome
    if isinstance(outcome, TritonError):
        return InferenceResponse(error=outcome)
    if isinstance(outcome, Exception):
        code = outcome.code if isinstance(outcome, InferenceError) else Code.INTERNAL
        return InferenceResponse(error=TritonError(str(outcome), code))
    wanted = call.requested_outputs
    return InferenceResponse(
        [to_tensor(name, value) for name, value in outcome.items() if wanted is None or name in wanted]
    )


def _refusal(call: Call, failure: InferenceError) -> Answers:
    return GivenAnswers(call, iter([failure]))

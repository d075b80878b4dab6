# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Replaces the server for one model under test, by the interface of stub/host.py: sends requests, receives responses.

Responses pass through a region of shared memory as in a stub, so that tests see the same errors.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import orjson

from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.regions import create_region
from pyruntime.runtime.requests.types import OutputTensor
from pyruntime.stub.host import Answers, Host
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import InferenceRequest, InferenceResponse
from pyruntime.stub.responses import ResponseWriter
from pyruntime.testing.callees import Callees
from pyruntime.testing.contradictions import contradictions
from pyruntime.testing.control import Control
from pyruntime.testing.exchange import Exchange
from pyruntime.testing.modules import OwnModules
from pyruntime.testing.result import Result
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.messages import OK, Failed, Infer, Message
from pyruntime.utils.messages import Result as Executed
from pyruntime.utils.request_codec import SEQUENCE_START

# The server's default for the growth of a response region.
_GROWTH_BYTES = 1 << 20
_NOT_RESCHEDULABLE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)


class ModelServer(Host):
    """See the module. `execute` is to have the model execute a batch, and `handle` to be told how that has ended."""

    def __init__(
        self,
        spec: ModelSpec,
        model_dir: str,
        modules: OwnModules,
        callees: Callees,
        control: Control,
        execute: Callable[[Infer], None],
    ) -> None:
        self.model_dir = model_dir
        self.decoupled = spec.decoupled
        self._spec = spec
        self._modules = modules
        self._callees = callees
        self._control = control
        self._execute = execute
        self._region = create_region(f"responses of {spec.name}")
        self.writer = ResponseWriter(self._region, _GROWTH_BYTES, spec.name, set(spec.outputs))
        # Names of outputs that are not declared, for the response that is read next.
        self._dropped: list[str] = []
        self.writer.on_undeclared = self._dropped.append
        self._lock = threading.RLock()
        self._serials = count(1)
        self._open: dict[int, Exchange] = {}
        self._batches: dict[int, list[Exchange]] = {}
        self._raised: tuple[str, BaseException] | None = None

    def exchanges(self) -> list[Exchange]:
        """The requests without a final response."""
        with self._lock:
            return list(self._open.values())

    def raised(self, exc: BaseException, text: str) -> None:
        """The model has raised an exception; `text` is its message for clients."""
        self._raised = (text, exc)

    def close(self) -> None:
        """Free the memory. The model must not run any more."""
        self._region.close()

    # Giving it requests.

    def post(self, batch: list[Exchange]) -> None:
        """Execute these requests in one batch."""
        with self._lock:
            serials = [next(self._serials) for _ in batch]
            self._open.update(zip(serials, batch, strict=True))
            self._batches[serials[0]] = batch
            for serial, exchange in zip(serials, batch, strict=True):
                exchange.serial = serial
                self._modules.enter()
            self._execute(Infer(serials[0], [exchange.encoded for exchange in batch], []))

    def handle(self, message: Message) -> None:
        """Handle the end of a batch. Other messages of a stub have no effect in a test."""
        if not isinstance(message, (Executed, Failed)):
            return
        batch = self._batches.pop(message.batch, [])
        for index, exchange in enumerate(batch):
            exchange.executed()
            outcome = message.responses[index] if isinstance(message, Executed) else None
            if isinstance(message, Failed):
                self._add(exchange, Result(error=self._failure(message.message, Code.INTERNAL)), True)
            elif isinstance(outcome, int):
                self._reschedule(exchange)
            elif outcome is not None:  # else a sender answers it
                self._add(exchange, self._read(outcome, True), True)

    def _reschedule(self, exchange: Exchange) -> None:
        if not self._spec.iterative_sequence:
            self._add(exchange, Result(error=InferenceError(_NOT_RESCHEDULABLE, Code.INVALID_ARG)), True)
            return
        if exchange.is_dropped:
            self._add(exchange, None, True)
            return
        encoded = exchange.encoded
        exchange.encoded = encoded._replace(flags=encoded.flags & ~SEQUENCE_START)
        with self._lock:  # it is open all the time, for whoever looks
            del self._open[exchange.serial]
            self.post([exchange])
        self._modules.leave()  # it was active for this request already

    # The model's calls, see Host.

    def respond(self, serial: int, response: InferenceResponse | None, wanted: set[str], final: bool) -> None:
        """See Host."""
        exchange = self._open.get(serial)
        if exchange is None:
            return
        if response is None:
            self._add(exchange, None, final)
            return
        self._add(exchange, self._read(self.writer.write(response, wanted), final), final)

    def wait_for_room(self, serial: int) -> None:
        """See Host."""
        exchange = self._open.get(serial)
        # A coroutine does not wait: what it sends to a client without room is kept.
        if self.decoupled and exchange is not None and asyncio._get_running_loop() is None:
            exchange.wait_for_room()

    def when_room(self, serial: int, wake: Callable[[], None]) -> None:
        """See Host."""
        exchange = self._open.get(serial)
        if self.decoupled and exchange is not None:
            exchange.when_room(wake)
        else:
            wake()

    def has_room(self, serial: int) -> bool:
        """See Host."""
        exchange = self._open.get(serial)
        return not self.decoupled or exchange is None or exchange.has_room()

    def forgotten(self, serial: int, warning: str) -> None:
        """See Host."""
        LOGGER.warning("%s", warning)

    def is_cancelled(self, serial: int) -> bool:
        """See Host."""
        exchange = self._open.get(serial)
        return exchange is not None and exchange.is_cancelled()

    def call(self, request: InferenceRequest, decoupled: bool) -> Answers:
        """See Host."""
        return self._callees.call(request, decoupled)

    def ask(self, method: str, arguments: list[Any]) -> Any:
        """See Host."""
        return self._control.ask(method, arguments)

    def tell(self, method: str, arguments: list[Any]) -> None:
        """See Host."""
        self._control.tell(method, arguments)

    def measure(self, metric: int, operation: str, value: float) -> None:
        """See Host."""
        self._control.measure(metric, operation, value)

    def free_memory(self) -> int:
        """See Host. Always all of it, because a response is read and freed as soon as it is sent."""
        return self._region.limit

    # Taking its responses.

    def _add(self, exchange: Exchange, result: Result | None, final: bool) -> None:
        if not exchange.add(result, final) or not final:
            return
        with self._lock:
            del self._open[exchange.serial]
        self._modules.leave()

    def _read(self, wire: Sequence[Any], final: bool) -> Result:
        """Read a response from the region, and free its memory."""
        code, text, slot, tensors, parameters = wire
        if code != OK:
            return Result(error=self._failure(text, Code(code)), is_final=final)
        outputs = [
            OutputTensor(
                name, datatype, client_shape(self._spec, name, shape), bytes(self._region.view[at : at + size])
            )
            for name, datatype, shape, at, size, _, _ in tensors
        ]
        if slot >= 0:
            self.writer.free([slot])
        dropped = [self._dropped.pop(0) for _ in range(len(self._dropped))]
        found = contradictions(self._spec, outputs, dropped)
        return Result(outputs, orjson.loads(parameters) if parameters else {}, is_final=final, contradictions=found)

    def _failure(self, text: str, code: Code) -> InferenceError:
        failure = InferenceError(text, code)
        if self._raised is not None and self._raised[0] == text:
            failure.__cause__ = self._raised[1]
        return failure

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Plays the server for one model under test: see stub/host.py. It gives it requests and takes its responses.

Responses pass through a region of shared memory, as in a stub, because what cannot be written there is an error there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.memory.regions import create_region
from pyruntime.stub.host import Host
from pyruntime.stub.responses import ResponseWriter
from pyruntime.testing.callees import Callees
from pyruntime.testing.control import Control
from pyruntime.testing.exchange import Exchange
from pyruntime.testing.result import Result
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.messages import Failed, Infer, Message
from pyruntime.utils.messages import Result as ResultMessage

# A response region grows by this much; the server's default.
_GROWTH_BYTES = 1 << 20
_FLAGS = 2
_SEQUENCE_START = 1
_NOT_RESCHEDULABLE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)

# Of all models of this process.
_serials = count(1)


class ModelServer(Host):
    """See the module. `execute` is called with a batch, to have the model execute it."""

    def __init__(
        self,
        spec: ModelSpec,
        model_dir: str,
        callees: Callees,
        control: Control,
        execute: Callable[[Infer], None],
    ) -> None:
        self.model_dir = model_dir
        self.decoupled = spec.decoupled
        # The exception that the model raised last, for whoever reads of it in a response.
        self.raised: BaseException | None = None
        self._spec = spec
        self._callees = callees
        self._control = control
        self._execute = execute
        self._region = create_region(f"responses of {spec.name}")
        self.writer = ResponseWriter(self._region, _GROWTH_BYTES, spec.name, set(spec.outputs))
        self._lock = threading.RLock()
        self._open: dict[int, Exchange] = {}

    def exchanges(self) -> list[Exchange]:
        """The requests that the model has not answered to the end."""
        with self._lock:
            return list(self._open.values())

    def close(self) -> None:
        """Give the memory back. The model must not run any more."""
        self._region.close()

    # Giving it requests.

    def post(self, exchanges: Sequence[Exchange]) -> None:
        """Have the model execute these in one batch."""
        with self._lock:
            for exchange in exchanges:
                exchange.serial = next(_serials)
                self._open[exchange.serial] = exchange
            self._execute(Infer(exchanges[0].serial, [exchange.wire for exchange in exchanges], []))

    def handle(self, message: Message) -> None:
        """What the model's side says: how a batch has ended."""
        if isinstance(message, Failed):
            failure = InferenceError(message.message)
            failure.__cause__, self.raised = self.raised, None
            for exchange in self._batch(message.batch):
                self._add(exchange, Result(error=failure), True)
        elif isinstance(message, ResultMessage):
            batch = self._batch(message.batch)
            for exchange, wire in zip(batch, message.responses, strict=True):
                if wire is None:
                    exchange.is_left_to_sender = True
                elif isinstance(wire, list):
                    self._add(exchange, self._read(wire, True), True)
                else:
                    self._reschedule(exchange)

    def _batch(self, batch: int) -> list[Exchange]: ...

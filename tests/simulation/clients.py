# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated clients: they send requests, check the answers, and misbehave."""

import asyncio
from typing import NamedTuple

from pyruntime.runtime.requests.types import InferRequest, InferResponse, InputTensor
from pyruntime.utils.errors import InferenceError

from .tensors import HOP, pack, request_of, value_of

# No client keeps a response for longer than this, in seconds.
KEPT_S_MAX = 0.1


class Sending(NamedTuple):
    """One request of a client: `after_s` the one before, and `waits` for its answer before the next one."""

    model: str
    after_s: float
    rows: int = 1
    elements: int = 1
    priority: int = 0
    timeout_us: int = 0
    waits: bool = True
    cancel_after_s: float | None = None
    keep_s: float = 0.0
    sequence: int = 0
    is_start: bool = False
    is_end: bool = False
    same_as: int | None = None


class ClientPlan(NamedTuple):
    """All requests of a client. `leaves_after_s`: then it cancels what is under way, and sends nothing more."""

    sendings: tuple[Sending, ...]
    leaves_after_s: float | None = None


class Client:
    """One client. `number` is that of its first request; each request has one of its own."""

    def __init__(self, world, plan, number):
        self._world = world
        self._plan = plan
        self._number = number
        self._open = {}
        self._has_left = False

    async def run(self):
        """Send everything, and wait for the last answer."""
        if self._plan.leaves_after_s is not None:
            self._world.loop.call_later(self._plan.leaves_after_s, self._leave)
        waiting = []
        for index, sending in enumerate(self._plan.sendings):
            await asyncio.sleep(sending.after_s)
            if self._has_left:
                break
            done = self._send(index, sending)
            if sending.waits:
                await done.wait()
            else:
                waiting.append(done)
        for done in waiting:
            await done.wait()

    def _send(self, index, sending):
        exchange = Exchange(self._world, self._number + index, sending)
        self._open[exchange] = None
        exchange.begin()
        if sending.cancel_after_s is not None:
            self._world.loop.call_later(sending.cancel_after_s, exchange.cancel)
        return exchange.done

    def _leave(self):
        self._has_left = True
        for exchange in self._open:
            exchange.cancel()


class Exchange:
    """One request and its answers."""

    def __init__(self, world, number, sending):
        self._world = world
        self._number = number if sending.same_as is None else sending.same_as
        self._sending = sending
        self._version = None
        self._job = None
        self._finals = 0
        self._responses = 0
        self._is_cancelled = False
        self.done = asyncio.Event()

    def begin(self):
        """Send the request."""
        world, sending = self._world, self._sending
        model = world.models[sending.model]
        elements = sending.rows * sending.elements if model.spec.max_batch_size else sending.elements
        shape = model.shape(sending.rows, sending.elements)
        request = InferRequest(
            sending.model,
            id=str(self._number),
            inputs=[InputTensor("IN", "INT64", shape, pack(self._number, elements))],
            sequence_id=sending.sequence,
            sequence_start=sending.is_start,
            sequence_end=sending.is_end,
            priority=sending.priority,
            timeout_us=sending.timeout_us,
            batch_size=sending.rows if model.spec.max_batch_size else 1,
        )
        world.note("sends", sending.model, self._number)
        try:
            self._version = world.table.resolve(sending.model)
            self._job = self._version.accept(request, self._respond)
            self._version.start(self._job)
        except InferenceError as exc:
            if self._finals:
                world.ledger.violated(f"request {self._number} is refused, and was answered")
            world.note("is refused", self._number, int(exc.code))
            self._finals += 1
            self.done.set()

    def cancel(self):
        """The client wants no answer any more."""
        if not self._finals and self._job is not None:
            self._is_cancelled = True
            self._version.cancel(self._job)

    def _respond(self, outcome, final):
        """See execution.job.Respond."""
        world = self._world
        if self._finals:
            world.ledger.violated(f"request {self._number} is answered after its last response")
        self._responses += outcome is not None
        if isinstance(outcome, InferResponse):
            self._check(outcome)
            if self._sending.keep_s:
                world.loop.call_later(self._sending.keep_s, self._release, outcome)
            else:
                outcome.release()
        elif outcome is None and not self._world.models[self._sending.model].is_decoupled:
            world.ledger.violated(f"request {self._number} is answered with nothing")
        if final:
            self._finals += 1
            self.done.set()
            if not isinstance(outcome, InferenceError) and not self._is_cancelled:
                world.check_length(world.models[self._sending.model], self._number, self._responses)

    def _release(self, response):
        self._check(response)
        response.release()

    def _check(self, response):
        for output in response.outputs:
            value = value_of(output.data)
            if value < HOP or request_of(value) != self._number:
                self._world.ledger.violated(f"request {self._number} is answered with the value {value}")

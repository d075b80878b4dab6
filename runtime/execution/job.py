# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An accepted request on its way through a scheduler and an instance. (pure)

A job contains the request in the form for stubs and native code: see utils/request_codec.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Protocol

import orjson

from pyruntime.runtime.execution.deadlock import Waiting
from pyruntime.runtime.execution.states import SequenceStates, StateMemory
from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.regions import GrantedRegion
from pyruntime.runtime.requests.types import InferRequest, InferResponse, InputTensor, OutputPlace, Slot
from pyruntime.runtime.tracing.trace import JobTrace
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import (
    MEMORY_CPU,
    SEQUENCE_END,
    SEQUENCE_START,
    OutputPlaceRef,
    RequestOptions,
    TensorRef,
)

# Called on the event loop's thread with a response or an error, and with whether it is the last one. The last call may
# have None, if no further response follows. Only decoupled models call it more than once; it is never called again
# after the last one. It must not raise.
Respond = Callable[[InferResponse | InferenceError | None, bool], None]


def discard(outcome: InferResponse | InferenceError | None, final: bool) -> None:
    """The `respond` of a job whose responses nobody takes."""
    if isinstance(outcome, InferResponse):
        outcome.release()


class Relay(ABC):
    """A `respond` that does something with each outcome, and then passes it on to `client`."""

    __slots__ = ("client",)

    def __init__(self, client: Respond) -> None:
        self.client = client

    @abstractmethod
    def __call__(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See Respond."""


class Running(Protocol):
    """The batches of an executor, as their jobs refer to them."""

    def worker_of(self, job: Job) -> Waiting:
        """The worker that executes the job: see deadlock.py."""

    def cancel(self, job: Job) -> None:
        """Notify the model that this job is cancelled."""


class Turn(Protocol):
    """The place of a job among others whose responses keep their order: see scheduling/response_order.py."""

    executes: bool
    """Whether the job does not queue. Its scheduler says so."""

    def drop(self) -> None:
        """The client has left: release what is held for the job. Its `respond` is called nevertheless."""


class Job:
    """One accepted request.

    `rows` is its batch size; only jobs with equal `signature` may share a batch; `priority` is its level in the queue,
    0 for the default one; `arrived_ns` is on the monotonic clock that host and stubs share. `tensors` refer to the
    inputs, and `slots` are the request memory that they lie in. `options` may be shared with other jobs. `regions` are
    the regions of other models, and of clients, that it refers to; `client` is its use of a client's memory, and
    `places` are the places for outputs there. `instance` executes the job, None while it queues, and `serial` is its
    number there. `trace` records it, None for nearly all jobs, and `trace_context` is the part of the trace that the
    model may pass on. `is_call`: a model has made the request, and reads the response.

    For a job in a sequence, `sequence` is that sequence (see sequences.py) and `states` are its implicit states, which
    the model may update; their current values are among the inputs. `on_free` is called once, when its model has
    finished the request. `is_padding`: it fills a batch in place of a sequence without a request, came from no client,
    and does not count in statistics. `takes_first`: its client takes the first response of a model that is not
    decoupled, even if execute fails after it, as in a gRPC stream. `turn` is the place of its responses among those of
    other jobs, None where they have no order.
    """

    __slots__ = (
        "arrived_ns",
        "cancelled",
        "client",
        "id",
        "instance",
        "is_call",
        "is_padding",
        "on_free",
        "options",
        "places",
        "priority",
        "regions",
        "respond",
        "rows",
        "sequence",
        "serial",
        "signature",
        "slots",
        "states",
        "takes_first",
        "tensors",
        "trace",
        "trace_context",
        "turn",
    )

    def __init__(
        self,
        id: str,
        options: RequestOptions,
        tensors: list[TensorRef],
        rows: int,
        signature: Hashable | None,
        slots: list[Slot],
        respond: Respond,
        arrived_ns: int,
        trace_context: str = "",
        places: dict[str, OutputPlaceRef] | None = None,
    ) -> None:
        self.id = id
        self.options = options
        self.tensors = tensors
        self.trace_context = trace_context
        self.places = places
        self.rows = rows
        self.signature = signature
        self.slots = slots
        self.respond = respond
        self.arrived_ns = arrived_ns
        self.regions: Sequence[GrantedRegion] = ()
        self.client: ClientUse | None = None
        self.instance: Running | None = None
        self.serial = 0
        self.cancelled = False
        self.trace: JobTrace | None = None
        self.sequence: object | None = None
        self.states: SequenceStates | None = None
        self.on_free: Callable[[Job], None] | None = None
        self.is_call = False
        self.is_padding = False
        self.takes_first = False
        self.priority = 0
        self.turn: Turn | None = None

    @property
    def arrived_s(self) -> float:
        """The time of arrival, in seconds."""
        return self.arrived_ns / 1e9

    @property
    def sequence_id(self) -> int | str:
        """The correlation id, 0 or "" for none."""
        return self.options.correlation_id

    @property
    def is_start(self) -> bool:
        """Whether it begins a sequence."""
        return bool(self.options.flags & SEQUENCE_START)

    @property
    def is_end(self) -> bool:
        """Whether it ends its sequence."""
        return bool(self.options.flags & SEQUENCE_END)

    @property
    def timeout_s(self) -> float:
        """The client's timeout for the queue, in seconds; 0 for none."""
        return self.options.timeout_us / 1e6

    def begin_sequence(self, sequence_id: int | str) -> None:
        """Make it the first request of a sequence."""
        options = self.options
        self.options = options._replace(correlation_id=sequence_id, flags=options.flags | SEQUENCE_START)

    def continue_sequence(self) -> None:
        """Clear its START flag, because its model has already begun the sequence."""
        options = self.options
        if options.flags & SEQUENCE_START:
            self.options = options._replace(flags=options.flags & ~SEQUENCE_START)

    def give_states(self, states: SequenceStates) -> None:
        """Add the current states of its sequence to the inputs; they replace those of an earlier execution."""
        self.states = states
        inputs = states.inputs
        names = {state.name for state in inputs}
        others = [tensor for tensor in self.tensors if tensor[0] not in names]
        # Contents that are not in shared memory are sent within the message.
        self.tensors = [*others, *[(*state[:5], *state.place) for state in inputs]]
        used = [state.memory.share() for state in inputs if state.memory is not None]
        former = [slot for slot in self.slots if isinstance(slot, StateMemory)]
        self.slots = [*(slot for slot in self.slots if not isinstance(slot, StateMemory)), *used]
        for slot in former:
            slot.free()
        for memory in used:
            self.regions = (*self.regions, *(region for region in memory.regions if region not in self.regions))

    def free(self) -> None:
        """Free the request memory. Calling it again does nothing, because the slots are forgotten."""
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.free()
        on_free, self.on_free = self.on_free, None
        if on_free is not None:
            on_free(self)


def request_options(request: InferRequest) -> RequestOptions:
    """The options of a request: all of it but its id and its tensors."""
    parameters = request.parameters
    return RequestOptions(
        request.sequence_id,
        (SEQUENCE_START if request.sequence_start else 0) | (SEQUENCE_END if request.sequence_end else 0),
        request.timeout_us,
        request.requested_outputs,
        orjson.dumps(parameters).decode() if parameters else "",
    )


def tensor_refs(tensors: Iterable[InputTensor]) -> list[TensorRef]:
    """References to inputs, which must be in the request region, or in a client's memory, already."""
    return [
        (
            tensor.name,
            tensor.datatype,
            tensor.shape,
            tensor.offset,
            len(tensor.data) if tensor.client is None else tensor.client.size,
            MEMORY_CPU,
            0,
        )
        for tensor in tensors
    ]


def place_refs(places: Mapping[str, OutputPlace]) -> dict[str, OutputPlaceRef]:
    """References to places in a client's memory."""
    return {name: (place.contents.address, place.contents.size, MEMORY_CPU, 0) for name, place in places.items()}

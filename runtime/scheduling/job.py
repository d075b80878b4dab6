# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An accepted request on its way through a scheduler and an instance. (pure)

From here on nobody needs the request as the client put it: a job has it in the form that the stub reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.regions import GrantedRegion
from pyruntime.runtime.requests.types import InferResponse, Slot
from pyruntime.runtime.scheduling.states import SequenceStates
from pyruntime.runtime.tracing.trace import Trace
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.messages import CORRELATION_ID, FLAGS, SEQUENCE_END, SEQUENCE_START, TIMEOUT_US

# Called on the event loop's thread with a response or an error, and with whether it is the last one. The last call may
# have None, if no further response follows. Only decoupled models call it more than once, and nobody calls it again
# after the last one. It must not raise.
Respond = Callable[[InferResponse | InferenceError | None, bool], None]


class Running(Protocol):
    """The instance that executes a job."""

    def worker_of(self, job: Job) -> Any:
        """Who executes the job: see instances/deadlock.py."""

    def cancel(self, job: Job) -> None:
        """Tell the model that this job is cancelled."""


class Job:
    """One accepted request.

    `rows` is its batch size; `signature` says which others it may share a batch with; `arrived_ns` is on the monotonic
    clock that host and stubs share. `wire` is the request as utils/messages.py has it, and `slots` the request memory
    that it lies in; `regions` are those of other models, and of clients, that it refers to; `client` is what it has to
    do with the memory of a client. `instance` is where the job is, None while it queues, and `serial` its number there;
    `trace` is where its way is noted, None for nearly all.

    Of a job that belongs to a sequence, `sequence` is that (see sequences.py) and `states` are what is kept for it,
    which the model may update: what they are before is among the inputs. `on_free` is called once, when its model is
    done with the request. `is_padding` says that it stands in a batch for a sequence without a request: nobody sent it,
    and it counts for nothing.
    """

    __slots__ = (
        "arrived_ns",
        "cancelled",
        "client",
        "id",
        "instance",
        "is_padding",
        "on_free",
        "regions",
        "respond",
        "rows",
        "sequence",
        "serial",
        "signature",
        "slots",
        "states",
        "trace",
        "wire",
    )

    def __init__(
        self,
        id: str,
        wire: list[Any],
        rows: int,
        signature: Hashable | None,
        slots: list[Slot],
        respond: Respond,
        arrived_ns: int,
    ) -> None:
        self.id = id
        self.wire = wire
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
        self.trace: Trace | None = None
        self.sequence: object | None = None
        self.states: SequenceStates | None = None
        self.on_free: Callable[[Job], None] | None = None
        self.is_padding = False

    @property
    def arrived_s(self) -> float:
        """The time of arrival, in seconds."""
        return self.arrived_ns / 1e9

    @property
    def sequence_id(self) -> int | str:
        """The correlation id, 0 or "" for none."""
        sequence_id: int | str = self.wire[CORRELATION_ID]
        return sequence_id

    @property
    def is_start(self) -> bool:
        """Whether it begins a sequence."""
        return bool(self.wire[FLAGS] & SEQUENCE_START)

    @property
    def is_end(self) -> bool:
        """Whether it ends its sequence."""
        return bool(self.wire[FLAGS] & SEQUENCE_END)

    @property
    def timeout_s(self) -> float:
        """The client's timeout for the queue, in seconds; 0 for none."""
        return float(self.wire[TIMEOUT_US] / 1e6)

    def begin_sequence(self, sequence_id: int) -> None:
        """Make it the first request of a sequence."""
        self.wire[CORRELATION_ID] = sequence_id
        self.wire[FLAGS] |= SEQUENCE_START

    def free(self) -> None:
        """Free the request memory. Calling it again does nothing, because the slots are forgotten."""
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.free()
        on_free, self.on_free = self.on_free, None
        if on_free is not None:
            on_free(self)

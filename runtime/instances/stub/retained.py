# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Request memory that a model keeps after execute: inputs that it still refers to."""

from __future__ import annotations

from collections.abc import Sequence

from pyruntime.runtime.execution.executor import Batch
from pyruntime.runtime.execution.states import StateMemory
from pyruntime.runtime.memory.requests import SharedSlot
from pyruntime.runtime.requests.types import Slot, free_slots
from pyruntime.utils.errors import PeerError
from pyruntime.utils.messages import Retired


class RetainedMemory:
    """That of one stub: `by_serial` has the slots of each request. The handlers of messages raise PeerError."""

    def __init__(self, *, is_shared: bool) -> None:
        """`is_shared`: a job may be executed again, and needs its memory until it is answered, too."""
        self.by_serial: dict[int, list[Slot]] = {}
        self._is_shared = is_shared

    def retain(self, number: int, batch: Batch, indexes: Sequence[object]) -> None:
        """Take the slots of requests whose inputs the model keeps from their jobs, so that they are not reused."""
        for index in indexes:
            if type(index) is not int or not 0 <= index < len(batch) or number + index in self.by_serial:
                raise PeerError(f"request {index!r} is retained and does not exist, or is retained twice")
            job = batch[index]
            if self._is_shared:
                job.slots = [_shared(slot) for slot in job.slots]
                self.by_serial[number + index] = list(job.slots)
            else:
                self.by_serial[number + index], job.slots = job.slots, []

    def retired(self, message: Retired) -> None:
        """The model has released requests whose inputs it kept."""
        for serial in message.requests:
            slots = self.by_serial.pop(serial, None) if type(serial) is int else None
            if slots is None:
                raise PeerError(f"request {serial!r} is retired and was not retained")
            free_slots(slots)

    def take_all(self) -> list[list[Slot]]:
        """The slots of all requests, because the stub has ended. They are not freed."""
        taken = list(self.by_serial.values())
        self.by_serial.clear()
        return taken


def _shared(slot: Slot) -> Slot:
    """A slot with one more user."""
    return slot.share() if isinstance(slot, StateMemory) else SharedSlot(slot)

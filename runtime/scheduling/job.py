# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An accepted request on its way through a scheduler and an instance. (pure)

From here on nobody needs the request as the client put it: a job has it in the form that the stub reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from pyruntime.runtime.inference import InferResponse, Slot
from pyruntime.utils.errors import InferenceError

# Called exactly once, on the event loop's thread, with the response or with why there is none. It must not raise.
Done = Callable[[InferResponse | InferenceError], None]


class Job:
    """One accepted request.

    `rows` is its batch size; `signature` says which others it may share a batch with; `arrived_ns` is on the monotonic
    clock that host and stubs share. `wire` is the request as utils/messages.py has it, and `slots` the request memory
    that it lies in.
    """

    __slots__ = ("arrived_ns", "done", "id", "rows", "signature", "slots", "wire")

    def __init__(
        self,
        id: str,
        wire: list[Any],
        rows: int,
        signature: Hashable | None,
        slots: list[Slot],
        done: Done,
        arrived_ns: int,
    ) -> None:
        self.id = id
        self.wire = wire
        self.rows = rows
        self.signature = signature
        self.slots = slots
        self.done = done
        self.arrived_ns = arrived_ns

    @property
    def arrived_s(self) -> float:
        """The arrival, in seconds."""
        return self.arrived_ns / 1e9

    def free(self) -> None:
        """Give back the request memory. Safe to call again: the slots are forgotten."""
        slots, self.slots = self.slots, []
        for slot in slots:
            slot.free()

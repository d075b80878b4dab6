# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What one stub gets back: response slots, and credit for responses that clients have taken. (pure)

Neither is urgent, so a message has many of them, or takes some along.
"""

from __future__ import annotations

from typing import Protocol

from pyruntime.utils.channel import State
from pyruntime.utils.messages import Credit, Message, Release

# Response slots that wait for the next Infer, which takes them back; beyond either limit they have their own frame.
RELEASES_WAITING_MAX = 64
RELEASE_BYTES_WAITING_MAX = 1 << 20

# Responses of one request that its client has taken and the stub does not know of yet. Much less than a sender may be
# ahead (see utils/flow_control.py), so that no sender waits for the last of them.
CREDITS_WAITING_MAX = 16
CREDIT_BYTES_WAITING_MAX = 16 << 20

_TAKING = (State.SERVING, State.STOPPING)


class Link(Protocol):
    """What this needs of StubLink."""

    @property
    def state(self) -> State: ...

    def send(self, *messages: Message) -> None: ...


class Returns:
    """See the module.

    `slots` wait for the next Infer, and `slot_bytes` are their sizes together. Its sender takes and replaces both
    itself: a method would be a call for each request.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.slots: list[int] = []
        self.slot_bytes = 0
        self._credits: dict[int, tuple[int, int]] = {}

    def release(self, slot: int, size: int) -> None:
        """Give a response slot of `size` bytes back to the stub. Does nothing once the stub has ended."""
        self.slots.append(slot)
        self.slot_bytes += size
        if len(self.slots) >= RELEASES_WAITING_MAX or self.slot_bytes >= RELEASE_BYTES_WAITING_MAX:
            if self._link.state in _TAKING:
                self._link.send(Release(self.slots))
            self.slots = []
            self.slot_bytes = 0

    def credit(self, serial: int, size: int) -> None:
        """A client has taken another response, of `size` bytes, from a sender."""
        count, total = self._credits.get(serial, (0, 0))
        count, total = count + 1, total + size
        if count < CREDITS_WAITING_MAX and total < CREDIT_BYTES_WAITING_MAX:
            self._credits[serial] = (count, total)
            return
        self._credits.pop(serial, None)
        if self._link.state in _TAKING:
            self._link.send(Credit([[serial, count]]))

    def forget_credit(self, serial: int) -> None:
        """A request has ended: its sender needs no more credit."""
        self._credits.pop(serial, None)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Describes remote procedures for calls. methods.py lists the procedures.

Operators restrict a procedure by its `api`. `request` is the class of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import NamedTuple, Protocol

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc.schema import Message, MessageClass
from pyruntime.utils.errors import InferenceError

# The longest request, in bytes, of a method that takes neither tensors nor files. Usual ones have some hundred bytes.
REQUEST_BYTES_MAX = 64 << 10

# The API whose methods take little time.
HEALTH_API = "health"

# Called once, immediately or later, with a response or an InferenceError.
Reply = Callable[[Message], None]


class Method(NamedTuple):
    """One request, one response. `act` raises InferenceError, and does not reply then.

    `check` raises InferenceError if the server accepts no such call: no message is read then. A request may have
    `request_bytes_max`. `parse` runs in a thread for a long one, and raises DecodeError or InferenceError.
    """

    api: str
    request: MessageClass
    act: Callable[[ServerState, Message, Reply], None]
    check: Callable[[ServerState], None]
    request_bytes_max: int
    parse: Callable[[bytes], Message]


class Stream(Protocol):
    """One call of any number of messages either way. It sends nothing after its end."""

    def message(self, request: Message) -> None:
        """The client has sent a message."""

    def client_ended(self) -> None:
        """The client sends no more."""

    def cancelled(self) -> None:
        """The call is over, for any reason."""


# Sends a message.
Send = Callable[[Message], None]
# Ends the call, with success for None.
End = Callable[[InferenceError | None], None]


class StreamMethod(NamedTuple):
    """Any number of messages either way. `factory` makes a stream for each call."""

    api: str
    request: MessageClass
    factory: Callable[[ServerState, Send, End], Stream]


async def reply_after(work: Coroutine[object, object, None], response: Message, reply: Reply) -> None:
    """Reply with `response` when `work` is done, or with the InferenceError that it raises."""
    try:
        await work
    except InferenceError as exc:
        reply(exc)
    else:
        reply(response)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The conversation between host and stub, without the socket. (pure)

Both ends are the same class over two tables, which say which message is legal in which state and what state follows:
everything that decides legality is in HOST and STUB, and nowhere else. The shell feeds what it read to `receive_data`
and writes what `send` returns; the channel never blocks and never sees a socket.

    STARTING -Hello-> IDLE -AutoComplete-> COMPLETING -Completed-> IDLE
                      IDLE -Load-> LOADING -Ready-> SERVING -Stop-> STOPPING -Stopped-> CLOSED
    LoadFailed ends COMPLETING and LOADING in CLOSED; Infer and its answers are legal while SERVING, and answers also
    while STOPPING; what a model asks of the server and of other models is legal from LOADING on, and so is what it is
    told in return; Log is legal in every state but CLOSED.

Frames are msgpack arrays one after the other: msgpack is self-delimiting, so there is no length in front.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Dict, Iterable, List, Type

import msgpack

from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.messages import (
    FIELDS,
    MESSAGES,
    TAGS,
    Answer,
    Ask,
    AutoComplete,
    Call,
    CancelCall,
    CheckReady,
    Completed,
    Consumed,
    Credit,
    Failed,
    Hello,
    Infer,
    IsReady,
    Load,
    LoadFailed,
    Log,
    Measure,
    Message,
    Ready,
    Release,
    ReleaseHold,
    Reply,
    Requeue,
    Respond,
    Result,
    Retired,
    Stop,
    Stopped,
    Unmap,
    Unread,
)

# A frame carries handles, never tensors: 16 MiB is a batch of a thousand requests with 16 KiB of parameters each.
FRAME_BYTES_MAX = 16 << 20
# A read may bring the end of a frame that is as long as can be together with the beginning of the next.
BUFFER_BYTES_MAX = 2 * FRAME_BYTES_MAX
# What is held for that from the start: one read. msgpack would take 1 MiB, and in time use all of it, at both ends.
BUFFER_BYTES_MIN = 64 << 10


class State(Enum):
    """Where a conversation is. The same word means the same on both ends."""

    STARTING = auto()
    IDLE = auto()
    COMPLETING = auto()
    LOADING = auto()
    SERVING = auto()
    STOPPING = auto()
    CLOSED = auto()


# What follows, by state and then by message: a message that is not there is illegal.
Table = Dict[State, Dict[Type[Any], State]]

# What a model may want of the server, and what it is told of it, from the beginning of initialize on.
_QUESTIONS = (Call, CancelCall, Consumed, ReleaseHold, Ask, Measure, Log)
_ANSWERS = (Answer, Unread, Unmap, Reply)


def _staying(state: State, messages: Iterable[Type[Any]]) -> Dict[Type[Any], State]:
    return {message: state for message in messages}


TO_STUB: Table = {
    State.IDLE: {AutoComplete: State.COMPLETING, Load: State.LOADING, Stop: State.STOPPING},
    State.LOADING: _staying(State.LOADING, _ANSWERS),
    State.SERVING: {
        **_staying(State.SERVING, (Infer, Release, Credit, CheckReady, *_ANSWERS)),
        Stop: State.STOPPING,
    },
    State.STOPPING: _staying(State.STOPPING, (Release, Credit, *_ANSWERS)),
}
TO_HOST: Table = {
    State.STARTING: {Hello: State.IDLE, Log: State.STARTING},
    State.IDLE: {Log: State.IDLE},
    State.COMPLETING: {Completed: State.IDLE, LoadFailed: State.CLOSED, Log: State.COMPLETING},
    State.LOADING: {**_staying(State.LOADING, _QUESTIONS), Ready: State.SERVING, LoadFailed: State.CLOSED},
    State.SERVING: _staying(State.SERVING, (Result, Failed, Respond, Retired, Requeue, IsReady, *_QUESTIONS)),
    State.STOPPING: {
        **_staying(State.STOPPING, (Result, Failed, Respond, Retired, Requeue, IsReady, *_QUESTIONS)),
        Stopped: State.CLOSED,
    },
}
_NOTHING: Dict[Type[Any], State] = {}


class Channel:
    """One end of a conversation. Use HostChannel or StubChannel."""

    def __init__(self, sends: Table, receives: Table) -> None:
        self._sends = sends
        self._receives = receives
        self._enter(State.STARTING)
        # What a model puts into a message may be text that has no UTF-8: a lone surrogate of a file name, say.
        self._packer = msgpack.Packer(autoreset=True, unicode_errors="backslashreplace")
        self._unpacker = msgpack.Unpacker(
            raw=False, read_size=BUFFER_BYTES_MIN, max_buffer_size=BUFFER_BYTES_MAX, strict_map_key=False
        )
        self._fed = 0
        self._read = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def send(self, message: Message) -> bytes:
        """The bytes of `message`. Raises LocalError, with the state unchanged, if it is illegal now or too large."""
        kind = type(message)
        after = self._may_send.get(kind)
        if after is None:
            raise LocalError(f"{kind.__name__} may not be sent while {self.state.name}")
        try:
            data: bytes = self._packer.pack((TAGS[kind], message))
        except (TypeError, ValueError, OverflowError) as exc:
            self._packer.reset()
            raise LocalError(f"{kind.__name__} cannot be encoded: {exc}") from exc
        if len(data) > FRAME_BYTES_MAX:
            raise LocalError(f"{kind.__name__} is {len(data)} bytes and a frame holds {FRAME_BYTES_MAX}")
        if after is not self.state:
            self._enter(after)
        return data

    def receive_data(self, data: bytes) -> List[Message]:
        """The messages that `data` completes. Raises PeerError at the first illegal one; the channel is CLOSED then."""
        messages: List[Message] = []
        unpacker = self._unpacker
        try:
            unpacker.feed(data)
            self._fed += len(data)
            for tag, fields in unpacker:
                if tag < 0:
                    raise PeerError(f"no message has tag {tag}")
                kind = MESSAGES[tag]
                types = FIELDS[tag]
                if type(fields) is not list or len(fields) != len(types) or not all(map(isinstance, fields, types)):
                    raise PeerError(f"{kind.__name__} came with the wrong fields")
                after = self._may_receive.get(kind)
                if after is None:
                    raise PeerError(f"{kind.__name__} is not legal while {self.state.name}")
                if after is not self.state:
                    self._enter(after)
                messages.append(tuple.__new__(kind, fields))  # as _make does, which costs a call
                self._read = unpacker.tell()
        except PeerError:
            self._enter(State.CLOSED)
            raise
        except (TypeError, ValueError, IndexError, msgpack.UnpackException) as exc:
            self._enter(State.CLOSED)
            raise PeerError(f"not a frame of [tag, [field, ...]]: {type(exc).__name__}: {exc}") from exc
        return messages

    def receive_eof(self) -> None:
        """The other end hung up. Raises PeerError if it did so in the middle of a frame."""
        self._enter(State.CLOSED)
        left = self._fed - self._read
        if left:
            raise PeerError(f"hung up in the middle of a frame, after {left} bytes of it")

    def _enter(self, state: State) -> None:
        self.state = state
        self._may_send = self._sends.get(state, _NOTHING)
        self._may_receive = self._receives.get(state, _NOTHING)


class HostChannel(Channel):
    """The host's end."""

    def __init__(self) -> None:
        super().__init__(sends=TO_STUB, receives=TO_HOST)


class StubChannel(Channel):
    """The stub's end."""

    def __init__(self) -> None:
        super().__init__(sends=TO_HOST, receives=TO_STUB)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The conversation between host and stub, without the socket. (pure)

Both ends are the same class over two tables, which say which message is legal in which state and what state follows:
everything that decides legality is in HOST and STUB, and nowhere else. The shell feeds what it read to `receive_data`
and writes what `send` returns; the channel never blocks and never sees a socket.

    STARTING -Hello-> IDLE -AutoComplete-> COMPLETING -Completed-> IDLE
                      IDLE -Load-> LOADING -Ready-> SERVING -Stop-> STOPPING -Stopped-> CLOSED
    LoadFailed ends COMPLETING and LOADING in CLOSED; Infer and its answers are legal while SERVING, and answers also
    while STOPPING; Log is legal in every state but CLOSED.

Frames are msgpack arrays one after the other: msgpack is self-delimiting, so there is no length in front.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Dict, List, Tuple, Type

import msgpack

from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.messages import (
    FIELDS,
    MESSAGES,
    TAGS,
    AutoComplete,
    Completed,
    Failed,
    Hello,
    Infer,
    Load,
    LoadFailed,
    Log,
    Message,
    Ready,
    Release,
    Result,
    Retired,
    Stop,
    Stopped,
)

# A frame carries handles, never tensors: 16 MiB is a batch of a thousand requests with 16 KiB of parameters each.
FRAME_BYTES_MAX = 16 << 20


class State(Enum):
    """Where a conversation is. The same word means the same on both ends."""

    STARTING = auto()
    IDLE = auto()
    COMPLETING = auto()
    LOADING = auto()
    SERVING = auto()
    STOPPING = auto()
    CLOSED = auto()


Table = Dict[Tuple[State, Type[Any]], State]

_S = State
TO_STUB: Table = {
    (_S.IDLE, AutoComplete): _S.COMPLETING,
    (_S.IDLE, Load): _S.LOADING,
    (_S.IDLE, Stop): _S.STOPPING,
    (_S.SERVING, Infer): _S.SERVING,
    (_S.SERVING, Release): _S.SERVING,
    (_S.SERVING, Stop): _S.STOPPING,
    (_S.STOPPING, Release): _S.STOPPING,
}
TO_HOST: Table = {
    (_S.STARTING, Hello): _S.IDLE,
    (_S.COMPLETING, Completed): _S.IDLE,
    (_S.COMPLETING, LoadFailed): _S.CLOSED,
    (_S.LOADING, Ready): _S.SERVING,
    (_S.LOADING, LoadFailed): _S.CLOSED,
    (_S.SERVING, Result): _S.SERVING,
    (_S.SERVING, Failed): _S.SERVING,
    (_S.SERVING, Retired): _S.SERVING,
    (_S.STOPPING, Result): _S.STOPPING,
    (_S.STOPPING, Failed): _S.STOPPING,
    (_S.STOPPING, Retired): _S.STOPPING,
    (_S.STOPPING, Stopped): _S.CLOSED,
}
TO_HOST.update({(state, Log): state for state in State if state is not State.CLOSED})


class Channel:
    """One end of a conversation. Use HostChannel or StubChannel."""

    def __init__(self, sends: Table, receives: Table) -> None:
        self.state = State.STARTING
        self._sends = sends
        self._receives = receives
        self._packer = msgpack.Packer(autoreset=True)
        self._unpacker = msgpack.Unpacker(raw=False, max_buffer_size=FRAME_BYTES_MAX, strict_map_key=False)
        self._fed = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def send(self, message: Message) -> bytes:
        """The bytes of `message`. Raises LocalError, with the state unchanged, if it is illegal now or too large."""
        kind = type(message)
        after = self._sends.get((self.state, kind))
        if after is None:
            raise LocalError(f"{kind.__name__} may not be sent while {self.state.name}")
        data: bytes = self._packer.pack((TAGS[kind], message))
        if len(data) > FRAME_BYTES_MAX:
            raise LocalError(f"{kind.__name__} is {len(data)} bytes and a frame holds {FRAME_BYTES_MAX}")
        self.state = after
        return data

    def receive_data(self, data: bytes) -> List[Message]:
        """The messages that `data` completes. Raises PeerError at the first illegal one; the channel is CLOSED then."""
        messages: List[Message] = []
        unpacker = self._unpacker
        try:
            unpacker.feed(data)
            self._fed += len(data)
            for frame in unpacker:
                messages.append(self._receive(frame))
        except PeerError:
            self.state = State.CLOSED
            raise
        except (ValueError, msgpack.UnpackException) as exc:
            self.state = State.CLOSED
            raise PeerError(f"not a frame: {type(exc).__name__}: {exc}") from exc
        return messages

    def receive_eof(self) -> None:
        """The other end hung up. Raises PeerError if it did so in the middle of a frame."""
        self.state = State.CLOSED
        left = self._fed - self._unpacker.tell()
        if left:
            raise PeerError(f"hung up in the middle of a frame, after {left} bytes of it")

    def _receive(self, frame: Any) -> Message:
        try:
            tag, fields = frame
            kind = MESSAGES[tag]
            types = FIELDS[tag]
        except (TypeError, ValueError, IndexError) as exc:
            raise PeerError("not a message: expected [tag, [field, ...]]") from exc
        if type(fields) is not list or len(fields) != len(types) or not all(map(isinstance, fields, types)):
            raise PeerError(f"{kind.__name__} came with the wrong fields")
        after = self._receives.get((self.state, kind))
        if after is None:
            raise PeerError(f"{kind.__name__} is not legal while {self.state.name}")
        self.state = after
        message: Message = kind._make(fields)
        return message


class HostChannel(Channel):
    """The host's end."""

    def __init__(self) -> None:
        super().__init__(sends=TO_STUB, receives=TO_HOST)


class StubChannel(Channel):
    """The stub's end."""

    def __init__(self) -> None:
        super().__init__(sends=TO_HOST, receives=TO_STUB)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The protocol between host and stub, without I/O. (pure)

Both ends are the same class with two tables, HOST and STUB, which define the legal messages in each state and the next
state. The caller passes received bytes to `receive_data` and writes the bytes that `send` returns; the channel never
blocks and has no socket.

    STARTING -Hello-> IDLE -AutoComplete-> COMPLETING -Completed-> IDLE
                      IDLE -Load-> LOADING -Ready-> SERVING -Stop-> STOPPING -Stopped-> CLOSED
    LoadFailed ends COMPLETING and LOADING in CLOSED. Infer and its answers are legal while SERVING, and answers also
    while STOPPING. Calls to the server and to other models, and their results, are legal from LOADING on. Log is legal
    in every state except CLOSED.

Frames are consecutive msgpack arrays. msgpack is self-delimiting, so frames have no length prefix.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Type

import msgpack

from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.frames import pack, unpack
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
    DropSequences,
    Failed,
    Hello,
    Infer,
    IsReady,
    Load,
    LoadFailed,
    Log,
    MapGpu,
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
    UnmapGpu,
    Unread,
)

# A frame has addresses of tensors, not contents: 16 MiB is a batch of 1000 requests with 16 KiB of parameters each.
FRAME_BYTES_MAX = 16 << 20
# One read may return the end of a frame of maximum size together with the beginning of the next frame.
BUFFER_BYTES_MAX = 2 * FRAME_BYTES_MAX
# The initial size of the buffer: one read. msgpack's default is 1 MiB, all of which would be in use over time.
BUFFER_BYTES_MIN = 64 << 10


class State(Enum):
    """The state of a channel, with the same meaning on both ends."""

    STARTING = auto()
    IDLE = auto()
    COMPLETING = auto()
    LOADING = auto()
    SERVING = auto()
    STOPPING = auto()
    CLOSED = auto()


# The next state, by state and then by message. A message without an entry is illegal.
Table = Dict[State, Dict[Type[Any], State]]

# The messages of a model to the server, legal from the beginning of initialize on.
_QUESTIONS = (Call, CancelCall, Consumed, ReleaseHold, Ask, Measure, Log)
_ANSWERS = (Answer, Unread, MapGpu, UnmapGpu, Unmap, Reply)


def _staying(state: State, messages: Iterable[Type[Any]]) -> Dict[Type[Any], State]:
    return {message: state for message in messages}


TO_STUB: Table = {
    State.IDLE: {AutoComplete: State.COMPLETING, Load: State.LOADING, Stop: State.STOPPING},
    State.LOADING: _staying(State.LOADING, _ANSWERS),
    State.SERVING: {
        **_staying(State.SERVING, (Infer, Release, Credit, CheckReady, DropSequences, *_ANSWERS)),
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
    """One end of the protocol. Use HostChannel or StubChannel."""

    def __init__(self, sends: Table, receives: Table) -> None:
        self._sends = sends
        self._receives = receives
        self._enter(State.STARTING)
        # Of frames that come in several pieces.
        self._unpacker = msgpack.Unpacker(
            raw=False, read_size=BUFFER_BYTES_MIN, max_buffer_size=BUFFER_BYTES_MAX, strict_map_key=False
        )
        self._fed = 0
        self._read = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def send(self, message: Tuple[Any, ...], kind: Optional[Type[Any]] = None) -> bytes:
        """Encode `message`, or the fields of a message of this `kind`: to make one costs more than to encode it.

        Raises LocalError, and keeps the state, if it is illegal in this state or too large.
        """
        if kind is None:
            kind = type(message)
        after = self._may_send.get(kind)
        if after is None:
            raise LocalError(f"{kind.__name__} may not be sent while {self.state.name}")
        try:
            data = pack((TAGS[kind], message))
        except (TypeError, ValueError, OverflowError, BufferError) as exc:
            raise LocalError(f"{kind.__name__} cannot be encoded: {exc}") from exc
        if len(data) > FRAME_BYTES_MAX:
            raise LocalError(f"{kind.__name__} is {len(data)} bytes and a frame holds {FRAME_BYTES_MAX}")
        if after is not self.state:
            self._enter(after)
        return data

    def send_frame(self, kind: Type[Any], frame: bytes) -> bytes:
        """The frame of a message of this kind that is encoded already. It must be one that keeps the state.

        Raises LocalError as `send`.
        """
        if self._may_send.get(kind) is not self.state:
            raise LocalError(f"{kind.__name__} may not be sent while {self.state.name}")
        if len(frame) > FRAME_BYTES_MAX:
            raise LocalError(f"{kind.__name__} is {len(frame)} bytes and a frame holds {FRAME_BYTES_MAX}")
        return frame

    def receive_data(self, data: bytes) -> List[Message]:
        """The messages that `data` completes. Raises PeerError at the first illegal one, and closes the channel."""
        messages: List[Message]
        try:
            if self._fed == self._read:  # no frame has begun, as nearly always
                messages, size = unpack(data, MESSAGES, FIELDS)
                if size < len(data):
                    messages.extend(self._unpack_rest(data[size:]))
            else:
                messages = list(self._unpack_rest(data))
            for message in messages:
                kind = type(message)
                after = self._may_receive.get(kind)
                if after is None:
                    raise PeerError(f"{kind.__name__} is not legal while {self.state.name}")
                if after is not self.state:
                    self._enter(after)
        except PeerError:
            self._enter(State.CLOSED)
            raise
        except (TypeError, ValueError, IndexError, msgpack.UnpackException) as exc:
            self._enter(State.CLOSED)
            raise PeerError(f"not a frame of [tag, [field, ...]]: {type(exc).__name__}: {exc}") from exc
        return messages

    def _unpack_rest(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes, where it begins or ends within a frame, or has an illegal one."""
        unpacker = self._unpacker
        unpacker.feed(data)
        self._fed += len(data)
        for tag, fields in unpacker:
            if tag < 0:
                raise PeerError(f"no message has tag {tag}")
            kind, types = MESSAGES[tag], FIELDS[tag]
            if type(fields) is not list or len(fields) != len(types) or not all(map(isinstance, fields, types)):
                raise PeerError(f"{kind.__name__} came with the wrong fields")
            self._read = unpacker.tell()
            yield tuple.__new__(kind, fields)
            if self._read == self._fed:
                break  # an unpacker that is asked for more raises an exception

    def receive_eof(self) -> None:
        """The other end closed the connection. Raises PeerError if that was in the middle of a frame."""
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

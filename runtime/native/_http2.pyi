# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server's side of one HTTP/2 connection that carries gRPC, by libnghttp2. Sans-I/O: bytes in, events out.

HTTP/2 itself (RFC 9113) is nghttp2's: frames, HPACK, windows, the order of frames, floods. On top of it stands the
framing of gRPC's messages, and one step of protobuf: the tensors of an inference request are told apart from all else
in it without a copy.

A *packed* list of headers is bytes: `name NUL value NUL` for each of them. No header can hold a NUL (RFC 9113, section
8.2.1), nghttp2 sees to that.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from typing_extensions import Buffer

# Kinds of events. Each event is a tuple of four, `(kind, stream, value, ended)`. `ended` says that the client sends no
# more on this stream; it may come with a message or by itself (END).

# A request's head has come: value is `(packed headers, timeout)`. The packed headers are all of them but grpc-timeout,
# pseudo headers (":path") included, in their order. timeout is in nanoseconds, -1 for none, -2 for one that is
# unreadable.
REQUEST: Final[int]
# A message: value is its bytes.
MESSAGE: Final[int]
# A message whose compressed flag is set: value is its bytes as they came.
COMPRESSED: Final[int]
# A message that went where `place` said: value is `(meta, raws)`: all of its top-level fields but the raw contents, as
# bytes; and for each of the raw contents `(offset in the buffer, length)`.
PLACED: Final[int]
# The client sends no more; nothing came with that.
END: Final[int]
# The stream is over before its response was complete: value is the error code of HTTP/2. Nothing more can be sent on
# it. A stream that `reset` ends is not told. (One that ends inside of `send`, because its headers cannot be sent, is
# told by the next `receive`.)
RESET: Final[int]
# A message says that it has more than `message_bytes` bytes: value is how many it says. What comes of it is dropped,
# and no further message of this stream is looked at.
TOO_LARGE: Final[int]
# What came is no message: value says why, as a str. No further message of this stream is looked at.
MALFORMED: Final[int]
# The client pings (`value` False), or has answered a ping of ours (True); stream is 0.
PING: Final[int]
# The client opens no more streams: value is its error code; stream is 0.
GOAWAY: Final[int]

Event: TypeAlias = tuple[int, int, object, bool]
Raws: TypeAlias = tuple[tuple[int, int], ...]
# Asked by `receive` where a message of more than `large_bytes` bytes, not compressed, may go: `(stream, meta, left)`.
# It is called once for such a message, when the first raw contents (field 7) begin: `meta` are the top-level fields
# before them, `left` is how many bytes of the message are left, their tag included. It answers with a writable buffer
# (each of the raw contents is put into it at the next multiple of `alignment`; if they do not fit, the event is
# MALFORMED); with None, for a MESSAGE like any other; or with False, to drop the rest of the message, of which no event
# tells. It may call any method of the session but receive, send and close (RuntimeError). An exception that it raises
# comes out of `receive`, and the session is of no use any more.
#
# By then all that came on the stream before the message, its head too, was told by a call of `receive` that is over.
# Of a message that came too early for that, what comes together with those is kept (and copied once more). If that is
# all of it, it is a MESSAGE like any other.
Place: TypeAlias = Callable[[int, bytes, int], Buffer | Literal[False] | None]

class Http2Error(Exception):
    """The client does not speak HTTP/2 at all, or floods us. What `send` still has says so to it; then nothing is left.

    Most broken rules raise nothing: nothing more comes of the connection, and once `send` has given the GOAWAY that
    says why, `wants_io` is False.
    """

class Session:
    """See the module. Not thread-safe. A stream is a number that an event named.

    To say something on a stream that is over, or was never there, has no effect (and `release` is let go of by the next
    `send`): clients may go at any time. `release` is any object but None; `send` hands it back once, when nothing
    refers to the parts that came with it any more but what `send` has returned. Parts are not to be changed until then.
    A method that raises has not taken its `release`.

    A response that begins twice, or goes on before it has begun, is a RuntimeError; what comes after its end is
    ignored. From its end on (`respond`, `refuse`, `end`, `reset`) no message of the client's is told any more, and
    nothing is written to where `place` said.
    """

    def __init__(
        self,
        place: Place,
        *,
        max_streams: int,
        stream_window: int,
        connection_window: int,
        header_list_bytes: int,
        message_bytes: int,
        large_bytes: int,
        frame_bytes: int,
        alignment: int,
    ) -> None:
        """Say nothing yet; SETTINGS are the first thing that `send` has.

        `max_streams` that are open at a time: more are refused (REFUSED_STREAM) as long as the client has not confirmed
        that it knows, and then end the connection. Windows in bytes, kept open by the session itself. A stream whose
        headers have more than `header_list_bytes` (as RFC 9113, section 6.5.2 counts) is reset (ENHANCE_YOUR_CALM) and
        not told. Messages of more than `large_bytes` bytes are placed. `frame_bytes` is the largest frame that is
        accepted. Raises ValueError for what HTTP/2 does not allow.
        """

    def receive(self, data: Buffer, /) -> list[Event]:
        """Take what has come from the client, and tell what it means, in order. Nothing of `data` is kept by reference.

        Raises Http2Error, also when more than 1 MiB of answers to pings and the like has come together since the last
        `send`. What was understood before is lost then: the connection is of no use any more.
        """

    def send(self) -> tuple[list[bytes | memoryview], list[object]]:
        """What to write to the client now, in order, as far as its windows go; and every `release` that is due.

        Small parts are joined into bytes, large ones come as views of what they were given as, and are to be written
        before what they refer to is released.
        """

    def respond(
        self, stream: int, head: bytes, parts: Sequence[Buffer], trailers: bytes, release: object = None, /
    ) -> None:
        """A whole response: head, one message that consists of `parts`, trailers. Both lists are packed."""

    def refuse(self, stream: int, trailers: bytes, /) -> None:
        """A response of nothing but headers, if none has begun; else the end of that. `trailers` begin with ":status".

        As the end of a response they go without that, after all of its messages.
        """

    def begin(self, stream: int, head: bytes, /) -> None:
        """The head of a response with any number of messages."""

    def message(
        self, stream: int, parts: Sequence[Buffer], release: object = None, compressed: bool = False, /
    ) -> None:
        """One message of a response that has begun, which consists of `parts`.

        `send` does not hand `release` back before all of it is sent, though its parts are small and were copied: who
        waits for that has only so many messages under way.
        """

    def end(self, stream: int, trailers: bytes, /) -> None:
        """The end of a response that has begun, after all of its messages."""

    def reset(self, stream: int, code: int, /) -> None:
        """End a stream at once: what is not sent of it never is."""

    def hold(self, stream: int, /) -> None:
        """Do not open the stream's window for what comes from now on: the client stops when it is used up."""

    def resume(self, stream: int, /) -> None:
        """Open it again."""

    def ping(self) -> None:
        """Ask the client for a sign of life."""

    def shut_down(self) -> None:
        """Tell the client to open no more streams, and let it finish those it has (GOAWAY, without an error).

        Streams that cross it on the way are still served: the last GOAWAY follows the answer to a ping, by itself.
        """

    def terminate(self, code: int, reason: bytes, /) -> None:
        """Tell the client that the connection ends, and why (GOAWAY). `wants_io` is False once that is sent."""

    def close(self) -> None:
        """Forget everything. The next `send` hands back every `release` there is and nothing to write."""

    def queued(self, stream: int, /) -> int:
        """How many bytes of messages, with their prefixes, wait on a stream; 0 if there is no such stream.

        After a `send`, they wait for the client's windows.
        """

    def waiting(self) -> list[tuple[int, int, int]]:
        """The streams on which something is unfinished: `(stream, taken, sent)`.

        `taken` is how many bytes have ever come on the stream if the client is inside of a message and may send more of
        it, and -1 if not; `sent` is how many bytes of messages were ever sent if more of them wait, and -1 if not.
        Either grows if there is progress.
        """

    @property
    def begun(self) -> bool:
        """Whether the client has said what it must say first: its preface and its SETTINGS."""

    @property
    def blocked(self) -> bool:
        """Whether messages wait: after a `send`, for windows of the client."""

    @property
    def open_streams(self) -> int:
        """How many streams are open."""

    @property
    def wants_io(self) -> bool:
        """Whether there is anything left to read or to write; if not, the connection can be closed."""

def split(message: bytes, alignment: int, /) -> tuple[bytes, bytes, Raws, int] | None:
    """The parts of a serialised ModelInferRequest: `(key, id, raws, size)`; None if it is no protobuf.

    None also for more than 65536 raw contents.

    `key` are all top-level fields but the id (field 3) and the raw contents (field 7), `id` is the id as it came, and
    `raws` says for each of the raw contents `(offset in the message, length)`. `size` is how many bytes they need with
    each of them at a multiple of `alignment`.
    """

def scatter(message: bytes, raws: Raws, destination: Buffer, alignment: int, /) -> None:
    """Copy the raw contents of a message to `destination`, each at the next multiple of `alignment`.

    Raises ValueError if they do not fit, or do not lie in the message.
    """

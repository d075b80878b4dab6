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
# more on this stream; it may come with the head, with a message or by itself (END).

# A request's head has come: value is `(packed headers, timeout)`. The packed headers are all of them but grpc-timeout,
# pseudo headers (":path") included, in their order. timeout is in nanoseconds, -1 for none, -2 for one that is
# unreadable.
REQUEST: Final[int]
# A message: value is its bytes.
MESSAGE: Final[int]
# A message whose compressed flag is set: value is its bytes as they came.
COMPRESSED: Final[int]
# A message in the buffer of `place`: value is `(meta, raws)`: all of its top-level fields but the raw contents, as
# bytes; and for each of the raw contents `(offset in the buffer, length)`.
PLACED: Final[int]
# The client sends no more on this stream. The event has no data.
END: Final[int]
# The stream ended before its response was complete: value is the error code of HTTP/2. The stream accepts no more data.
# `reset` causes no event. (If a stream ends in `send`, because its headers cannot be sent, the next `receive` returns
# the event.)
RESET: Final[int]
# The prefix of a message announces more than `message_bytes` bytes: value is that number. Its bytes, and all further
# messages of this stream, are dropped.
TOO_LARGE: Final[int]
# An invalid message: value is the reason, a str. All further messages of this stream are dropped.
MALFORMED: Final[int]
# A ping of the client (`value` False), or its answer to our ping (True); stream is 0.
PING: Final[int]
# The client opens no more streams: value is its error code; stream is 0.
GOAWAY: Final[int]

Event: TypeAlias = tuple[int, int, object, bool]
Raws: TypeAlias = tuple[tuple[int, int], ...]
# The typed contents of each input that has some: `(offset, length, size, index, elements, members)`. Offset and length
# are those of the input in the message; `size` is that of its contents as a tensor; `index` is its number among the
# inputs. `elements` is how many of the contents belong to its datatype; and bit N - 1 of `members` says whether field N
# of the contents has elements.
Typed: TypeAlias = tuple[tuple[int, int, int, int, int, int], ...]
# Asked by `receive` where a message of more than `large_bytes` bytes, not compressed, may go: `(stream, meta, left)`.
# It is called once for such a message, when the first raw contents (field 7) begin: `meta` are the top-level fields
# before them, `left` is how many bytes of the message are left, their tag included. It answers with a writable buffer
# (each of the raw contents is put into it at the next multiple of `alignment`; if they do not fit, the event is
# MALFORMED), or with one that grows; with None, for a MESSAGE like any other; or with False, to drop the rest of the
# message, of which no event tells. It may call any method of the session but receive, send and close (RuntimeError). An
# exception that it raises comes out of `receive`, and the session is of no use any more.
#
# By then all that came on the stream before the message, its head too, was told by a call of `receive` that is over.
# A message that has more than 4 MiB before its raw contents is a MESSAGE like any other, too. Of one that announces
# more than 16 MiB, a part arrives before `place` is called: a sixteenth, but at most 32 MiB.
#
# Of a message that came too early for that, what comes together with those is kept (and copied once more). If that is
# all of it, it is a MESSAGE like any other.
Place: TypeAlias = Callable[[int, bytes, int], Buffer | Growing | Literal[False] | None]
# A buffer that grows, `(buffer, ready, grow)`: its first `ready` bytes may be written. Before more are, `receive` calls
# `grow` with the number of bytes that must be ready, and it returns how many are; if these are fewer, the rest of the
# message is dropped. For `grow` holds what is said of Place.
Growing: TypeAlias = tuple[Buffer, int, Callable[[int], int]]

class Http2Error(Exception):
    """The client does not speak HTTP/2, or floods the server. The next `send` returns the last frames for the client.

    Most violations raise no error: the connection has no more events, and `wants_io` is False once `send` has returned
    the GOAWAY with the reason.
    """

class Session:
    """See the module. Not thread-safe. A stream is a number that an event named.

    Calls for an ended or unknown stream have no effect (and the next `send` returns their `release`), because clients
    may disconnect at any time. `release` is any object but None; `send` returns it once, when only the results of
    `send` refer to the parts that were passed with it. Parts must not change until then. A method that raises does not
    keep its `release`.

    A response that begins twice, or continues before it has begun, is a RuntimeError; calls after its end are ignored.
    From its end on (`respond`, `refuse`, `end`, `reset`) messages of the client cause no events, and the buffer of
    `place` is not written.
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
        """Create the session. The first `send` returns its SETTINGS.

        `max_streams` that are open at a time: more are refused (REFUSED_STREAM) as long as the client has not confirmed
        that it knows, and then end the connection. Windows in bytes, kept open by the session itself. A stream whose
        headers have more than `header_list_bytes` (as RFC 9113, section 6.5.2 counts) is reset (ENHANCE_YOUR_CALM) and
        not told. Messages of more than `large_bytes` bytes are placed. `frame_bytes` is the largest frame that is
        accepted. Raises ValueError for what HTTP/2 does not allow.
        """

    def receive(self, data: Buffer, /) -> list[Event]:
        """Process bytes from the client, and return their events in order. Keeps no reference to `data`.

        Raises Http2Error, also if more than 1 MiB of answers to pings and the like have accumulated since the last
        `send`. Earlier events of the same call are then lost, and the connection is unusable.
        """

    def send(self) -> tuple[list[bytes | memoryview], list[object]]:
        """The data to write to the client now, in order, as far as its windows allow; and every `release` that is due.

        Small parts are joined into bytes. Large ones are views of the given parts; write them before the release of
        those.
        """

    def respond(
        self, stream: int, head: bytes, parts: Sequence[Buffer], trailers: bytes, release: object = None, /
    ) -> None:
        """Send a complete response: head, one message that consists of `parts`, trailers. Both lists are packed."""

    def refuse(self, stream: int, trailers: bytes, /) -> None:
        """Send a response that has only headers, or end the one that has begun. `trailers` begin with ":status".

        At the end of a response they are sent without ":status", after all of its messages.
        """

    def begin(self, stream: int, head: bytes, /) -> None:
        """Send the head of a response with any number of messages."""

    def message(
        self, stream: int, parts: Sequence[Buffer], release: object = None, compressed: bool = False, /
    ) -> None:
        """Send one message, which consists of `parts`, of a response that has begun.

        `send` returns `release` only after the complete message is sent, even if its parts are small and were copied,
        so that callers can limit the number of unsent messages.
        """

    def end(self, stream: int, trailers: bytes, /) -> None:
        """End a response that has begun, after all of its messages."""

    def reset(self, stream: int, code: int, /) -> None:
        """End a stream at once. Drops its unsent data."""

    def hold(self, stream: int, /) -> None:
        """Stop extending the stream's window for received data: the client stops when the window is used up."""

    def resume(self, stream: int, /) -> None:
        """Extend the stream's window again."""

    def limit(self, stream: int, nbytes: int, /) -> None:
        """Accept no messages of more than `nbytes` bytes on a stream, instead of `message_bytes`.

        It applies to a message that is under way, too, but not to those that have been told. Raises ValueError for more
        than 2^32 - 1.
        """

    def largest(self) -> int:
        """The stream with most of the `gathered` bytes, 0 if there are none."""

    def ping(self) -> None:
        """Send a ping, which a live client answers."""

    def shut_down(self) -> None:
        """Request that the client opens no more streams, and let it finish its open ones (GOAWAY without an error).

        Streams that cross it on the way are still served: the last GOAWAY follows the answer to a ping, by itself.
        """

    def terminate(self, code: int, reason: bytes, /) -> None:
        """Send a GOAWAY with the reason for the end of the connection. `wants_io` is False once it is sent."""

    def close(self) -> None:
        """Drop everything. The next `send` returns every `release` and no data."""

    def queued(self, stream: int, /) -> int:
        """The bytes of messages, with their prefixes, that wait on a stream; 0 if there is no such stream.

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
        """Whether the client has sent its preface and its SETTINGS."""

    @property
    def blocked(self) -> bool:
        """Whether messages wait: after a `send`, for windows of the client."""

    @property
    def gathered(self) -> int:
        """The bytes in the heap that belong to incomplete messages of more than 1 KiB."""

    @property
    def open_streams(self) -> int:
        """The number of open streams."""

    @property
    def wants_io(self) -> bool:
        """Whether data remains to be read or written; if not, the connection can be closed."""

def split(message: Buffer, alignment: int, /) -> tuple[bytes, bytes, Raws, int, Typed] | None:
    """The parts of a serialised ModelInferRequest: `(key, id, raws, size, typed)`; None if it is no protobuf.

    None also for more than 65536 raw contents. Raises ValueError, with the reason for the client, if the message has
    too many inputs, outputs or parameters, or too much besides the contents of its tensors: all of it is counted before
    anything is allocated.

    `key` are all top-level fields but the id (field 3) and the raw contents (field 7); its inputs have no typed
    contents. `id` is the id as it came, and `raws` says for each of the raw contents `(offset in the message, length)`.
    `size` is how many bytes they need with each of them at a multiple of `alignment`; without raw contents it is what
    the typed ones need. A message of more than 64 KiB is read without Python's lock.
    """

def scatter(message: Buffer, raws: Raws, destination: Buffer, alignment: int, /) -> None:
    """Copy the raw contents of a message to `destination`, each at the next multiple of `alignment`.

    Raises ValueError if they do not fit, or do not lie in the message. A message of more than 64 KiB is copied without
    Python's lock.
    """

def pack(message: Buffer, typed: Typed, destination: Buffer, alignment: int, /) -> tuple[bool, ...]:
    """Write typed contents to `destination` as raw ones, each at the next multiple of `alignment`.

    Returns for each of them whether all values are in the range of their datatype; if not, what is written has no
    meaning. Only the elements of the member that belongs to the datatype are written. Raises ValueError if they do not
    fit, or do not lie in the message. A message of more than 64 KiB is read without Python's lock.
    """

def count_fields(message: Buffer, entries: int, /) -> int | None:
    """The number of fields of a message, and of those in its fields of number `entries`; None if it is no protobuf.

    Those are the entries of a map of parameters: their fields count, and those of their values. A message of more than
    64 KiB is read without Python's lock.
    """

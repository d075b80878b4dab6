# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections and streams: events, responses, windows, refusals, ends. See conftest.py."""

import struct

import h2.events
import h2.settings
import pytest

from pyruntime.runtime.native import _http2
from pyruntime.runtime.native._http2 import END, GOAWAY, MESSAGE, PING, REQUEST, RESET

MIB = 1 << 20
WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
FRAME = h2.settings.SettingCodes.MAX_FRAME_SIZE
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
CANCEL = 8


def framed(message, flag=0):
    return struct.pack(">BI", flag, len(message)) + message


def kinds(events):
    return [(kind, stream, ended) for kind, stream, _, ended in events]


class Token:
    """Something to be handed back."""


def test_unary(client):
    """A call is two events, its answer one piece of bytes."""
    stream = client.open((b"x-more", b"1"), (b"x-empty", b""))
    client.send(stream, framed(b"question"), end=True)
    head, message = client.pump()
    names = [*client.HEADERS, (b"x-more", b"1"), (b"x-empty", b"")]
    assert head == (REQUEST, stream, (client.packed(*names), -1), False)
    assert message == (MESSAGE, stream, b"question", True)
    token = Token()
    client.session.respond(stream, client.HEAD, [b"ans", bytearray(b"wer"), b""], client.TRAILERS, token)
    chunks = client.to_client()
    assert [type(chunk) for chunk in chunks] == [bytes]
    assert client.data[stream] == framed(b"answer")
    assert client.heads[stream] == [(b":status", b"200"), (b"content-type", b"application/grpc")]
    assert client.trailers[stream] == [(b"grpc-status", b"0")]
    assert client.ended == {stream}
    assert client.released == [token]
    assert client.session.open_streams == 0
    assert client.session.wants_io


def test_requests_without_messages(client):
    """The end can come with the head, or by itself."""
    first = client.open(end=True)
    second = client.open()
    client.pump()
    client.h2.end_stream(second)
    assert kinds(client.pump()) == [(REQUEST, first, True), (REQUEST, second, False), (END, second, True)]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        (b"1H", 3600 * 10**9),
        (b"2M", 120 * 10**9),
        (b"3S", 3 * 10**9),
        (b"4m", 4 * 10**6),
        (b"5u", 5000),
        (b"6n", 6),
        (b"0n", 0),
        (b"00000001S", 10**9),
        (b"000000001S", -2),
        (b"99999999H", 2**63 - 1),
        (b"99999999n", 99999999),
        (b"S", -2),
        (b"1", -2),
        (b"", -2),
        (b"1s", -2),
        (b"-1S", -2),
        (b"1.5S", -2),
    ],
)
def test_timeouts(client, text, nanoseconds):
    """A timeout is reported on its own and not as a header."""
    client.open((b"grpc-timeout", text))
    ((_, _, (head, timeout), _),) = client.pump()
    assert timeout == nanoseconds
    assert head == client.packed(*client.HEADERS)


def test_stream_of_responses(client):
    """Messages go in their order as they come, the trailers after them."""
    stream = client.call(b"question")
    client.session.begin(stream, client.HEAD)
    client.pump()
    assert client.data == {}
    tokens = [Token() for _ in range(3)]
    for i, token in enumerate(tokens):
        client.session.message(stream, [b"%d" % i], token)
        client.pump()
        assert client.released == tokens[: i + 1]
    client.session.message(stream, [b"packed"], None, True)
    client.session.message(stream, [])
    client.session.end(stream, client.TRAILERS)
    client.session.message(stream, [b"too late"], "late")
    client.pump()
    messages = [framed(b"0"), framed(b"1"), framed(b"2"), framed(b"packed", 1), framed(b"")]
    assert client.data[stream] == b"".join(messages)
    assert client.trailers[stream] == [(b"grpc-status", b"0")]
    assert client.released == [*tokens, "late"]


def test_both_ways(client):
    """Messages come and go at the same time, until both sides are done."""
    stream = client.open()
    client.pump()
    client.session.begin(stream, client.HEAD)
    client.take_events()
    for i in range(3):
        client.send(stream, framed(b"%d" % i))
        assert client.pump() == [(MESSAGE, stream, b"%d" % i, False)]
        client.session.message(stream, [b"%d" % i])
        client.take_events()
        client.pump()
    client.h2.end_stream(stream)
    assert client.pump() == [(END, stream, None, True)]
    client.session.end(stream, client.TRAILERS)
    client.pump()
    assert client.data[stream] == framed(b"0") + framed(b"1") + framed(b"2")
    assert client.ended == {stream}


def test_refusal(client):
    """A refusal is headers and nothing else."""
    stream = client.call(b"question")
    client.session.refuse(stream, client.REFUSAL)
    client.pump()
    assert client.heads[stream][-1] == (b"grpc-status", b"8")
    assert client.ended == {stream}
    assert client.data == client.trailers == client.resets == {}


def test_refusal_of_what_has_begun(client):
    """A response that has begun ends with the refusal, without its status."""
    stream = client.call(b"question")
    client.session.begin(stream, client.HEAD)
    client.session.message(stream, [b"answer"])
    client.session.refuse(stream, client.REFUSAL)
    client.pump()
    assert client.data[stream] == framed(b"answer")
    assert client.trailers[stream] == [(b"content-type", b"application/grpc"), (b"grpc-status", b"8")]


def test_answer_before_the_end(client):
    """A client that is answered while it still sends gets a reset without an error."""
    stream = client.call(b"question", end=False)
    client.session.respond(stream, client.HEAD, [b"enough"], client.TRAILERS)
    client.take_events()
    client.pump()
    assert client.ended == {stream}
    assert client.resets == {stream: 0}
    assert client.take_events() == []
    assert client.session.open_streams == 0


def test_order_of_calls(client):
    """A call that does not fit the state of the stream is an error of the caller."""
    stream = client.call(b"question")
    session = client.session
    for wrong in (lambda: session.message(stream, [b""]), lambda: session.end(stream, client.TRAILERS)):
        with pytest.raises(RuntimeError, match="has not begun"):
            wrong()
    session.begin(stream, client.HEAD)
    for wrong in (
        lambda: session.begin(stream, client.HEAD),
        lambda: session.respond(stream, client.HEAD, [b""], client.TRAILERS),
    ):
        with pytest.raises(RuntimeError, match="has begun before"):
            wrong()
    for wrong in (
        lambda: session.message(stream, ["text"]),
        lambda: session.message(stream, 5),
        lambda: session.message("1", []),
        lambda: session.message(stream),
        lambda: session.end(stream, "text"),
    ):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (b"grpc-status\0" + b"0", b"grpc-status\0", b"\0\0\0"):
        with pytest.raises(ValueError, match="no packed headers"):
            session.end(stream, wrong)
    session.end(stream, client.TRAILERS)
    session.end(stream, client.TRAILERS)
    client.pump()
    assert client.ended == {stream}


def test_streams_that_are_not_there(client):
    """Calls on streams that have ended or never existed have no effect, except that their tokens are released."""
    over = client.call(b"question")
    client.session.respond(over, client.HEAD, [b"answer"], client.TRAILERS)
    client.pump()
    for stream in (over, 0, -1, 77, 2**31 - 1, 2**40, 2**70):
        client.released.clear()
        client.session.respond(stream, client.HEAD, [b"x"], client.TRAILERS, "respond")
        client.session.message(stream, [b"x"], "message")
        client.session.begin(stream, client.HEAD)
        client.session.end(stream, client.TRAILERS)
        client.session.refuse(stream, client.REFUSAL)
        client.session.reset(stream, CANCEL)
        client.session.hold(stream)
        client.session.resume(stream)
        assert client.session.queued(stream) == 0
        client.pump()
        assert client.released == ["respond", "message"]


def test_many_headers(client):
    """Any number of headers goes."""
    stream = client.call(b"question")
    more = [(b"x-%d" % i, b"%d" % i) for i in range(40)]
    client.session.respond(stream, client.HEAD + client.packed(*more), [b""], client.TRAILERS + client.packed(*more))
    client.pump()
    assert client.heads[stream][2:] == more
    assert client.trailers[stream][1:] == more


def test_headers_too_long_to_send(client):
    """A client whose response has headers that are too long gets a reset instead of waiting."""
    stream = client.call(b"question")
    client.take_events()
    client.session.respond(stream, client.HEAD, [b"answer"], client.packed((b"grpc-message", b"a" * MIB)), "token")
    client.pump()
    assert client.resets == {stream: 2}
    assert client.released == ["token"]
    assert client.session.receive(b"") == [(RESET, stream, 2, False)]


@pytest.mark.parametrize("size", [1, 100, 65535, 65536, 20 * MIB])
def test_sizes(connect, size):
    """A message of any size passes windows of 64 KiB in both directions; a large one is sent without a copy."""
    client = connect()
    message = (bytes(range(256)) * (size // 256 + 1))[:size]
    stream = client.call(message)
    assert client.take_events()[1:] == [(MESSAGE, stream, message, True)]
    client.session.respond(stream, client.HEAD, [message], client.TRAILERS, "token")
    assert client.session.queued(stream) == size + 5
    assert client.session.blocked
    client.pump()
    assert client.data[stream] == framed(message)
    assert client.released == ["token"]
    assert not client.session.blocked


def test_views(connect):
    """Large parts are sent as views of their buffers, in frames as large as the client accepts."""
    client = connect(settings={WINDOW: 4 * MIB, FRAME: MIB})
    client.h2.increment_flow_control_window(4 * MIB)
    stream = client.call(b"question")
    large = bytearray(MIB)
    client.session.respond(stream, client.HEAD, [b"a", memoryview(large).cast("f"), b"b"], client.TRAILERS)
    chunks, _ = client.session.send()
    # Heads of the response, the frame and the message; the first frame; what does not fit into it, with the end.
    assert [type(chunk) for chunk in chunks] == [bytes, memoryview, bytes]
    assert chunks[1].obj is large
    assert len(chunks[1]) == MIB - 6
    with pytest.raises(BufferError):
        large.clear()


def test_windows_of_the_client(connect):
    """No more is sent than the client has room for, and the rest is still held."""
    client = connect(settings={WINDOW: 0})
    client.opens_windows = False
    stream = client.call(b"question")
    parts = [b"x" * 10, b"y" * 10_000, b"z" * 5_000]
    client.session.respond(stream, client.HEAD, parts, client.TRAILERS, "token")
    client.pump()
    assert client.data == {}
    assert client.session.queued(stream) == 15_015
    for room in (1, 6, 3, 10_000, 4_999):
        client.h2.increment_flow_control_window(room, stream)
        client.pump()
        assert client.released == []
        assert client.session.blocked
    client.h2.increment_flow_control_window(6, stream)
    client.pump()
    assert client.data[stream] == framed(b"".join(parts))
    assert client.released == ["token"]
    assert client.session.queued(stream) == 0
    assert client.ended == {stream}


def test_window_of_a_connection(connect):
    """Streams share the window of the connection, and all of them finish."""
    client = connect(settings={WINDOW: MIB})
    client.opens_windows = False
    streams = [client.call(b"question") for _ in range(5)]
    for stream in streams:
        client.session.respond(stream, client.HEAD, [b"x" * 30_000], client.TRAILERS, stream)
    client.pump()
    assert sum(map(len, client.data.values())) == 65535
    client.h2.increment_flow_control_window(MIB)
    client.pump()
    assert all(client.data[stream] == framed(b"x" * 30_000) for stream in streams)
    assert sorted(client.released) == streams


def test_hold(client):
    """A stream that is held takes what its window has room for, and all once it is not; others go on."""
    held, other = client.open(), client.open()
    client.pump()
    client.session.hold(held)
    message = framed(b"m" * 200_000)
    rest = client.send(held, message, end=True)
    assert len(message) - len(rest) == 65535
    assert client.send(other, message, end=True) == b""
    client.pump()
    assert client.take_events()[2:] == [(MESSAGE, other, message[5:], True)]
    client.session.resume(held)
    client.pump()
    assert client.send(held, rest, end=True) == b""
    assert client.pump() == [(MESSAGE, held, message[5:], True)]


def test_reset_by_the_client(client):
    """A stream that the client resets is reported, and its data is released."""
    stream = client.call(b"question")
    client.opens_windows = False
    client.session.respond(stream, client.HEAD, [b"x" * MIB], client.TRAILERS, "token")
    client.pump()
    client.take_events()
    client.h2.reset_stream(stream, CANCEL)
    assert client.pump() == [(RESET, stream, CANCEL, False)]
    assert client.released == ["token"]
    assert not client.session.blocked
    assert client.session.open_streams == 0


def test_reset_by_us(client):
    """A stream that the session resets has no further events, and no further data is sent on it."""
    stream = client.call(b"question", end=False)
    client.opens_windows = False
    client.session.begin(stream, client.HEAD)
    client.session.message(stream, [b"x" * MIB], "token")
    client.to_client()
    client.take_events()
    client.session.reset(stream, CANCEL)
    client.send(stream, framed(b"more"), end=True)
    assert client.pump() == []
    assert client.resets == {stream: CANCEL}
    assert client.released == ["token"]
    assert client.session.open_streams == 0


def test_windows_after_resets(client):
    """Data on reset streams, and padding, does not use up the connection's window."""
    for _ in range(20):
        stream = client.open()
        client.pump()
        client.h2.send_data(stream, b"x" * 10_000)
        client.session.reset(stream, CANCEL)
        chunks, _ = client.session.send()
        client.to_session()
        client.h2.receive_data(b"".join(chunks))
        client.pump()
    client.h2.max_outbound_frame_size = 16384
    stream = client.open()
    client.take_events()
    for _ in range(1000):
        client.h2.send_data(stream, framed(b"x"), pad_length=250)
        client.pump()
    assert len(client.take_events()) == 1001
    assert client.h2.local_flow_control_window(stream) > 0


def test_reset_of_a_frame_that_is_made(client):
    """A frame that was prepared when the client's bytes came is not sent after a reset of the stream."""
    stream = client.call(b"question", end=False)
    client.session.begin(stream, client.HEAD)
    client.session.message(stream, [b"x" * 10_000], "token")
    client.h2.ping(b"12345678")
    client.to_session()
    client.session.reset(stream, CANCEL)
    client.pump()
    assert client.resets == {stream: CANCEL}
    assert client.data == {}
    assert client.released == ["token"]


def test_refused_streams(connect):
    """A client that opens more streams than it may before it knows is refused the last ones."""
    client = connect(max_streams=2)
    # Another client would not know yet; this one is made to forget.
    client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 100
    client.h2.remote_settings.acknowledge()
    fresh = _http2.Session(lambda *a: None, **{**client.LIMITS, "max_streams": 2})
    fresh.receive(PREFACE + SETTINGS)
    for _ in range(3):
        client.open()
    events = fresh.receive(client.h2.data_to_send())
    assert kinds(events) == [(REQUEST, 1, False), (REQUEST, 3, False)]
    assert b"\0\0\4\3\0\0\0\0\5\0\0\0\7" in b"".join(fresh.send()[0])
    assert fresh.open_streams == 2


def test_too_many_streams(client):
    """A client that knows how many streams it may open and opens more has lost its connection."""
    for _ in range(10):
        client.open()
    assert len(client.pump()) == 10
    client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 100
    client.h2.remote_settings.acknowledge()
    client.open()
    assert len(client.pump()) == 10
    assert client.seen[-1].error_code == 1
    assert not client.session.wants_io


def test_headers_too_large(client):
    """A stream with too many bytes of headers is reset, and no more; the connection goes on."""
    stream = client.open((b"x-large", b"a" * 5000))
    assert client.pump() == []
    assert client.resets == {stream: 11}
    assert client.session.open_streams == 0
    assert kinds(client.session.receive(b"")) == []
    client.take_events()
    next_stream = client.call(b"question")
    assert kinds(client.take_events()) == [(REQUEST, next_stream, False), (MESSAGE, next_stream, True)]


def test_trailers_of_the_client(client):
    """Headers at the end of a request are not looked at."""
    stream = client.call(b"question", end=False)
    client.take_events()
    client.h2.send_headers(stream, [(b"x-late", b"1")], end_stream=True)
    assert client.pump() == [(END, stream, None, True)]


def test_errors_of_a_stream(client):
    """A stream on which the client breaks rules is reset and told, in the same breath."""
    stream = client.open((b"content-length", b"3"))
    client.h2.config.validate_outbound_headers = False
    client.pump()
    client.take_events()
    client.h2.streams[stream]._expected_content_length = None
    client.send(stream, framed(b"question"), end=True)
    events = client.pump()
    assert events[-1] == (RESET, stream, 1, False)
    assert client.resets == {stream: 1}


def test_pings(client):
    """Pings are answered, and those of both sides are reported."""
    client.h2.ping(b"12345678")
    assert client.pump() == [(PING, 0, False, False)]
    assert isinstance(client.seen[-1], h2.events.PingAckReceived)
    client.take_events()
    client.session.ping()
    assert client.pump() == [(PING, 0, True, False)]


def test_goaway(client):
    """A client that leaves says so; its streams are still answered, and then there is nothing left."""
    stream = client.call(b"question")
    client.take_events()
    client.h2.close_connection(error_code=7)
    client.events += client.session.receive(client.h2.data_to_send())
    assert client.take_events() == [(GOAWAY, 0, 7, False)]
    assert client.session.wants_io
    client.session.respond(stream, client.HEAD, [b"answer"], client.TRAILERS, "token")
    chunks, released = client.session.send()
    assert framed(b"answer") in chunks[0]
    assert released == ["token"]
    assert not client.session.wants_io


def last_streams(client):
    return [event.last_stream_id for event in client.seen if isinstance(event, h2.events.ConnectionTerminated)]


def test_shut_down(client):
    """The client gets a first GOAWAY without a limit and then one with it; open streams are finished."""
    stream = client.call(b"question")
    client.session.shut_down()
    client.session.shut_down()
    chunks, _ = client.session.send()
    goaway = b"\0\0\x08\7\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\0"
    # The question comes after it, so that the answer does.
    assert b"".join(chunks) == goaway + b"\0\0\x08\6\0\0\0\0\0pr-leave"
    # A request that crosses the GOAWAY is served.
    crossing = client.open(end=True)
    client.events += client.session.receive(client.h2.data_to_send() + b"\0\0\x08\6\1\0\0\0\0pr-leave")
    assert client.take_events()[-1][:2] == (REQUEST, crossing)
    chunks, _ = client.session.send()
    assert b"".join(chunks).startswith(b"\0\0\x08\7\0\0\0\0\0" + struct.pack(">II", crossing, 0))
    for open_stream in (stream, crossing):
        assert client.session.wants_io
        client.session.respond(open_stream, client.HEAD, [b"answer"], client.TRAILERS)
        assert client.session.send()[0]
    assert not client.session.wants_io


def test_terminate(client):
    """The reason is sent last, before waiting data; later data is ignored."""
    stream = client.call(b"question")
    client.session.begin(stream, client.HEAD)
    client.session.message(stream, [b"x" * 50_000], "token")
    client.h2.ping(b"12345678")
    client.to_session()
    client.take_events()
    client.session.terminate(11, b"too_many_pings")
    client.session.terminate(1, b"again")
    assert client.session.wants_io
    chunks, _ = client.session.send()
    assert b"".join(chunks).endswith(struct.pack(">II", stream, 11) + b"too_many_pings")
    assert not client.session.wants_io
    assert client.session.send() == ([], [])
    client.h2.ping(b"12345678")
    assert client.session.receive(client.h2.data_to_send()) == []
    client.session.close()
    assert client.session.send() == ([], ["token"])


def test_close(client):
    """A closed session has released all tokens, and its methods have no effect."""
    streams = [client.call(b"question") for _ in range(3)]
    client.opens_windows = False
    for stream in streams:
        client.session.respond(stream, client.HEAD, [b"x" * MIB, b"y" * MIB], client.TRAILERS, stream)
    client.pump()
    session = client.session
    session.close()
    session.close()
    chunks, released = session.send()
    assert chunks == []
    assert sorted(released) == streams
    session.respond(1, client.HEAD, [b"x"], client.TRAILERS, "late")
    session.ping()
    session.shut_down()
    session.terminate(0, b"")
    assert session.send() == ([], ["late"])
    assert session.receive(PREFACE) == []
    assert (session.open_streams, session.blocked, session.wants_io, session.queued(1)) == (0, False, False, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_streams": 0},
        {"stream_window": 0},
        {"stream_window": 2**31},
        {"connection_window": 65534},
        {"frame_bytes": 16383},
        {"frame_bytes": 2**24},
        {"header_list_bytes": 0},
        {"message_bytes": 2**32},
        {"large_bytes": -1},
        {"alignment": 0},
    ],
)
def test_limits(client, wrong):
    """Limits that no connection can have are refused."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        _http2.Session(print, **{**client.LIMITS, **wrong})


def test_small_messages_are_released_when_they_are_sent(connect):
    """A message is released when it is sent, so that its sender does not run ahead of a client without a window."""
    client = connect(settings={4: 0})
    client.opens_windows = False
    stream = client.open()
    client.pump()
    client.session.begin(stream, client.HEAD)
    for number in range(3):
        client.session.message(stream, [b"abcde"], number + 1)
    client.pump()
    assert client.released == []
    assert client.session.waiting() == [(stream, -1, 0)]
    client.h2.increment_flow_control_window(15, stream)
    client.pump()
    assert client.released == [1]
    assert client.session.waiting() == [(stream, -1, 15)]
    client.h2.increment_flow_control_window(100, stream)
    client.pump()
    assert sorted(client.released) == [1, 2, 3]
    assert client.session.waiting() == []


def test_messages_that_are_half_there(connect):
    client = connect()
    assert client.session.begun
    stream = client.open()
    client.pump()
    assert client.session.waiting() == []
    for data, taken in ((b"\0\0", 2), (b"\0\0\3a", 6), (b"b", 7)):
        client.send(stream, data)
        client.pump()
        assert client.session.waiting() == [(stream, taken, -1)]
    client.session.hold(stream)
    assert client.session.waiting() == []
    client.session.resume(stream)
    client.send(stream, b"c")
    client.pump()
    assert client.session.waiting() == []

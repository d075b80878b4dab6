# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that attack, or speak no HTTP/2; memory is not kept, tokens are released once. See conftest.py."""

import gc
import struct
import sys
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import hpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyruntime.runtime.native import _http2
from pyruntime.runtime.native._http2 import MESSAGE, PLACED, REQUEST, RESET, Http2Error

MIB = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def framed(message, flag=0):
    return struct.pack(">BI", flag, len(message)) + message


def greeted(client, **limits):
    """A session that knows of a client, but that the client of the test knows nothing of."""
    session = _http2.Session(lambda *a: None, **{**client.LIMITS, **limits})
    assert session.receive(PREFACE + frame(SETTINGS)) == []
    session.send()
    return session


def head(client, *more):
    return hpack.Encoder().encode([*client.HEADERS, *more])


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 24, PREFACE[:-1] + b"x", b"\x16\3\1\2\0\1\0\1\xfc\3\3", b"PRI * HTTP/2.1\r\n"],
)
def test_no_http2(client, data):
    """A client that does not begin like HTTP/2 gets a GOAWAY with the reason."""
    session = _http2.Session(lambda *a: None, **client.LIMITS)
    with pytest.raises(Http2Error, match="magic"):
        session.receive(data)
    chunks, _ = session.send()
    assert b"".join(chunks)[-17:] == frame(GOAWAY, payload=struct.pack(">II", 0, 1))
    assert not session.wants_io
    assert session.receive(PREFACE) == []


@pytest.mark.parametrize(
    "broken",
    [
        frame(DATA, 0, 1, b"x"),
        frame(HEADERS, END_HEADERS, 2, b"\x82"),
        frame(HEADERS, END_HEADERS, 0, b"\x82"),
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        frame(HEADERS, END_HEADERS, 1, b"\x80"),
        frame(SETTINGS, 0, 0, b"12345"),
        frame(SETTINGS, 0, 1),
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
        frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 0) * 33),
        frame(PING, 0, 0, b"1234567"),
        frame(PING, 0, 3, b"12345678"),
        frame(PUSH, END_HEADERS, 1, b"\0\0\0\2\x82"),
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0)),
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1)),
        frame(CONTINUATION, END_HEADERS, 1, b"\x82"),
        frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, b"12345678"),
        frame(RST_STREAM, 0, 1, b"\0\0\0\0"),
        b"\xff\xff\xff\0\0\0\0\0\1" + b"x" * 100,
    ],
)
def test_broken_rules(client, broken):
    """A connection that breaks a rule ends: it has no further events, and gets a GOAWAY with the reason."""
    session = greeted(client)
    try:
        events = session.receive(broken)
    except Http2Error:
        events = []
    assert events == []
    chunks, _ = session.send()
    assert b"".join(chunks)[3:4] == bytes([GOAWAY])
    assert not session.wants_io
    assert session.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, head(client))) == []


def block(*fields):
    return frame(HEADERS, END_HEADERS | END_STREAM, 1, hpack.Encoder().encode(fields))


LEAST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"))


@pytest.mark.parametrize(
    "fields",
    [
        LEAST[1:],
        LEAST[:2],
        (LEAST[0], LEAST[2]),
        (*LEAST, LEAST[0]),
        (*LEAST[:2], (b":path", b"")),
        (*LEAST, (b":status", b"200")),
        (*LEAST, (b"x", b"y"), (b":authority", b"a")),
        (*LEAST, (b"Upper", b"x")),
        (*LEAST, (b"", b"x")),
        (*LEAST, (b"x y", b"z")),
        (*LEAST, (b"x", b"a\0b")),
        (*LEAST, (b"x", b"a\r\nb")),
        (*LEAST, (b"connection", b"close")),
        (*LEAST, (b"keep-alive", b"1")),
        (*LEAST, (b"proxy-connection", b"close")),
        (*LEAST, (b"transfer-encoding", b"chunked")),
        (*LEAST, (b"upgrade", b"h2c")),
        (*LEAST, (b"te", b"gzip")),
        (*LEAST, (b"content-length", b"1")),
        (*LEAST, (b"content-length", b"0"), (b"content-length", b"0")),
        (*LEAST, (b"content-length", b"-1")),
        (*LEAST, (b"content-length", b"")),
        (*LEAST, (b"content-length", b"1" * 19)),
    ],
)
def test_head_that_breaks_a_rule(client, fields):
    """A request whose head breaks a rule of HTTP/2 is reset, and never reported; the connection goes on."""
    session = greeted(client)
    assert session.receive(block(*fields)) == []
    assert frame(RST_STREAM, 0, 1, b"\0\0\0\1") in b"".join(session.send()[0])
    assert session.open_streams == 0
    following = hpack.Encoder().encode(LEAST)
    (event,) = session.receive(frame(HEADERS, END_HEADERS | END_STREAM, 3, following))
    assert event[:2] == (REQUEST, 3)


def test_head_without_a_host(client):
    """A request needs neither :authority nor host: programs that check health send none."""
    (event,) = greeted(client).receive(block(*LEAST))
    assert event == (REQUEST, 1, (client.packed(*LEAST), -1), True)


def test_values_with_blanks_around_them(client):
    """A value that begins or ends with blanks is reported as it was sent."""
    fields = (*LEAST, (b"x-quoted", b" 'a' \\ "), (b"x-tab", b"\tb\t"), (b"x-blank", b" "), (b"x-empty", b""))
    (event,) = greeted(client).receive(block(*fields))
    assert event == (REQUEST, 1, (client.packed(*fields), -1), True)


def test_data_beyond_the_announced_length(client):
    """A request is reset as soon as there is more data than its content-length says, and what follows is not read."""
    session = greeted(client)
    head = hpack.Encoder().encode([*LEAST, (b"content-length", b"7")])
    (request,) = session.receive(frame(HEADERS, END_HEADERS, 1, head))
    assert request[0] == REQUEST
    assert session.receive(frame(DATA, 0, 1, framed(b"ab")))[0][0] == MESSAGE
    assert session.receive(frame(DATA, 0, 1, framed(b"")) + frame(DATA, END_STREAM, 1)) == [(RESET, 1, 1, False)]
    assert frame(RST_STREAM, 0, 1, b"\0\0\0\1") in b"".join(session.send()[0])


def test_trailers_that_do_not_end_the_request(client):
    """Headers behind the data of a request end it, or it is reset."""
    session = greeted(client)
    session.receive(frame(HEADERS, END_HEADERS, 1, hpack.Encoder().encode(LEAST)))
    later = hpack.Encoder().encode([(b"x", b"y")])
    assert session.receive(frame(HEADERS, END_HEADERS, 1, later)) == [(RESET, 1, 1, False)]


def test_flow_control(connect):
    """A client that exceeds the window loses the stream."""
    client = connect(stream_window=1000, connection_window=MIB)
    session = greeted(client, stream_window=1000, connection_window=MIB)
    session.receive(frame(SETTINGS, ACK) + frame(HEADERS, END_HEADERS, 1, head(client)))
    session.hold(1)
    events = session.receive(frame(DATA, 0, 1, framed(b"x" * 995)) + frame(DATA, 0, 1, b"x"))
    assert [event[0] for event in events] in ([MESSAGE, RESET], [MESSAGE])
    session.send()
    assert session.open_streams == 0 or not session.wants_io


BLOCK = b"\x83\x86\x84\x01\x01x"  # the head of a request, as small as it can be


def ping(stream):
    return frame(PING, 0, 0, b"12345678")


def change_settings(stream):
    return frame(SETTINGS)


def open_stream(stream):
    return frame(HEADERS, END_HEADERS, stream, BLOCK)


def open_and_reset(stream):
    return open_stream(stream) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")


def is_cut_off(session, pieces, sends):
    """Whether a session ends before all of the pieces have come. Each of them is as good as nothing."""
    for piece in pieces:
        try:
            session.receive(piece)
        except Http2Error:
            return True
        if sends:
            session.send()
            if not session.wants_io:
                return True
    return False


@pytest.mark.parametrize(
    ("makes", "sends"), [(ping, False), (change_settings, False), (open_stream, False), (open_and_reset, True)]
)
def test_floods(client, makes, sends):
    """A client that takes none of ever more answers, or begins work in vain, loses the connection."""
    session = greeted(client)
    session.receive(frame(SETTINGS, ACK) if sends else b"")
    pieces = (b"".join(map(makes, range(first, first + 200, 2))) for first in range(1, 1_000_000, 200))
    assert is_cut_off(session, pieces, sends)
    assert session.open_streams <= 10
    session.send()
    assert not session.wants_io


def test_header_without_an_end(client):
    """Headers that go on and on are cut off."""
    session = greeted(client)
    session.receive(frame(HEADERS, 0, 1, head(client)))
    assert is_cut_off(session, [frame(CONTINUATION, 0, 1, b"\0\1a\1b" * 1000)] * 1000, True)
    assert session.open_streams <= 1


def test_header_bomb(client):
    """One large header that is named a thousand times costs a stream and hardly any memory."""
    session = greeted(client, header_list_bytes=8192)
    bomb = hpack.Encoder().encode([*client.HEADERS, (b"x-bomb", b"a" * 3900)]) + b"\xbe" * 10_000
    tracemalloc.start()
    events = session.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, bomb))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert events == []
    assert peak < 100_000
    assert frame(RST_STREAM, 0, 1, b"\0\0\0\x0b") in b"".join(session.send()[0])


def test_length_that_lies(connect):
    """A message is not made room for because it says that it is large."""
    client = connect(message_bytes=(1 << 32) - 1)
    streams = [client.open() for _ in range(10)]
    client.pump()
    tracemalloc.start()
    for stream in streams:
        client.h2.send_data(stream, struct.pack(">BI", 0, (1 << 30) - 1) + b"x" * 5000)
    client.to_session()
    current, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 50_000 < current <= peak < 300_000


def conversation(client_type):
    """The bytes of a client in a conversation that has a bit of everything."""
    client = client_type(lambda *a: bytearray(1000), large_bytes=64)
    said = []
    receive = client.session.receive

    class Noting:
        """The session, with a note of all data that it receives."""

        def __getattr__(self, name):
            return getattr(session, name)

        def receive(self, data):
            said.append(data)
            return receive(data)

    session, client.session = client.session, Noting()
    message = b"\x0a\1m\x2a\4\x0a\2IN\x3a\x7f" + b"x" * 127 + b"\x3a\1y"
    small, large, stream = client.open(), client.open((b"grpc-timeout", b"1S")), client.open()
    client.pump()
    client.h2.send_data(small, framed(b"small"), end_stream=True)
    client.h2.send_data(large, framed(message)[:50])
    client.pump()
    client.h2.send_data(large, framed(message)[50:] + framed(message, 1), end_stream=True)
    client.h2.send_data(stream, framed(b"") + framed(b"1") + framed(message))
    client.pump()
    client.h2.ping(b"12345678")
    for answered in (small, large):
        session.respond(answered, client.HEAD, [b"x" * 5000], client.TRAILERS)
    client.pump()
    client.h2.send_headers(stream, [(b"x-late", b"1")], end_stream=True)
    client.open((b"x", b"y"))
    client.h2.reset_stream(client.open())
    client.pump()
    client.h2.close_connection()
    client.pump()
    return PREFACE + b"".join(said)[len(PREFACE) :]


cuts = st.lists(st.integers(0, 3000), max_size=6)
changes = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "double"]),
        st.integers(24, 3000),
        st.integers(0, 40),
        st.binary(max_size=20),
    ),
    max_size=8,
)


def changed(data, changes):
    """The conversation, with changes at random."""
    data = bytearray(data)
    for how, at, length, more in changes:
        if how == "set":
            data[at : at + len(more)] = more
        elif how == "cut":
            del data[at : at + length]
        elif how == "insert":
            data[at:at] = more
        else:
            data[at:at] = data[at : at + length]
    return bytes(data)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=3 * settings.default.max_examples,
)
@given(changes=changes, cuts=cuts, data=st.data())
def test_any_bytes(connect, changes, cuts, data):
    """For arbitrary bytes, cuts and calls the session does not break, and every token is released once."""
    said = changed(conversation(connect), changes)
    choices = data.draw(st.lists(st.integers(0, 7), min_size=40, max_size=40))
    given_out, released = [], []

    def choose():
        choices.append(choices.pop(0))
        return choices[-1]

    def give(method, *arguments):
        method(*arguments, len(given_out))
        given_out.append(len(given_out))

    def place(stream, meta, left):
        if choose() == 0:
            session.reset(stream, 8)
        return (None, False, bytearray(10), bytearray(10_000))[choose() % 4]

    session = _http2.Session(place, **{**connect.LIMITS, "large_bytes": 64})
    speak = [
        lambda stream: give(session.respond, stream, connect.HEAD, [b"x" * 9000, b"y"], connect.TRAILERS),
        lambda stream: session.refuse(stream, connect.REFUSAL),
        lambda stream: session.reset(stream, 2),
        lambda stream: session.hold(stream),
        lambda stream: session.resume(stream),
        lambda stream: [session.begin(stream, connect.HEAD), give(session.message, stream, [b"z" * 5000] * 2)],
        lambda stream: session.end(stream, connect.TRAILERS),
        lambda stream: session.ping(),
    ]
    edges = sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})
    for start, end in pairwise(edges):
        try:
            events = session.receive(said[start:end])
        except Http2Error:
            events = []
        for kind, stream, value, _ in events:
            assert kind != PLACED or len(value) == 2
            with suppress(RuntimeError):  # the response has begun, or has not
                speak[choose()](stream)
        if choose() % 2:
            released += session.send()[1]
    if choose() == 0:
        session.shut_down()
        session.terminate(0, b"bye")
        released += session.send()[1]
    session.close()
    released += session.send()[1]
    assert session.send() == ([], [])
    assert sorted(released) == given_out


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(st.binary(max_size=200), max_size=10))
def test_noise(pieces):
    """Bytes that are no frames at all do no harm."""
    limits = {
        "max_streams": 10, "stream_window": 65535, "connection_window": 65535, "header_list_bytes": 4096,
        "message_bytes": 1000, "large_bytes": 10, "frame_bytes": 16384, "alignment": 8,
    }  # fmt: skip
    session = _http2.Session(lambda *a: None, **limits)
    session.receive(PREFACE)
    for piece in pieces:
        try:
            session.receive(piece)
        except Http2Error:
            break
        session.send()
    session.send()


def converse(connect):
    """A bit of everything, to the end; and a session that is left as it is."""
    token = object()
    for closes in (True, False):
        client = connect(lambda stream, meta, left: bytearray(1000), large_bytes=64)
        client.opens_windows = False
        message = b"\x0a\1m\x3a\x7f" + b"x" * 127
        stream, large, held = client.open(), client.open(), client.open()
        client.pump()
        client.h2.send_data(stream, framed(b"small"), end_stream=True)
        client.h2.send_data(large, framed(message)[:50])
        client.h2.send_data(held, framed(message)[:50])
        client.pump()
        client.h2.send_data(large, framed(message)[50:])
        client.pump()
        client.session.respond(stream, client.HEAD, [bytearray(10), bytearray(50_000)], client.TRAILERS, token)
        client.session.begin(large, client.HEAD)
        client.session.message(large, [bytearray(100_000)], token)
        client.session.message(99, [b""], token)
        client.pump()
        with pytest.raises(TypeError):
            client.session.message(large, [b"x" * 5000, 5], token)
        with pytest.raises(TypeError):
            client.session.end(large, 5)
        if closes:
            client.session.close()
            client.session.send()
    return sys.getrefcount(token)


def test_nothing_is_kept(connect):
    """Conversations leave no memory behind, also if they were not ended."""
    for _ in range(3):
        converse(connect)
    gc.collect()
    tracemalloc.start()
    counts = set()
    for _ in range(20):
        counts.add(converse(connect))
        gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(20):
        counts.add(converse(connect))
        gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert abs(after - before) < 5000
    assert len(counts) == 1


def test_cycles(connect):
    """A session in a reference cycle is collected."""

    class Token:
        """Dies, and says so."""

        def __del__(self):
            died.append(True)

    died = []

    def lost():
        client = connect(lambda *a: client)
        client.opens_windows = False
        stream = client.call(b"question")
        token = Token()
        token.session = client.session
        client.session.respond(stream, client.HEAD, [b"x" * MIB], client.TRAILERS, token)
        client.pump()

    lost()
    gc.collect()
    assert died == [True]


def unwanted(session, stream, nbytes):
    """Data on a stream, in frames of 10 000 bytes at most, and what the session says."""
    for at in range(0, nbytes, 10_000):
        session.receive(frame(DATA, 0, stream, bytes(min(10_000, nbytes - at))))
    return b"".join(session.send()[0])


def refused(client, session, stream):
    """A call whose response is complete while the client may still send."""
    session.receive(frame(HEADERS, END_HEADERS, stream, head(client)))
    session.refuse(stream, client.REFUSAL)
    assert frame(RST_STREAM, 0, stream, bytes(4)) in b"".join(session.send()[0])


def test_the_body_of_a_refused_call_is_discarded_as_far_as_its_client_may_not_know(client):
    """These are the bytes of the stream's window; a client that sends more loses its connection."""
    window = 1 << 20
    session = greeted(client, stream_window=window, connection_window=window)
    for stream in (1, 3):
        refused(client, session, stream)
    assert GOAWAY not in goaways(unwanted(session, 1, window))
    assert session.wants_io
    # Another call begins meanwhile, and the other refused one has a window of its own.
    (event,) = session.receive(frame(HEADERS, END_HEADERS | END_STREAM, 5, head(client)))
    assert event[:2] == (REQUEST, 5)
    assert GOAWAY not in goaways(unwanted(session, 3, window))
    said = unwanted(session, 1, 1)
    assert goaways(said) == [GOAWAY]
    assert said.endswith(struct.pack(">II", 5, 0xB) + b"unwanted_data")
    assert not session.wants_io
    assert session.receive(frame(DATA, 0, 1, b"x")) == []


def test_data_of_a_stream_that_a_client_has_ended_ends_the_connection(client):
    session = greeted(client)
    session.receive(frame(HEADERS, END_HEADERS, 1, head(client)) + frame(RST_STREAM, 0, 1, bytes(4)))
    assert goaways(unwanted(session, 1, 1)) == [GOAWAY]


def test_streams_that_cross_the_end_of_a_connection_are_discarded(client):
    """A client that opens one before it knows of the end breaks no rule."""
    session = greeted(client)
    session.shut_down()
    session.send()
    session.receive(frame(HEADERS, END_HEADERS, 1, head(client)) + frame(RST_STREAM, 0, 1, bytes(4)))
    assert goaways(unwanted(session, 1, 60_000)) == []


def goaways(said):
    """The frames of GOAWAY among those that a session sends."""
    found = []
    while said:
        length, kind = int.from_bytes(said[:3], "big"), said[3]
        found += [kind] if kind == GOAWAY else []
        said = said[9 + length :]
    return found

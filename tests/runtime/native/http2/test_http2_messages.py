# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Messages in a stream, and the tensors in those that are requests. See conftest.py."""

import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pyruntime.runtime.native import _http2
from pyruntime.runtime.native._http2 import (
    COMPRESSED,
    END,
    MALFORMED,
    MESSAGE,
    PLACED,
    REQUEST,
    TOO_LARGE,
)

# Each example connects anew.
with_connect = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
LARGE = 32
ALIGNMENT = 64


def framed(message, flag=0):
    return struct.pack(">BI", flag, len(message)) + message


def told(events):
    """All but the requests' heads."""
    return [event for event in events if event[0] != REQUEST]


def varint(number):
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def field(number, kind, value=b""):
    """A field of protobuf; of type 2 with its length."""
    return varint(number << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value


def infer_request(*raws, id="", model="m"):
    """A serialised request, and what of it is neither its id nor raw."""
    request = service_pb2.ModelInferRequest(model_name=model, id=id)
    request.parameters["priority"].int64_param = 7
    for i, raw in enumerate(raws):
        tensor = request.inputs.add(name=f"IN{i}", datatype="UINT8", shape=[len(raw)])
        tensor.parameters["x"].string_param = "y"
    meta = request.SerializeToString()
    request.raw_input_contents.extend(raws)
    return request.SerializeToString(), meta


class Place:
    """Returns the next answer, and notes its calls."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, stream, meta, left):
        self.asked.append((stream, meta, left))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def taken(client, stream, *pieces, end=True):
    """The events of these pieces, each of which arrives by itself, after all earlier data."""
    client.pump()
    client.take_events()
    for i, piece in enumerate(pieces):
        client.h2.send_data(stream, piece, end_stream=end and i == len(pieces) - 1)
        client.to_session()
    return told(client.take_events())


def test_byte_by_byte(client):
    """It does not matter in how many pieces a message comes."""
    stream = client.open()
    data = framed(b"first") + framed(b"") + framed(b"second", 1)
    assert taken(client, stream, *(data[i : i + 1] for i in range(len(data)))) == [
        (MESSAGE, stream, b"first", False),
        (MESSAGE, stream, b"", False),
        (COMPRESSED, stream, b"second", True),
    ]


def test_many_in_one(client):
    """Many messages can come at once, and a part of the next."""
    stream = client.open()
    data = framed(b"") + framed(b"1") + framed(b"2") + framed(b"") + framed(b"33333")
    assert taken(client, stream, data[:-7], data[-7:]) == [
        (MESSAGE, stream, b"", False),
        (MESSAGE, stream, b"1", False),
        (MESSAGE, stream, b"2", False),
        (MESSAGE, stream, b"", False),
        (MESSAGE, stream, b"33333", True),
    ]


@with_connect
@given(messages=st.lists(st.binary(max_size=100), max_size=5), data=st.data())
def test_pieces(connect, messages, data):
    """Messages are those that were sent, wherever they are cut."""
    client = connect(large_bytes=50)
    stream = client.open()
    sent = b"".join(field(1, 2, message) and framed(field(1, 2, message)) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    events = taken(client, stream, *pieces)
    assert [value for kind, _, value, _ in events if kind == MESSAGE] == [field(1, 2, message) for message in messages]
    assert [ended for *_, ended in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("flag", [0, 1])
def test_too_large(connect, flag):
    """A message with a length beyond the limit is reported once, with this length, and its stream is ignored."""
    client = connect(message_bytes=100, large_bytes=50)
    stream = client.open()
    data = struct.pack(">BI", flag, 101) + b"x" * 1000
    assert taken(client, stream, data[:3], data[3:5], data[5:], framed(b"more"), end=False) == [
        (TOO_LARGE, stream, 101, False)
    ]
    assert taken(client, stream, b"rest") == [(END, stream, None, True)]
    stream = client.open()
    assert taken(client, stream, framed(b"x" * 100, 1)) == [(COMPRESSED, stream, b"x" * 100, True)]
    stream = client.open()
    assert taken(client, stream, framed(b"x" * 101, flag)) == [(TOO_LARGE, stream, 101, True)]


@pytest.mark.parametrize("flag", [2, 0x50, 255])
def test_flags(client, flag):
    """A flag that is neither 0 nor 1 is no message."""
    stream = client.open()
    why = f"Bad GRPC frame type 0x{flag:02x}"
    assert taken(client, stream, framed(b"question", flag), framed(b"more")) == [
        (MALFORMED, stream, why, False),
        (END, stream, None, True),
    ]


@pytest.mark.parametrize("large", [0, 1 << 20])
@pytest.mark.parametrize("missing", [1, 5, 8, 9])
def test_ends_inside(connect, missing, large):
    """A stream that ends inside of a message says so."""
    client = connect(large_bytes=large)
    stream = client.open()
    data = framed(field(1, 2, b"question"))
    events = taken(client, stream, framed(field(1, 0, b"\1")) + data[:-missing])
    assert events[0] == (MESSAGE, stream, field(1, 0, b"\1"), False)
    assert events[1:] == [(MALFORMED, stream, "the stream ends inside of a message", True)]


RAWS = (b"a" * 100, b"", b"c" * 64, b"d")
OFFSETS = ((0, 100), (128, 0), (128, 64), (192, 1))


def contents(buffer, raws):
    return [bytes(buffer[offset : offset + length]) for offset, length in raws]


def placed(connect, message, *, pieces=None, answer=None, **limits):
    """The events of a large message that goes to a buffer, this buffer, and the calls of `place`."""
    buffer = bytearray(len(message) + 10 * ALIGNMENT) if answer is None else answer
    place = Place(buffer)
    client = connect(place, large_bytes=LARGE, **limits)
    stream = client.open()
    events = taken(client, stream, *(pieces or [framed(message)]))
    return events, buffer, place.asked


def test_placed(connect):
    """Raw contents go to their place, and the rest of the message stays together."""
    message, meta = infer_request(*RAWS)
    events, buffer, asked = placed(connect, message)
    assert events == [(PLACED, 1, (meta, OFFSETS), True)]
    assert contents(buffer, OFFSETS) == list(RAWS)
    assert asked == [(1, meta, len(message) - len(meta))]
    buffer.clear()


def test_placed_wherever_it_is_cut(connect):
    """No cut between two pieces makes a difference."""
    message, meta = infer_request(*RAWS, id="x")
    data = framed(message)
    for cut in range(1, len(data)):
        events, buffer, asked = placed(connect, message, pieces=[data[:cut], data[cut:]])
        assert events == [(PLACED, 1, (meta, OFFSETS), True)]
        assert contents(buffer, OFFSETS) == list(RAWS)
        assert asked == [(1, meta, len(message) - len(meta))]
    events, buffer, _ = placed(connect, message, pieces=[data[i : i + 1] for i in range(len(data))])
    assert events == [(PLACED, 1, (meta, OFFSETS), True)]
    assert contents(buffer, OFFSETS) == list(RAWS)


fields = st.one_of(
    st.builds(field, st.integers(1, 2**29 - 1), st.just(0), st.integers(0, 2**64 - 1).map(varint)),
    st.builds(field, st.integers(1, 2**29 - 1), st.just(1), st.binary(min_size=8, max_size=8)),
    st.builds(field, st.integers(1, 2**29 - 1).filter(lambda n: not 3 <= n <= 7), st.just(2), st.binary(max_size=40)),
    st.builds(field, st.integers(1, 2**29 - 1), st.just(5), st.binary(min_size=4, max_size=4)),
)
raw_fields = st.builds(field, st.just(7), st.just(2), st.binary(max_size=40))


@with_connect
@given(parts=st.lists(st.one_of(fields, raw_fields), min_size=1, max_size=12), data=st.data())
@example(parts=[field(7, 0, b"\1"), field(7, 5, b"1234"), field(7, 2, b"x"), field(7, 1, b"12345678")], data=None)
def test_any_fields(connect, parts, data):
    """Fields of any number and type keep their place, before, between and after the raw contents."""
    message = b"".join(parts)
    is_raw = [part[0] == 7 << 3 | 2 for part in parts]
    sent = framed(message)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=4))) if data else []
    buffer = bytearray(len(message) + len(parts) * ALIGNMENT)
    client = connect(Place(buffer), large_bytes=0)
    stream = client.open()
    events = taken(client, stream, *(sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)))
    ((kind, _, value, _),) = [event for event in events if event[0] != END]
    if not any(is_raw):
        assert (kind, value) == (MESSAGE, message)
        return
    meta, raws = value
    assert kind == PLACED
    assert meta == b"".join(part for part, raw in zip(parts, is_raw, strict=True) if not raw)
    assert contents(buffer, raws) == [part[2:] for part, raw in zip(parts, is_raw, strict=True) if raw]
    key, id, split_raws, size, _ = _http2.split(message, ALIGNMENT)
    assert (key, id) == (meta, b"")
    assert contents(message, split_raws) == contents(buffer, raws)
    assert size == raws[-1][0] + raws[-1][1]


def test_placed_after_what_was_told(connect):
    """`place` is not called before the stream's head and the previous message have been reported."""
    message, meta = infer_request(*RAWS)
    for first in (b"", framed(b"small")):
        for cut in range(5, len(message) + 5):
            place = Place(bytearray(1000))
            client = connect(place, large_bytes=LARGE)
            stream = client.open()
            if first:
                client.pump()
            client.h2.send_data(stream, first + framed(message)[:cut])
            client.to_session()
            assert place.asked == []
            assert len(client.take_events()) == 1 + bool(first)
            assert taken(client, stream, framed(message)[cut:]) == [(PLACED, stream, (meta, OFFSETS), True)]
            assert place.asked == [(stream, meta, len(message) - len(meta))]


@pytest.mark.parametrize(("answer", "messages"), [(None, 2), (False, 1)])
def test_not_placed_after_what_was_told(connect, answer, messages):
    """A message that gets no place includes the bytes that came before `place` was called."""
    message, _ = infer_request(*RAWS)
    sent = framed(message) + framed(b"next")
    for cut in range(5, len(message) + 5):
        client = connect(Place(answer), large_bytes=LARGE)
        stream = client.open()
        client.h2.send_data(stream, sent[:cut])
        client.to_session()
        assert [value for _, _, value, _ in taken(client, stream, sent[cut:])] == [message, b"next"][-messages:]


def test_not_placed_if_it_came_with_its_head(connect):
    """A message that is complete with its head is not placed."""
    message, _ = infer_request(*RAWS)
    client = connect(Place(), large_bytes=LARGE)
    stream = client.open()
    client.h2.send_data(stream, framed(message) + framed(message), end_stream=True)
    client.to_session()
    assert told(client.take_events()) == [(MESSAGE, stream, message, False), (MESSAGE, stream, message, True)]


def test_waiting_message_that_ends_inside(connect):
    """A message that was kept is as incomplete as any other."""
    message, _ = infer_request(*RAWS)
    client = connect(Place(), large_bytes=LARGE)
    stream = client.open()
    client.h2.send_data(stream, framed(message)[:-1], end_stream=True)
    client.to_session()
    assert [kind for kind, *_ in client.take_events()] == [REQUEST, MALFORMED]


def test_small_and_compressed_are_not_placed(connect):
    """Only a large message that is not compressed is asked for."""
    place = Place()
    client = connect(place, large_bytes=LARGE)
    small = field(7, 2, b"x" * (LARGE - 2))
    large = field(7, 2, b"x" * LARGE)
    stream = client.open()
    assert taken(client, stream, framed(small), framed(large, 1)) == [
        (MESSAGE, stream, small, False),
        (COMPRESSED, stream, large, True),
    ]


def test_not_placed(connect):
    """None makes a message of it all, wherever it is cut."""
    message, _ = infer_request(*RAWS)
    data = framed(message)
    for cut in range(1, len(data)):
        client = connect(Place(None), large_bytes=LARGE)
        stream = client.open()
        assert taken(client, stream, data[:cut], data[cut:]) == [(MESSAGE, stream, message, True)]


def test_not_placed_at_its_very_end(connect):
    """A message that ends with the tag of its raw contents is still one."""
    message = field(1, 2, b"x" * 50) + b"\x3a"
    client = connect(Place(None, False), large_bytes=LARGE)
    stream = client.open()
    assert taken(client, stream, framed(message)) == [(MESSAGE, stream, message, True)]
    stream = client.open()
    assert taken(client, stream, framed(message), framed(b"next")) == [(MESSAGE, stream, b"next", True)]


def test_dropped(connect):
    """False makes nothing of it, and the next message is looked at."""
    message, _ = infer_request(*RAWS)
    data = framed(message) + framed(b"next")
    for cut in range(1, len(data) - 9):
        client = connect(Place(False), large_bytes=LARGE)
        stream = client.open()
        assert taken(client, stream, data[:cut], data[cut:]) == [(MESSAGE, stream, b"next", True)]
    client = connect(Place(False), large_bytes=LARGE)
    stream = client.open()
    assert taken(client, stream, data[:-20]) == [(END, stream, None, True)]


def test_place_that_grows(connect):
    """Before bytes are written that are not ready, more are asked for, in any split."""
    message, meta = infer_request(*RAWS)
    data = framed(message)
    for cut in range(1, len(data)):
        buffer, ready, asked = bytearray(len(message) + 10 * ALIGNMENT), [10], []

        def grow(nbytes, buffer=buffer, ready=ready, asked=asked):
            assert nbytes > ready[0]
            assert not any(buffer[ready[0] :])  # nothing was written there
            asked.append(nbytes)
            ready[0] = nbytes + 7
            return ready[0]

        events, _, _ = placed(connect, message, pieces=[data[:cut], data[cut:]], answer=(buffer, ready[0], grow))
        assert events == [(PLACED, 1, (meta, OFFSETS), True)]
        assert contents(buffer, OFFSETS) == list(RAWS)
        assert asked == sorted(asked)
        assert ready[0] >= 193
        buffer.clear()


def test_place_that_is_ready(connect):
    """Nothing is asked for while enough is ready, even if more is said to be ready than there is."""
    message, meta = infer_request(*RAWS)
    buffer = bytearray(len(message) + 10 * ALIGNMENT)
    events, _, _ = placed(connect, message, answer=(buffer, 1 << 40, None))
    assert events == [(PLACED, 1, (meta, OFFSETS), True)]


@pytest.mark.parametrize("refuses", [False, True])
def test_place_that_does_not_grow(connect, refuses):
    """The rest of the message is dropped, and the place is free; the next message is told if the call goes on."""
    message, _ = infer_request(b"x" * 1000)
    buffer = bytearray(2000)

    def grow(nbytes):
        if refuses:
            client.session.refuse(stream, client.REFUSAL)
        return 2000 if refuses else 0

    client = connect(lambda stream, meta, left: (buffer, 600, grow), large_bytes=LARGE)
    stream = client.open()
    data = framed(message)
    expected = [] if refuses else [(MESSAGE, stream, b"next", True)]
    assert taken(client, stream, data[:500], data[500:800], data[800:] + framed(b"next")) == expected
    assert not any(buffer[600:])
    buffer.append(0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((bytearray(2000), 0), TypeError),
        ((bytearray(2000), "x", None), TypeError),
        ((5, 0, None), TypeError),
        ((bytearray(2000), 0, None), TypeError),
        ((bytearray(2000), 0, lambda nbytes: "x"), TypeError),
        ((bytearray(2000), 0, lambda nbytes: {}[nbytes]), KeyError),
    ],
)
def test_place_that_grows_wrongly(connect, answer, error):
    """What is no such answer comes out of `receive`."""
    message, _ = infer_request(b"x" * 1000)
    client = connect(lambda stream, meta, left: answer, large_bytes=LARGE)
    stream = client.open()
    with pytest.raises(error):
        taken(client, stream, framed(message))


def test_place_refuses(connect):
    """`place` can refuse the stream at once."""
    message, _ = infer_request(b"x" * 1000)

    def place(stream, meta, left):
        client.session.refuse(stream, client.REFUSAL)
        return False

    client = connect(place, large_bytes=LARGE)
    stream = client.open()
    assert taken(client, stream, framed(message)[:500], end=False) == []
    client.pump()
    assert client.heads[stream][-1] == (b"grpc-status", b"8")
    assert client.resets == {stream: 0}


def test_place_resets(connect):
    """`place` can reset the stream; its result does not matter then."""
    message, _ = infer_request(b"x" * 100)
    buffer = bytearray(1000)

    def place(stream, meta, left):
        client.session.reset(stream, 8)
        return buffer

    client = connect(place, large_bytes=LARGE)
    stream = client.open()
    assert taken(client, stream, framed(message) + framed(b"next")) == []
    assert buffer == bytes(1000)
    client.pump()
    assert client.resets == {stream: 8}


@pytest.mark.parametrize(
    "over",
    [
        lambda client, stream: client.session.refuse(stream, client.REFUSAL),
        lambda client, stream: client.session.respond(stream, client.HEAD, [b""], client.TRAILERS),
        lambda client, stream: client.session.reset(stream, 8),
        lambda client, stream: client.session.close(),
    ],
)
def test_place_is_free_when_the_stream_is_over(connect, over):
    """A place is neither written to nor held after the last event of its stream."""
    message, _ = infer_request(b"x" * 1000)
    buffer = bytearray(2000)
    client = connect(Place(buffer), large_bytes=LARGE)
    stream = client.open()
    assert taken(client, stream, framed(message)[:500], end=False) == []
    with pytest.raises(BufferError):
        buffer.append(0)
    written = buffer.count(b"x")
    assert written > 400
    over(client, stream)
    buffer.append(0)
    client.h2.send_data(stream, framed(message)[500:] + framed(b"more"))
    client.to_session()
    assert client.take_events() == []
    assert buffer.count(b"x") == written


def test_place_is_free_when_another_is_asked_for(connect):
    """`place` for one stream may refuse another one in the middle of its message."""
    message, _ = infer_request(b"x" * 1000)
    buffers = {1: bytearray(2000), 3: bytearray(2000)}

    def place(stream, meta, left):
        if stream == 3:
            client.session.refuse(1, client.REFUSAL)
            buffers[1].append(0)
        return buffers[stream]

    client = connect(place, large_bytes=LARGE)
    for _ in range(2):
        client.open()
    client.pump()
    for piece in (slice(0, 500), slice(500, None)):
        for stream in buffers:
            client.h2.send_data(stream, framed(message)[piece])
    client.to_session()
    assert [kind for kind, stream, *_ in client.take_events() if stream == 3] == [REQUEST, PLACED]
    assert buffers[1].count(b"x") < 500
    assert buffers[3].count(b"x") == 1000


@pytest.mark.parametrize("method", ["receive", "send", "close"])
def test_place_cannot_do_all(connect, method):
    """`place` cannot call methods that the session is in the middle of."""
    message, _ = infer_request(b"x" * 100)

    def place(stream, meta, left):
        with pytest.raises(RuntimeError, match="in use"):
            getattr(client.session, method)(*[b""] * (method == "receive"))

    client = connect(place, large_bytes=LARGE)
    stream = client.open()
    assert taken(client, stream, framed(message)) == [(MESSAGE, stream, message, True)]


@pytest.mark.parametrize(
    ("answer", "error"), [(KeyError("x"), KeyError), (5, TypeError), (b"read-only" * 100, BufferError)]
)
def test_place_fails(connect, answer, error):
    """An exception of `place`, or a bad result, is raised, and the session can still be closed."""
    message, _ = infer_request(b"x" * 100)
    client = connect(Place(answer), large_bytes=LARGE)
    stream = client.open()
    with pytest.raises(error):
        taken(client, stream, framed(message))
    assert client.session.receive(b"more") == []
    client.session.send()
    assert not client.session.wants_io


@pytest.mark.parametrize("size", [0, 99, 128 + 63, 192])
def test_placed_where_there_is_no_room(connect, size):
    """Raw contents that do not fit are an error; none is written past the end."""
    message, _ = infer_request(*RAWS)
    room = bytearray(1000)
    answer = memoryview(room)[:size]
    events, _, _ = placed(connect, message, answer=answer)
    assert events == [(MALFORMED, 1, "the raw contents do not fit where they should go", True)]
    assert not any(room[size:])
    answer.release()


def test_placed_exactly(connect):
    """Exactly enough room is enough."""
    message, meta = infer_request(*RAWS)
    events, _, _ = placed(connect, message, answer=bytearray(193))
    assert events == [(PLACED, 1, (meta, OFFSETS), True)]


NOT_PROTOBUF = [
    field(1, 3) + b"x" * 40,
    field(1, 4) + b"x" * 40,
    field(1, 6) + b"x" * 40,
    field(1, 7) + b"x" * 40,
    field(0, 0) + b"x" * 40,
    field(0, 2, b"x" * 40),
    b"\x80" * 40,
    b"\xff\xff\xff\xff\x7f" + b"x" * 40,
    b"\x08" + b"\xff" * 40,
    b"\x0a" + b"\xff" * 40,
    b"\x0a\x29" + b"x" * 40,
    b"\x3a\x29" + b"x" * 40,
    field(1, 2, b"x" * 40) + b"\x08",
    field(1, 2, b"x" * 40) + b"\x08\x80",
    field(1, 2, b"x" * 40) + b"\x80",
    field(1, 2, b"x" * 40) + b"\x0a",
    field(1, 2, b"x" * 40) + field(1, 1, b"1234567"),
    field(1, 2, b"x" * 40) + field(1, 5, b"123"),
    field(7, 2, b"x" * 40) + field(1, 5, b""),
]


@pytest.mark.parametrize("message", NOT_PROTOBUF)
def test_no_protobuf(connect, message):
    """A malformed protobuf is reported, wherever it is cut, and later data is ignored."""
    assert _http2.split(message, ALIGNMENT) is None
    data = framed(message) + framed(b"next")
    for cut in range(1, len(data)):
        client = connect(Place(bytearray(1000)), large_bytes=LARGE)
        stream = client.open()
        events = taken(client, stream, data[:cut], data[cut:])
        assert [kind for kind, *_ in events] in ([MALFORMED], [MALFORMED, END])
        assert events[0][2].startswith("the message ")


def test_too_many_raws(connect):
    """Raw contents without bytes cannot be so many that the list of them is a danger."""
    message = field(7, 2) * 65536
    client = connect(Place(bytearray(64), bytearray(64)), large_bytes=LARGE)
    stream = client.open()
    client.pump()
    client.send(stream, framed(message) + framed(message + field(7, 2)))
    client.pump()
    events = told(client.take_events())
    assert [kind for kind, *_ in events] == [PLACED, MALFORMED]
    assert len(events[0][2][1]) == 65536
    assert len(_http2.split(message, ALIGNMENT)[2]) == 65536
    assert _http2.split(message + field(7, 2), ALIGNMENT) is None


@given(raws=st.lists(st.binary(max_size=300), max_size=5), id=st.text(max_size=10), alignment=st.integers(1, 130))
def test_split_and_scatter(raws, id, alignment):
    """A request is taken apart as protobuf put it together."""
    message, _ = infer_request(*raws, id=id)
    _, expected = infer_request(*raws)
    key, found, places, size, _ = _http2.split(message, alignment)
    assert service_pb2.ModelInferRequest.FromString(key) == service_pb2.ModelInferRequest.FromString(expected)
    assert found == id.encode()
    assert contents(message, places) == raws
    destination = bytearray(size + 10)
    _http2.scatter(message, places, destination, alignment)
    end = 0
    for raw in raws:
        end = -(-end // alignment) * alignment
        assert destination[end : end + len(raw)] == raw
        end += len(raw)
    assert end == size
    assert not any(destination[size:])
    if size:
        with pytest.raises(ValueError, match="do not fit"):
            _http2.scatter(message, places, memoryview(destination)[: size - 1], alignment)


def test_split_of_repeated_ids():
    """The last id counts, as in protobuf; one that is no text is a field like any other."""
    message = field(3, 2, b"first") + field(1, 2, b"m") + field(3, 0, b"\5") + field(3, 2, b"last")
    assert _http2.split(message, 8) == (field(1, 2, b"m") + field(3, 0, b"\5"), b"last", (), 0, ())
    assert _http2.split(b"", 8) == (b"", b"", (), 0, ())


@pytest.mark.parametrize("raws", [((0, 11),), ((11, 0),), ((-1, 1),), ((1, -1),), ((5, 2**62),), ((2**62, 1),)])
def test_scatter_from_elsewhere(raws):
    """A part that is outside of the message is refused."""
    with pytest.raises(ValueError, match="do not lie in the message"):
        _http2.scatter(b"0123456789", raws, bytearray(100), 8)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: _http2.split("text", 8),
        lambda: _http2.split(b""),
        lambda: _http2.split(b"", "8"),
        lambda: _http2.scatter(b"", [], bytearray(8), 8),
        lambda: _http2.scatter(b"", (), b"read-only", 8),
        lambda: _http2.scatter(b"", (5,), bytearray(8), 8),
        lambda: _http2.scatter(b"", (("x", 1),), bytearray(8), 8),
        lambda: _http2.scatter(5, (), bytearray(8), 8),
        lambda: _http2.pack(b"", ((0, 0, "x"),), bytearray(8), 8),
        lambda: _http2.pack(b"", [], bytearray(8), 8),
    ],
)
def test_types(wrong):
    """An argument of a wrong type is refused."""
    with pytest.raises((TypeError, BufferError, SystemError)):
        wrong()


@pytest.mark.parametrize("alignment", [0, -1, 2**31])
def test_alignments(alignment):
    """A number that is not an alignment is refused."""
    for function in (lambda: _http2.split(b"", alignment), lambda: _http2.scatter(b"", (), bytearray(), alignment)):
        with pytest.raises(ValueError, match="alignment"):
            function()


@pytest.mark.parametrize(("size", "proof"), [(1 << 24, 0), ((1 << 24) + 1, 1 << 20), (1 << 30, 1 << 25)])
def test_announced_messages(connect, size, proof):
    """Nobody is asked for the place of a large message before a part of it has arrived."""
    place = Place(bytearray(size + ALIGNMENT if size < 1 << 25 else 1))
    client = connect(place, large_bytes=LARGE, message_bytes=size, stream_window=1 << 30, connection_window=1 << 30)
    stream = client.open()
    client.pump()
    start = struct.pack(">BI", 0, size) + b"\x3a" + varint(size - 1 - len(varint(size)))
    client.h2.send_data(stream, start)
    client.to_session()
    sent = len(start) - 5
    while sent < proof:
        assert place.asked == []
        client.h2.send_data(stream, bytes(16384))
        client.to_session()
        sent += 16384
    if proof:
        assert place.asked == []
        assert client.session.gathered == sent
        client.h2.send_data(stream, b"x")
        client.to_session()
    assert place.asked == [(stream, b"", size)]


def test_gathered(connect):
    """Incomplete messages count as long as they lie in the heap, and those of more than a KiB only."""
    client = connect(Place(None))
    session = client.session
    streams = [client.open() for _ in range(4)]
    client.pump()
    for stream, length, part in zip(streams, [1024, 1025, 20000, 30000], [1000, 100, 300, 200], strict=True):
        client.h2.send_data(stream, struct.pack(">BI", 0, length) + bytes(part))
    client.to_session()
    assert session.gathered == 600
    assert session.largest() == streams[2]
    session.refuse(streams[2], client.REFUSAL)
    assert (session.gathered, session.largest()) == (300, streams[3])
    client.h2.send_data(streams[1], bytes(925))
    client.h2.reset_stream(streams[3])
    client.to_session()
    assert (session.gathered, session.largest()) == (0, 0)


def test_key_that_is_too_long(connect):
    """More than a key may have before the raw contents is gathered like any message; after them it is refused."""
    junk, raw = field(1, 2, bytes(4 << 20)), field(7, 2, b"raw")
    windows = {"stream_window": 1 << 24, "connection_window": 1 << 24}
    client = connect(Place(bytearray(64)), large_bytes=LARGE, **windows)
    for message, kind in ((junk + raw, MESSAGE), (raw + junk, MALFORMED)):
        stream = client.open()
        client.pump()
        client.take_events()
        client.send(stream, framed(message))
        client.pump()
        ((found, _, value, _),) = told(client.take_events())
        assert found == kind
        assert kind == MALFORMED or value == message


def test_limit(connect):
    """A stream may have a limit of its own, also for a message that has begun."""
    client = connect()
    for early in (True, False):
        stream = client.open()
        client.pump()
        client.take_events()
        if early:
            client.session.limit(stream, 100)
        client.h2.send_data(stream, framed(bytes(101))[:50])
        client.to_session()
        if not early:
            assert told(client.take_events()) == []
            client.session.limit(stream, 100)
            client.h2.send_data(stream, b"x")
            client.to_session()
        assert told(client.take_events()) == [(TOO_LARGE, stream, 101, False)]
    stream = client.open()
    client.pump()
    client.session.limit(stream, 100)
    client.take_events()
    client.h2.send_data(stream, framed(bytes(100)))
    client.to_session()
    assert told(client.take_events()) == [(MESSAGE, stream, bytes(100), False)]
    client.session.limit(12345, 1)
    for wrong in ((stream, -1), (stream, 2**32)):
        with pytest.raises(ValueError, match="limit"):
            client.session.limit(*wrong)
    with pytest.raises(TypeError):
        client.session.limit(stream)


def test_count_fields():
    """Those of entries count, and those of their values; what is no message has none."""
    entry = field(3, 2, field(1, 2, b"key") + field(2, 2, field(1, 0, b"\1") * 5))
    assert _http2.count_fields(b"", 3) == 0
    assert _http2.count_fields(field(1, 2, b"m") + entry * 2, 3) == 1 + 2 * 8
    assert _http2.count_fields(field(1, 2, b"m") + entry * 2, 4) == 3
    assert _http2.count_fields(bytearray(entry * 10_000), 3) == 80_000
    for broken in (b"\x0a", entry[:-1], field(3, 2, b"\x0b"), field(3, 2, field(2, 2, b"\x08"))):
        assert _http2.count_fields(broken, 3) is None

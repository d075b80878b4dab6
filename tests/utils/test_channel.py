# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Both ends of a channel: what may be said when, and what arrives however it is cut, or broken."""

from itertools import pairwise

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.utils.channel import (
    FRAME_BYTES_MAX,
    TO_HOST,
    TO_STUB,
    HostChannel,
    State,
    StubChannel,
)
from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.messages import (
    FIELDS,
    MESSAGES,
    RESCHEDULED,
    SENDER,
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

LOCATION = {"model_dir": "/models/m", "version": "1", "file": "/models/m/1/model.py"}
TENSOR = ["INPUT0", "FP32", [1, 16], 64, 64]
SAMPLES = {
    Hello: Hello(1, 4711, "3.11.4"),
    AutoComplete: AutoComplete(LOCATION, '{"name":"m"}'),
    Completed: Completed(""),
    Load: Load(LOCATION, {"model_name": "m", "model_config": "{}"}, 1, 7),
    Ready: Ready(True, False),
    LoadFailed: LoadFailed("ImportError: é"),
    Infer: Infer(1, [["id", 0, 0, 0, None, "", [TENSOR]], ["", "seq", 3, 9, ["OUT"], '{"a":1}', []]], [0, 4096]),
    Release: Release([64 << 30]),
    Result: Result(1, [[-1, "", 64, [TENSOR], ""], [3, "no", -1, [], ""], SENDER, RESCHEDULED], [1], 7, 10**18),
    Failed: Failed(1, "ValueError: no", [0, 1], 0, 1),
    Retired: Retired([1, 2]),
    Log: Log(20, "line\nline", "/models/m/1/model.py", 7),
    Stop: Stop(),
    Stopped: Stopped(),
    Respond: Respond(7, [-1, "", 64, [TENSOR], ""], False),
    Credit: Credit([[7, 16]]),
    Requeue: Requeue([9]),
    Call: Call(1, "other", -1, ["", 0, 0, 0, None, "", [TENSOR], ""], False, 7, 2),
    Answer: Answer(1, None, True),
    CancelCall: CancelCall(1),
    Consumed: Consumed([[1, 1]]),
    ReleaseHold: ReleaseHold([3]),
    Unread: Unread([1]),
    Unmap: Unmap([12]),
    Ask: Ask(1, "load_model", ["m", "", {"1/model.py": b"pass"}]),
    Reply: Reply(1, -1, 0.5),
    Measure: Measure(1, "increment", 1.0),
    CheckReady: CheckReady(),
    IsReady: IsReady(False, "why"),
    DropSequences: DropSequences([1, "two"]),
    MapGpu: MapGpu(7, "GPU-1", b"h" * 64, b"e" * 64, 1 << 23),
    UnmapGpu: UnmapGpu(7),
}
# Messages that lead a new conversation to each state.
PATHS = {
    State.STARTING: [],
    State.IDLE: [Hello],
    State.COMPLETING: [Hello, AutoComplete],
    State.LOADING: [Hello, Load],
    State.SERVING: [Hello, Load, Ready],
    State.STOPPING: [Hello, Load, Ready, Stop],
    State.CLOSED: [Hello, Load, Ready, Stop, Stopped],
}
FROM_HOST = {
    AutoComplete, Load, Infer, Release, Stop, Credit, Answer, Unread, MapGpu, UnmapGpu, Unmap, Reply, CheckReady,
    DropSequences,
}  # fmt: skip

each_message = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
each_state = pytest.mark.parametrize("state", State, ids=lambda state: state.name)


def talk(state):
    """Host and stub after the conversation that leads to `state`."""
    host, stub = HostChannel(), StubChannel()
    for kind in PATHS[state]:
        sender, receiver = (host, stub) if kind in FROM_HOST else (stub, host)
        assert receiver.receive_data(sender.send(SAMPLES[kind])) == [SAMPLES[kind]]
    assert host.state is stub.state is state
    return host, stub


def ends(kind, state):
    """(sender, receiver, what follows or None), of a message of this kind."""
    host, stub = talk(state)
    if kind in FROM_HOST:
        return host, stub, TO_STUB.get(state, {}).get(kind)
    return stub, host, TO_HOST.get(state, {}).get(kind)


def frame(kind, *fields):
    return msgpack.packb([TAGS[kind], list(fields)])


LEGAL = [
    (state, kind)
    for state in State
    for kind in MESSAGES
    if kind in TO_STUB.get(state, {}) or kind in TO_HOST.get(state, {})
]
each_legal = pytest.mark.parametrize(
    ("state", "kind"), LEGAL, ids=[f"{state.name}-{kind.__name__}" for state, kind in LEGAL]
)


class TestRoundTrip:
    @each_legal
    def test_whole(self, state, kind):
        """A message arrives as it was sent, and both ends agree on what follows."""
        sender, receiver, after = ends(kind, state)
        assert receiver.receive_data(sender.send(SAMPLES[kind])) == [SAMPLES[kind]]
        assert sender.state is receiver.state is after

    @each_legal
    def test_one_byte_at_a_time(self, state, kind):
        """A message arrives with its last byte and not before."""
        sender, receiver, after = ends(kind, state)
        data = sender.send(SAMPLES[kind])
        for index in range(len(data) - 1):
            assert receiver.receive_data(data[index : index + 1]) == []
            assert receiver.state is state
        assert receiver.receive_data(data[-1:]) == [SAMPLES[kind]]
        assert receiver.state is after

    @each_legal
    def test_with_the_start_of_the_next(self, state, kind):
        """The beginning of another frame stays for later."""
        sender, receiver, after = ends(kind, state)
        log = msgpack.packb((TAGS[Log], SAMPLES[Log]))
        assert receiver.receive_data(sender.send(SAMPLES[kind]) + log[:5]) == [SAMPLES[kind]]
        if Log in TO_HOST.get(after, {}) and kind not in FROM_HOST:
            assert receiver.receive_data(log[5:]) == [SAMPLES[Log]]

    def test_every_message_is_tried(self):
        """No message is left out of the above."""
        assert {kind for _, kind in LEGAL} == set(MESSAGES)

    def test_many_at_once(self):
        """A whole conversation may come in one piece."""
        host, stub = talk(State.LOADING)
        said = [SAMPLES[kind] for kind in (Log, Ready, Result, Retired, Failed, Log)]
        assert host.receive_data(b"".join(map(stub.send, said))) == said

    @given(st.lists(st.integers(0, 400), max_size=8))
    def test_any_cut(self, cuts):
        """However the bytes are cut, the messages are the same."""
        host, stub = talk(State.LOADING)
        said = [SAMPLES[kind] for kind in (Log, Ready, Result, Retired, Failed, Log)]
        data = b"".join(map(stub.send, said))
        bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
        heard = [message for a, b in pairwise(bounds) for message in host.receive_data(data[a:b])]
        assert heard == said

    def test_arrives_as_its_own_type(self):
        """A received message has the message's own type: a plain tuple would compare equal, too."""
        stub, host, _ = ends(Result, State.SERVING)
        (result,) = host.receive_data(stub.send(SAMPLES[Result]))
        assert type(result) is Result


class TestIllegal:
    @each_state
    @each_message
    def test_send(self, state, kind):
        """Sending what the table lacks is refused and keeps the state; each end may only send its own messages."""
        for channel, table in zip(talk(state), (TO_STUB, TO_HOST), strict=True):
            if kind in table.get(state, {}):
                continue
            with pytest.raises(LocalError, match=f"^{kind.__name__} may not be sent while {state.name}$"):
                channel.send(SAMPLES[kind])
            assert channel.state is state

    @each_state
    @each_message
    def test_receive(self, state, kind):
        """Receiving a message that the table lacks is the other end's fault and ends the conversation."""
        data = msgpack.packb((TAGS[kind], SAMPLES[kind]))
        for channel, table in zip(talk(state), (TO_HOST, TO_STUB), strict=True):
            if kind in table.get(state, {}):
                continue
            with pytest.raises(PeerError, match=f"^{kind.__name__} is not legal while {state.name}$"):
                channel.receive_data(data)
            assert channel.state is State.CLOSED

    def test_nothing_is_legal_after_that(self):
        """A closed channel sends nothing and takes nothing."""
        host, _ = talk(State.SERVING)
        with pytest.raises(PeerError):
            host.receive_data(frame(Ready))
        with pytest.raises(LocalError):
            host.send(Stop())
        with pytest.raises(PeerError):
            host.receive_data(frame(Log, 20, "", "", 1))

    def test_after_the_last_message(self):
        """Behind Stopped there is nothing more to come."""
        host, stub = talk(State.STOPPING)
        with pytest.raises(PeerError, match="Log is not legal while CLOSED"):
            host.receive_data(stub.send(Stopped()) + frame(Log, 20, "", "", 1))


class TestWrongFields:
    @each_legal
    def test_too_many_or_too_few(self, state, kind):
        """A message has as many fields as it has."""
        fields = list(SAMPLES[kind])
        for wrong in [[*fields, 0], fields[:-1] if fields else [None]]:
            _, receiver, _ = ends(kind, state)
            with pytest.raises(PeerError, match=f"{kind.__name__} came with the wrong fields"):
                receiver.receive_data(frame(kind, *wrong))
            assert receiver.state is State.CLOSED

    @pytest.mark.parametrize("value", [None, 1.5, b"bytes", 0, "text", [], {}], ids=repr)
    @each_legal
    def test_of_another_type(self, state, kind, value):
        """A field is of its type and of no other."""
        for index, expected in enumerate(FIELDS[TAGS[kind]]):
            if isinstance(value, expected):
                continue
            fields = list(SAMPLES[kind])
            fields[index] = value
            _, receiver, _ = ends(kind, state)
            with pytest.raises(PeerError, match="wrong fields"):
                receiver.receive_data(frame(kind, *fields))

    @pytest.mark.parametrize("fields", [None, 1, "text", {}, {"protocol": 1}, b""], ids=repr)
    def test_fields_that_are_no_array(self, fields):
        """Fields come in an array."""
        host = HostChannel()
        with pytest.raises(PeerError):
            host.receive_data(msgpack.packb([TAGS[Hello], fields]))


class TestNoFrame:
    @pytest.mark.parametrize(
        "value", [None, 1, "text", b"bytes", [], [0], [0, [], 0], {}, {"a": 1}, 1.5, True], ids=repr
    )
    def test_shape(self, value):
        """A frame is a tag and an array."""
        host = HostChannel()
        with pytest.raises(PeerError):
            host.receive_data(msgpack.packb(value))
        assert host.state is State.CLOSED

    @pytest.mark.parametrize("tag", [len(MESSAGES), 255, 2**63, 2**64 - 1, None, "0", 0.0, [], -(2**63)], ids=repr)
    def test_unknown_tag(self, tag):
        """A tag is the number of a message."""
        with pytest.raises(PeerError):
            HostChannel().receive_data(msgpack.packb([tag, [1, 1, "3.11"]]))

    @pytest.mark.parametrize("tag", range(-len(MESSAGES), 0))
    def test_tag_that_python_would_take(self, tag):
        """A place counted from the end of the list is no tag."""
        for state in (State.STARTING, State.SERVING, State.STOPPING):
            host, _ = talk(state)
            kind = MESSAGES[tag]
            with pytest.raises(PeerError):
                host.receive_data(msgpack.packb([tag, list(SAMPLES[kind])]))

    def test_text_that_is_no_text(self):
        """Strings are UTF-8."""
        with pytest.raises(PeerError):
            HostChannel().receive_data(b"\x92\x00\x93\x01\x01\xa2\xff\xfe")

    def test_array_of_impossible_length(self):
        """A length that no frame can have is refused at its announcement."""
        with pytest.raises(PeerError):
            HostChannel().receive_data(b"\xdd\xff\xff\xff\xff")

    def test_nested_without_end(self):
        """Depth has a limit as well."""
        with pytest.raises(PeerError):
            HostChannel().receive_data(b"\x92\x00" + b"\x91" * 100_000)

    def test_nested_announcements_cost_no_memory(self):
        """Long arrays in long arrays, all of them empty so far, are refused or wait; they take no memory."""
        limit = FRAME_BYTES_MAX.to_bytes(4, "big")
        host = HostChannel()
        try:
            host.receive_data(b"\x92\x00" + (b"\xdd" + limit) * 900)
        except PeerError:
            assert host.state is State.CLOSED

    @given(st.binary(max_size=200))
    def test_arbitrary_bytes(self, data):
        """Arbitrary bytes either decode into messages or raise PeerError."""
        for state in (State.STARTING, State.SERVING):
            for channel in talk(state):
                try:
                    heard = channel.receive_data(data)
                except PeerError:
                    assert channel.state is State.CLOSED
                else:
                    assert all(type(message) in TAGS for message in heard)

    @given(
        st.integers(-20, 20),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=5),
            lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner),
            max_leaves=12,
        ),
    )
    def test_arbitrary_frames(self, tag, fields):
        """A frame of any contents is a message of the right types, or the other end's fault."""
        for channel in talk(State.SERVING):
            try:
                heard = channel.receive_data(msgpack.packb([tag, fields]))
            except PeerError:
                continue
            for message in heard:
                assert all(map(isinstance, message, FIELDS[TAGS[type(message)]]))


class TestSize:
    def test_too_large_to_send(self):
        """A message beyond the limit is refused, says its size, and changes nothing."""
        host, stub = talk(State.SERVING)
        with pytest.raises(LocalError, match=f"Infer is [0-9]+ bytes and a frame holds {FRAME_BYTES_MAX}"):
            host.send(Infer(1, ["x" * FRAME_BYTES_MAX], []))
        assert host.state is State.SERVING
        assert stub.receive_data(host.send(Infer(1, [], []))) == [Infer(1, [], [])]

    def test_too_large_when_it_would_change_the_state(self):
        """A Load that is too large leaves the channel idle."""
        host, stub = talk(State.IDLE)
        with pytest.raises(LocalError):
            host.send(Load(LOCATION, {"model_config": "x" * FRAME_BYTES_MAX}, 1, 7))
        assert host.state is State.IDLE
        assert stub.receive_data(host.send(SAMPLES[Load])) == [SAMPLES[Load]]

    def test_what_cannot_be_encoded(self):
        """A value that no frame can hold is our fault, and does not affect the next message."""
        _, stub = talk(State.SERVING)
        for wrong in (Failed(1, object(), [], 0, 0), Failed(1 << 64, "", [], 0, 0)):
            with pytest.raises(LocalError):
                stub.send(wrong)

    def test_text_with_a_lone_surrogate(self):
        """File names that are no UTF-8 appear in messages of exceptions: they arrive, escaped."""
        host, stub = talk(State.SERVING)
        (failed,) = host.receive_data(stub.send(Failed(1, "no such file: \udcff", [], 0, 0)))
        assert failed.message == "no such file: \\udcff"

    def test_as_large_as_may_be(self):
        """A frame of exactly the limit passes, in pieces as a socket gives them, with another behind it."""
        host, stub = talk(State.SERVING)
        overhead = len(stub.send(Failed(1, "x" * (1 << 16), [], 0, 0))) - (1 << 16)
        message = Failed(1, "x" * (FRAME_BYTES_MAX - overhead), [], 0, 0)
        data = stub.send(message)
        assert len(data) == FRAME_BYTES_MAX
        data += stub.send(SAMPLES[Log])
        step = 64 << 10
        heard = [each for at in range(0, len(data), step) for each in host.receive_data(data[at : at + step])]
        assert heard == [message, SAMPLES[Log]]

    def test_frames_made_elsewhere(self):
        """A frame that is encoded already is checked as any other: whether it is legal now, and its size."""
        host, stub = talk(State.SERVING)
        result = Result(1, [], [], 5, 6)
        frame = stub.send(result)
        assert host.receive_data(stub.send_frame(Result, frame)) == [result]
        with pytest.raises(LocalError, match=f"^Result is {FRAME_BYTES_MAX + 1} bytes and a frame holds"):
            stub.send_frame(Result, bytes(FRAME_BYTES_MAX + 1))
        for kind in (Infer, Ready, Stopped):  # the last one changes the state
            with pytest.raises(LocalError, match=f"^{kind.__name__} may not be sent while SERVING$"):
                stub.send_frame(kind, frame)
        _, stopped = talk(State.CLOSED)
        with pytest.raises(LocalError, match="may not be sent while CLOSED"):
            stopped.send_frame(Result, frame)

    def test_a_frame_that_never_ends(self):
        """Beyond the limit of a frame nothing more is kept."""
        host, _ = talk(State.SERVING)
        pieces = [b"\x92\x09\x95\x01\xdb\x00\xff\xff\xff", *[b"x" * (1 << 20)] * 20]
        with pytest.raises(PeerError):
            [host.receive_data(piece) for piece in pieces]
        assert host.state is State.CLOSED


class TestEnd:
    @each_state
    def test_between_frames(self, state):
        """The other end may hang up between two frames."""
        for channel in talk(state):
            channel.receive_eof()
            assert channel.state is State.CLOSED

    def test_mid_frame(self):
        """The other end breaks the protocol by hanging up within a frame."""
        stub, host, _ = ends(Result, State.SERVING)
        data = stub.send(SAMPLES[Result])
        for cut in range(1, len(data)):
            _, host = HostChannel(), talk(State.SERVING)[0]
            host.receive_data(data[:cut])
            with pytest.raises(PeerError, match=f"^hung up in the middle of a frame, after {cut} bytes of it$"):
                host.receive_eof()
            assert host.state is State.CLOSED


@pytest.mark.parametrize("channel", [HostChannel, StubChannel])
def test_repr(channel):
    """A channel says which end it is and where the conversation stands."""
    assert repr(channel()) == f"<{channel.__name__} STARTING>"


def test_the_tables_do_not_overlap():
    """A message has one direction."""
    to_stub = {kind for legal in TO_STUB.values() for kind in legal}
    to_host = {kind for legal in TO_HOST.values() for kind in legal}
    assert to_stub == FROM_HOST
    assert to_stub | to_host == set(MESSAGES)
    assert not to_stub & to_host

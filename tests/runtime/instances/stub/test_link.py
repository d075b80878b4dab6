# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How messages to a stub are sent: at once, in their turn, or several together."""

import pytest

from pyruntime.runtime.instances.stub import link as link_module
from pyruntime.runtime.instances.stub.link import LINKS_TURN_S, MESSAGES_AT_ONCE
from pyruntime.runtime.rounds import SLICE_S, Rounds
from pyruntime.utils.channel import State
from pyruntime.utils.errors import PeerError
from pyruntime.utils.messages import Infer, Release, Result

from .far_end import Socket, Stub


@pytest.fixture
def stub_with(requests):
    """`stub_with(room, error=BlockingIOError)`: a stub whose socket is like that."""
    made = []

    def make(*what):
        made.append(Stub("m_0", requests, sock=Socket(*what)))
        return made[-1]

    yield make
    for stub in made:
        stub.close()


class TestAtOnce:
    @pytest.mark.parametrize(("room", "writes"), [(1000, 0), (3, 1), (0, 1)])
    def test_past_the_transport(self, stub_with, room, writes):
        """A batch goes straight into the socket; the transport sends what the socket has no room for."""
        stub = stub_with(room)
        stub.connection.infer(1, [], at_once=True)
        assert stub.hear() == [Infer(1, [], [])]
        assert stub.writes == writes

    def test_behind_what_was_sent_before(self, stub_with):
        """It does not overtake what the transport has not sent."""
        stub = stub_with(1000)
        stub.unsent = 1
        stub.connection.infer(1, [], at_once=True)
        assert stub.hear() == [Infer(1, [], [])]
        assert stub.writes == 1

    def test_to_a_stub_that_hung_up(self, stub_with):
        """It is for the transport to notice that."""
        stub = stub_with(0, BrokenPipeError)
        stub.connection.infer(1, [], at_once=True)
        assert stub.writes == 1


def answer_with_batches(connection):
    """Post another batch for each one that is answered."""
    handlers = {Result: lambda result: connection.infer(result.batch + 10, [], at_once=False)}
    connection.link.attach(handlers, lambda: None)


class TestInOnePiece:
    def test_what_answers_bring(self, stub):
        """Messages that are sent because of one read go out in one write."""
        answer_with_batches(stub.connection)
        stub.say(*[Result(number, [], [], 0, 0) for number in (1, 2, 3)])
        assert stub.hear() == [Infer(11, [], []), Infer(12, [], []), Infer(13, [], [])]
        assert stub.writes == 1

    def test_what_is_sent_together(self, stub):
        """Messages that belong together go out in one write."""
        stub.connection.link.send(Release([1]), Infer(1, [], []))
        assert stub.hear() == [Release([1]), Infer(1, [], [])]
        assert stub.writes == 1

    def test_up_to_nonsense(self, stub, caplog):
        """Messages before malformed data are handled, and their answers are sent."""
        answer_with_batches(stub.connection)
        data = stub.encode(Result(1, [], [], 0, 0))
        stub.connection.link.data_received(data)
        stub.connection.link.data_received(b"\xc1")
        assert stub.hear() == [Infer(11, [], [])]
        assert stub.connection.link.state is State.CLOSED
        assert "broke the protocol" in caplog.text


class Clock:
    """Goes on by as much as each message takes, in seconds."""

    def __init__(self, message_s):
        self.now = 100.0
        self._message_s = message_s

    def work(self, _):
        self.now += self._message_s


class TestManyMessages:
    COUNT = MESSAGES_AT_ONCE + 20

    @pytest.fixture
    def clock(self, stub, monkeypatch):
        """That of the stub, whose messages take so long each that three of them fill a slice."""
        clock = Clock(SLICE_S * 0.4)
        monkeypatch.setattr(link_module, "monotonic", lambda: clock.now)
        stub.connection.link._rounds = Rounds(lambda: clock.now, stub.due.append, SLICE_S)
        return clock

    @pytest.fixture
    def handled(self, stub, clock):
        """The numbers of the results that are handled."""
        numbers = []

        def handle(result):
            clock.work(result)
            numbers.append(result.batch)
            stub.connection.infer(result.batch + 100, [], at_once=False)

        stub.connection.link.attach({Result: handle}, lambda: None)
        return numbers

    def read(self, stub, count):
        """One read brings so many messages."""
        stub.connection.link.data_received(
            b"".join(stub.encode(Result(number, [], [], 0, 0)) for number in range(1, count + 1))
        )

    def test_a_turn_of_the_loop_handles_a_slice_of_them_in_order(self, stub, handled):
        self.read(stub, self.COUNT)
        assert handled == [1, 2, 3]
        assert stub.turn()
        assert handled == [1, 2, 3, 4, 5, 6]
        while stub.turn():
            pass
        assert handled == [*range(1, self.COUNT + 1)]

    def test_the_stub_is_not_read_while_messages_wait(self, stub, handled):
        self.read(stub, self.COUNT)
        assert not stub.is_read
        while stub.turn():
            assert stub.is_read == (len(handled) == self.COUNT)
        assert stub.is_read

    def test_answers_of_a_slice_are_sent_with_it(self, stub, handled):
        self.read(stub, self.COUNT)
        assert [message.batch for message in stub.hear()] == [101, 102, 103]
        assert stub.writes == 1

    def test_few_messages_are_handled_at_once(self, stub, handled):
        self.read(stub, MESSAGES_AT_ONCE)
        assert len(handled) == MESSAGES_AT_ONCE
        assert stub.is_read
        assert not stub.turn()

    def test_a_stub_that_dies_has_all_its_messages_handled(self, stub, handled):
        self.read(stub, self.COUNT)
        stub.exit()
        assert handled == [*range(1, self.COUNT + 1)]

    def test_nothing_is_handled_behind_a_message_that_breaks_the_protocol(self, stub, handled, caplog):
        def refuse(_):
            raise PeerError("no such answer")

        self.read(stub, self.COUNT)
        stub.connection.link.attach({Result: refuse}, lambda: None)
        while stub.turn():
            pass
        assert caplog.text.count("no such answer") == 1
        assert handled == [1, 2, 3]


def test_all_links_share_a_turn_of_the_loop(requests, monkeypatch):
    """However many stubs have sent however much, one turn takes no longer; each of them has its slices in turn."""
    clock, due, handled = Clock(SLICE_S * 0.4), [], []
    monkeypatch.setattr(link_module, "monotonic", lambda: clock.now)
    rounds = Rounds(lambda: clock.now, due.append, LINKS_TURN_S)
    stubs = [Stub(f"m_{number}", requests, rounds=rounds) for number in range(20)]
    messages = 3 * MESSAGES_AT_ONCE
    for stub in stubs:

        def handle(result, stub=stub):
            clock.work(result)
            handled.append((stub, result.batch))

        stub.connection.link.attach({Result: handle}, lambda: None)
    before = clock.now
    for stub in stubs:
        stub.connection.link.data_received(
            b"".join(stub.encode(Result(number, [], [], 0, 0)) for number in range(messages))
        )
    longest, served = clock.now - before, []
    while due:
        call_backs, due[:] = [*due], []
        before, count = clock.now, len(handled)
        for call_back in call_backs:
            call_back()
        longest = max(longest, clock.now - before)
        served.append({stub.connection.name for stub, _ in handled[count:]})
    assert longest <= LINKS_TURN_S + SLICE_S + SLICE_S * 0.4
    assert sorted(number for _, number in handled) == sorted([*range(messages)] * len(stubs))
    # Nobody has a second slice before all have had their first.
    first = 1 + next(index for index in range(len(served)) if len(set().union(*served[: index + 1])) == len(stubs))
    assert first <= len(stubs)
    for stub in stubs:
        assert [number for each, number in handled if each is stub] == [*range(messages)]
        stub.close()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How messages to a stub are sent: at once, in their turn, or several together."""

import pytest

from pyruntime.utils.channel import State
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

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The messages that a connection delays to send with others, and the memory that it shares."""

import asyncio
import contextlib
import os
import socket
from types import SimpleNamespace

import pytest

from pyruntime.runtime.instances.stub.connection import (
    CREDIT_BYTES_WAITING_MAX,
    CREDITS_WAITING_MAX,
    DROPPED_CHARS_MAX,
    DROPPED_MAX,
    RELEASE_BYTES_WAITING_MAX,
    RELEASES_WAITING_MAX,
    StubConnection,
    portions,
)
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.runtime.regions import ClientRegion, create_region
from pyruntime.utils.channel import State, StubChannel
from pyruntime.utils.errors import LoadError, LocalError, PeerError
from pyruntime.utils.messages import (
    PROTOCOL_VERSION,
    Credit,
    Hello,
    Infer,
    Load,
    Ready,
    Release,
    Result,
    Stop,
    Stopped,
    Unmap,
)


class Stub:
    """The far end. `writes` is how often the transport has written, and `unsent` what it has not sent, in bytes."""

    unsent = 0

    def __init__(self, requests):
        self.connection = asyncio.run(self._connect(requests))
        self._ours, self.connection._grants = socket.socketpair()
        self._ours.setblocking(False)
        self.connection._grants.setblocking(False)
        self._channel = StubChannel()
        self._heard = []
        self.writes = 0
        self.connection.connection_made(self)
        self.say(Hello(PROTOCOL_VERSION, 1, "3"))
        self.connection.send(Load({}, {}, 1, requests.number))

    @staticmethod
    async def _connect(requests):
        return StubConnection("m_0", requests)

    def write(self, data):
        """Stands for the transport's method."""
        self.writes += 1
        self._heard += self._channel.receive_data(data)

    def get_write_buffer_size(self):
        """Stands for the transport's method."""
        return self.unsent

    def abort(self):
        """See asyncio.Transport."""

    def serve(self):
        self.say(Ready(False, False))
        self.hear()
        self.writes = 0

    def say(self, *messages):
        self.connection.data_received(b"".join(map(self._channel.send, messages)))

    def hear(self):
        heard, self._heard = self._heard, []
        return heard

    def granted(self):
        numbers = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._ours, 8, 1)
                socket.close(fds[0])
                numbers.append(int.from_bytes(data, "little"))
        return numbers

    def close(self):
        self.connection._close()
        self._ours.close()


@pytest.fixture
def requests():
    made = create_region("requests of a test")
    yield made
    made.close()


@pytest.fixture
def stub(requests):
    made = Stub(requests)
    made.serve()
    yield made
    made.close()


@pytest.fixture
def other():
    made = create_region("another model's memory")
    yield made
    if made.fileno() >= 0:
        made.close()


class TestRelease:
    def test_with_the_next_batch(self, stub):
        """Slots that were read go back with the next batch."""
        stub.connection.release(64, 8)
        stub.connection.release(128, 8)
        assert stub.hear() == []
        stub.connection.infer(1, [], at_once=False)
        stub.connection.infer(2, [], at_once=False)
        assert stub.hear() == [Infer(1, [], [64, 128]), Infer(2, [], [])]

    def test_when_there_are_many(self, stub):
        """Without one they go when there are many."""
        for slot in range(RELEASES_WAITING_MAX):
            assert stub.hear() == []
            stub.connection.release(slot, 8)
        assert stub.hear() == [Release(list(range(RELEASES_WAITING_MAX)))]

    def test_when_they_are_large(self, stub):
        """Large releases are sent at once."""
        stub.connection.release(0, RELEASE_BYTES_WAITING_MAX - 1)
        assert stub.hear() == []
        stub.connection.release(64, 1)
        assert stub.hear() == [Release([0, 64])]
        stub.connection.release(128, RELEASE_BYTES_WAITING_MAX - 1)
        assert stub.hear() == []

    def test_that_fit_no_frame(self, stub):
        """A batch that cannot be sent takes nothing with it."""
        stub.connection.release(64, 8)
        with pytest.raises(LocalError):
            stub.connection.infer(1, [object()], at_once=False)
        stub.connection.infer(1, [], at_once=False)
        assert stub.hear() == [Infer(1, [], [64])]

    def test_to_a_stub_that_has_ended(self, stub):
        """Slots that are released after the stub has ended are not reported."""
        stub.connection.stop()
        stub.say(Stopped())
        stub.hear()
        for slot in range(3 * RELEASES_WAITING_MAX):
            stub.connection.release(slot, 1 << 20)
        assert stub.hear() == []


class TestCredit:
    def test_when_there_are_many(self, stub):
        """A sender learns of what its client has taken when that is worth a message."""
        stub.connection.credit(8, 8)
        for _ in range(CREDITS_WAITING_MAX):
            assert stub.hear() == []
            stub.connection.credit(7, 8)
        assert stub.hear() == [Credit([[7, CREDITS_WAITING_MAX]])]
        for _ in range(CREDITS_WAITING_MAX - 1):
            stub.connection.credit(7, 8)
        assert stub.hear() == []

    def test_when_they_are_large(self, stub):
        """Large responses are worth it sooner."""
        stub.connection.credit(7, CREDIT_BYTES_WAITING_MAX - 1)
        assert stub.hear() == []
        stub.connection.credit(7, 1)
        assert stub.hear() == [Credit([[7, 2]])]

    def test_of_one_that_has_ended(self, stub):
        """A request that has ended needs no credit, and the next request with its number begins anew."""
        for _ in range(CREDITS_WAITING_MAX - 1):
            stub.connection.credit(7, 8)
        stub.connection.forget_credit(7)
        stub.connection.forget_credit(9)
        stub.connection.credit(7, 8)
        assert stub.hear() == []

    def test_to_a_stub_that_has_ended(self, stub):
        """A stub that has ended gets no credit."""
        stub.connection.stop()
        stub.say(Stopped())
        stub.hear()
        for _ in range(CREDITS_WAITING_MAX):
            stub.connection.credit(7, 8)
        assert stub.hear() == []


def test_portions():
    """Ids of sequences go in portions by their number and by their length; one that is too long goes alone."""
    assert list(portions([])) == []
    assert list(portions([1, "two"])) == [[1, "two"]]
    many = list(range(2 * DROPPED_MAX + 1))
    assert [len(each) for each in portions(many)] == [DROPPED_MAX, DROPPED_MAX, 1]
    half, long = "x" * (DROPPED_CHARS_MAX // 2), "x" * (2 * DROPPED_CHARS_MAX)
    assert list(portions([long, half, half, 1, long])) == [[long], [half, half], [1], [long]]


class TestRegions:
    def test_of_its_own(self, stub, requests):
        """A stub knows its own two regions, one of them as 0."""
        assert stub.connection.region(0) is stub.connection.responses
        assert stub.connection.region(requests.number) is requests

    def test_of_another(self, stub, other):
        """A stub may use the regions that it was granted; each is granted once."""
        with pytest.raises(PeerError, match=f"there is no region {other.number}, or it is none of the stub's business"):
            stub.connection.region(other.number)
        stub.connection.grant(other)
        stub.connection.grant(other)
        assert stub.granted() == [other.number]
        assert stub.connection.region(other.number) is other

    def test_of_a_client(self, stub):
        """A client's memory can be granted, but no call of the stub's may refer to it."""
        region = ClientRegion(os.memfd_create("a client's"))
        stub.connection.grant(region)
        assert stub.granted() == [region.number]
        with pytest.raises(PeerError, match="none of the stub's business"):
            stub.connection.region(region.number)
        region.close()
        assert stub.hear() == [Unmap([region.number])]

    def test_that_need_not_be_granted(self, stub, requests):
        """Its request region it has from the beginning."""
        stub.connection.grant(requests)
        assert stub.granted() == []

    def test_its_responses_as_others_know_them(self, stub):
        """Its response region it may be given again, under the number that others know it by."""
        stub.connection.grant(stub.connection.responses)
        assert stub.granted() == [stub.connection.responses.number]

    def test_that_is_closed(self, stub, other):
        """A closed region is unmapped by the stub, which may not use it any more."""
        stub.connection.grant(other)
        other.close()
        assert stub.hear() == [Unmap([other.number])]
        with pytest.raises(PeerError):
            stub.connection.region(other.number)

    def test_that_was_not_granted(self, stub, other):
        """A region that was not granted is not revoked."""
        stub.connection.revoke(other)
        assert stub.hear() == []

    def test_while_it_loads(self, requests, other):
        """Regions are also unmapped while the model loads, because it may have called others."""
        stub = Stub(requests)
        stub.hear()
        stub.connection.grant(other)
        other.close()
        assert stub.hear() == [Unmap([other.number])]
        stub.close()

    def test_of_a_stub_that_is_gone(self, stub, other):
        """A stub that is gone gets no messages and holds no regions."""
        stub.connection.grant(other)
        stub.connection._close()
        assert other.holders == set()
        stub.connection.grant(other)
        assert other.holders == set()
        other.close()
        assert stub.hear() == []

    def test_more_than_the_socket_holds(self, stub):
        """A stub that does not take its grants gets no more of them, and the host does not wait."""
        made = []

        def grant_another():
            made.append(create_region("a test"))
            stub.connection.grant(made[-1])

        with pytest.raises(LocalError, match="m_0 cannot be given a region of shared memory"):
            [grant_another() for _ in range(10_000)]
        assert made[-1].holders == set()
        for region in made:
            region.close()


class TestFlags:
    def test_set(self, stub):
        """The model sees them in its response region."""
        stub.connection.set_flag(7, 1)
        assert stub.connection.responses.flag(7) == 1
        stub.connection.set_flag(7, 0)
        assert stub.connection.responses.flag(7) == 0

    def test_of_a_stub_that_is_gone(self, stub):
        """There is no memory for them any more."""
        stub.connection._close()
        stub.connection.set_flag(7, 1)


class _Socket:
    """Takes so many bytes, for the stub."""

    def __init__(self, stub, room):
        self._stub = stub
        self._room = room

    def send(self, data):
        if not self._room:
            raise BlockingIOError
        self._stub._heard += self._stub._channel.receive_data(data[: self._room])
        return min(len(data), self._room)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """Nothing is open."""

    def recv(self, size):
        raise BlockingIOError


class TestAtOnce:
    @pytest.mark.parametrize(("room", "writes"), [(1000, 0), (3, 1), (0, 1)])
    def test_past_the_transport(self, stub, room, writes):
        """A batch goes straight into the socket; the transport sends what the socket has no room for."""
        stub.connection._sock = _Socket(stub, room)
        stub.connection.infer(1, [], at_once=True)
        assert stub.hear() == [Infer(1, [], [])]
        assert stub.writes == writes

    def test_behind_what_was_sent_before(self, stub):
        """It does not overtake what the transport has not sent."""
        stub.connection._sock = _Socket(stub, 1000)
        stub.unsent = 1
        stub.connection.infer(1, [], at_once=True)
        assert stub.hear() == [Infer(1, [], [])]
        assert stub.writes == 1

    def test_to_a_stub_that_hung_up(self, stub):
        """It is for the transport to notice that."""

        def send(data):
            raise BrokenPipeError

        stub.connection._sock = _Socket(stub, 1000)
        stub.connection._sock.send = send
        stub.connection.infer(1, [], at_once=True)
        assert stub.writes == 1


class TestInOnePiece:
    def test_what_answers_bring(self, stub):
        """Messages that are sent because of one read go out in one write."""
        connection = stub.connection
        connection.attach({Result: lambda result: connection.infer(result.batch + 10, [], at_once=False)}, lambda: None)
        stub.say(*[Result(number, [], [], 0, 0) for number in (1, 2, 3)])
        assert stub.hear() == [Infer(11, [], []), Infer(12, [], []), Infer(13, [], [])]
        assert stub.writes == 1

    def test_what_is_sent_together(self, stub):
        """Messages that belong together go out in one write."""
        stub.connection.send(Release([1]), Infer(1, [], []))
        assert stub.hear() == [Release([1]), Infer(1, [], [])]
        assert stub.writes == 1

    def test_up_to_nonsense(self, stub, caplog):
        """Messages before malformed data are handled, and their answers are sent."""
        connection = stub.connection
        connection.attach({Result: lambda result: connection.infer(result.batch + 10, [], at_once=False)}, lambda: None)
        data = stub._channel.send(Result(1, [], [], 0, 0))
        connection.data_received(data)
        connection.data_received(b"\xc1")
        assert stub.hear() == [Infer(11, [], [])]
        assert connection.state is State.CLOSED
        assert "broke the protocol" in caplog.text


def test_load_of_a_stub_that_has_hung_up(requests):
    """A stub that breaks the protocol, or dies, after its Hello fails the load like one that dies later."""

    async def act():
        connection = StubConnection("m_0", requests)
        exited = asyncio.get_running_loop().create_future()
        connection._process = SimpleNamespace(exited=exited, kill=lambda: exited.set_result(ProcessExit(-9)))
        connection.connection_made(SimpleNamespace(abort=lambda: None, close=lambda: None))
        exited.add_done_callback(lambda _: connection._replies.put_nowait(None))
        connection.data_received(b"\xc1")
        assert connection.state is State.CLOSED
        if not exited.done():
            connection.kill()
        with pytest.raises(LoadError, match="the stub process of m_0 was killed"):
            await connection.load({}, {}, 1)

    asyncio.run(act())


def test_stop(stub):
    """A stop is sent once."""
    stub.connection.stop()
    stub.connection.stop()
    assert stub.hear() == [Stop()]


def test_end_that_nobody_waits_for(requests):
    """A connection whose wait for the end was cancelled frees its memory when its process ends."""

    async def ended():
        connection = StubConnection("m_0", requests)
        exited = asyncio.get_running_loop().create_future()
        connection._process = SimpleNamespace(exited=exited)
        waiting = asyncio.create_task(connection.wait_exited())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert connection.responses.fileno() >= 0
        exited.set_result(ProcessExit(0))
        await asyncio.sleep(0)
        return connection

    assert asyncio.run(ended()).responses.fileno() == -1

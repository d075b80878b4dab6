# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stub's end of the socket, shared by threads; the test is the host at the other end of a real one."""

import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from pyruntime.stub.link import Link
from pyruntime.utils.channel import FRAME_BYTES_MAX, HostChannel, StubChannel
from pyruntime.utils.errors import LocalError, PeerError
from pyruntime.utils.messages import (
    PROTOCOL_VERSION,
    Answer,
    Ask,
    Hello,
    Infer,
    Load,
    Log,
    Ready,
    Release,
    ReleaseHold,
    Reply,
    Result,
)
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _switch_often():
    """Threads take turns as often as they can, so that few rounds try many orders."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Host:
    """The other end of a link's socket. `handled` are the messages that the link has handled, and their threads."""

    def __init__(self):
        self._ours, self.theirs = socket.socketpair()
        self._ours.settimeout(PATIENCE_S)
        self._channel = HostChannel()
        self._waiting = []
        self.handled = []
        self.on_message = lambda message: None
        self.threads = []
        self.failures = []
        channel = StubChannel()
        self.link = Link(self.theirs, channel, self._handle)
        self.link.send(Hello(PROTOCOL_VERSION, 1, "3"))
        self.hear()
        self.say(Load({}, {}, 1, 1))
        assert self.link.wait(lambda: self.handled)
        self.link.send(Ready(False, False))
        self.hear()
        self.handled.clear()

    def _handle(self, message):
        self.handled.append((message, threading.current_thread().name))
        self.on_message(message)

    def say(self, *messages):
        self._ours.sendall(b"".join(map(self._channel.send, messages)))

    def hear(self):
        """The stub's next message; None if there are no more."""
        while not self._waiting:
            data = self._ours.recv(1 << 16)
            if not data:
                return None
            self._waiting += self._channel.receive_data(data)
        return self._waiting.pop(0)

    def start(self, target, name=""):
        """Run this in a thread. An exception in it fails the test at the end."""

        def run():
            try:
                target()
            except BaseException as exc:
                self.failures.append(exc)

        thread = threading.Thread(target=run, name=name or f"thread {len(self.threads)}", daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self):
        """Wait until all threads have ended, as they should."""
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert self.failures == []

    def hang_up(self):
        self._ours.close()

    def close(self):
        self._ours.close()
        for thread in [*self.threads, *[each for each in threading.enumerate() if each.name == "pyruntime attend"]]:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self.theirs.close()


@pytest.fixture
def host():
    made = Host()
    yield made
    made.close()


def log(text):
    return Log(20, text, "model.py", 1)


def test_waits_in_poll(host):
    """A thread that waits is not in recv: there it would be woken whenever the host has read something."""
    host.theirs.setblocking(False)  # recv fails if nothing has come
    poll = host.link._arrival.poll

    def arrive():
        host.say(Release([1]))
        return poll()

    host.link._arrival = SimpleNamespace(poll=arrive)
    assert host.link.wait(lambda: host.handled)


class TestSend:
    def test_arrives(self, host):
        """A message that is sent arrives."""
        host.link.send(log("hello"))
        assert host.hear() == log("hello")

    def test_from_many_threads(self, host):
        """Any thread may send: each message arrives whole, and those of one thread in their order."""

        def send(name):
            for number in range(200):
                host.link.send(log(f"{name} {number} {'x' * (number * 20)}"))

        for name in "abc":
            host.start(lambda name=name: send(name))
        heard = [host.hear().message.split()[:2] for _ in range(600)]
        host.join()
        for name in "abc":
            assert [int(number) for sender, number in heard if sender == name] == list(range(200))

    def test_from_within(self, host, monkeypatch):
        """A destructor, or a signal handler, may send in the middle of sending: its message comes behind."""
        real = host.link._channel.send

        def send(message):
            if message.message == "outer":
                host.link.send(log("inner"))
                host.link.send(log("also inner"))
            return real(message)

        monkeypatch.setattr(host.link._channel, "send", send)
        host.link.send(log("outer"))
        assert [host.hear().message for _ in range(3)] == ["outer", "inner", "also inner"]

    def test_posted(self, host):
        """Posted messages go out before the next message that is sent."""
        host.link.post(ReleaseHold([1]))
        host.link.post(ReleaseHold([2]))
        host.link.send(log("hello"))
        assert [host.hear() for _ in range(3)] == [ReleaseHold([1]), ReleaseHold([2]), log("hello")]

    def test_encoded_elsewhere(self, host):
        """A frame that is encoded already goes out in its turn, and one that is not legal is refused."""
        result = Result(1, [], [], 5, 6)
        frame = StubChannel.send(host.link._channel, result)
        host.link.post(ReleaseHold([1]))
        host.link.send_frame(Result, frame)
        host.link.send_frame(Result, frame)
        assert [host.hear() for _ in range(3)] == [ReleaseHold([1]), result, result]
        with pytest.raises(LocalError):
            host.link.send_frame(Infer, frame)

    def test_while_an_encoded_one_is_sent(self, host, monkeypatch):
        """What a signal handler sends while such a frame goes out follows it."""
        result = Result(1, [], [], 5, 6)
        frame = StubChannel.send(host.link._channel, result)

        class Interrupted:
            def sendall(self, data):
                if data == frame:
                    host.link.send_frame(Result, frame)
                    host.link.send(log("inner"))
                host.theirs.sendall(data)

        monkeypatch.setattr(host.link, "_sock", Interrupted())
        host.link.send_frame(Result, frame)
        assert [host.hear() for _ in range(3)] == [result, result, log("inner")]

    def test_too_large(self, host):
        """A message that does not fit a frame is refused; the messages before and after it arrive."""
        host.link.post(ReleaseHold([1]))
        with pytest.raises(LocalError):
            host.link.send(log("x" * FRAME_BYTES_MAX))
        host.link.send(log("hello"))
        assert [host.hear() for _ in range(2)] == [ReleaseHold([1]), log("hello")]

    def test_more_than_the_socket_holds(self, host):
        """A large message waits for the host to read; meanwhile others wait for it."""
        host.start(lambda: host.link.send(log("x" * (1 << 22))))
        host.start(lambda: host.link.send(log("hello")))
        assert sorted(len(host.hear().message) for _ in range(2)) == [5, 1 << 22]
        host.join()

    def test_to_nobody(self, host):
        """Sending to a host that has hung up raises the socket's error."""
        host.hang_up()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            host.link.send(log("hello"))


class TestWait:
    def test_reads_itself(self, host):
        """A thread that waits alone reads in this thread."""
        host.say(Release([1]))
        assert host.link.wait(lambda: host.handled)
        assert host.handled == [(Release([1]), threading.current_thread().name)]

    def test_for_what_is_there(self, host):
        """A wait whose condition holds already does not read."""
        host.say(Release([1]))
        assert host.link.wait(lambda: True)
        assert host.handled == []

    def test_until_it_is_there(self, host):
        """Other messages are handled on the way, however many come at a time."""
        host.say(*[Release([number]) for number in range(50)])
        host.say(*[Release([number]) for number in range(50, 100)])
        assert host.link.wait(lambda: len(host.handled) == 100)
        assert [message.released for message, _ in host.handled] == [[number] for number in range(100)]

    def test_the_host_hangs_up(self, host):
        """A wait ends when the host hangs up; messages that arrived before are handled first."""
        host.say(Release([1]))
        host.hang_up()
        assert not host.link.wait(lambda: False)
        assert host.link.closed
        assert len(host.handled) == 1
        assert host.link.wait(lambda: True)

    def test_who_is_told_that_the_host_hung_up(self, host):
        """`on_closed` is called when the host hangs up."""
        told = []
        host.link.on_closed = lambda: told.append(host.link.closed)
        host.hang_up()
        assert not host.link.wait(lambda: False)
        assert told == [True]

    def test_many_threads_and_the_host_hangs_up(self, host):
        """A hang-up ends the waits of all threads."""
        outcomes = []
        for _ in range(4):
            host.start(lambda: outcomes.append(host.link.wait(lambda: False)))
        host.hang_up()
        host.join()
        assert outcomes == [False] * 4

    def test_the_host_hangs_up_without_listening(self, host):
        """It is as gone if it has not read all that was said."""
        host.link.send(log("hello"))
        host.hang_up()
        assert not host.link.wait(lambda: False)
        assert host.link.closed

    def test_nonsense(self, host):
        """A host that breaks the protocol is not read any further."""
        host._ours.sendall(b"\xc1")
        with pytest.raises(PeerError):
            host.link.wait(lambda: False)
        assert host.link.closed
        assert not host.link.wait(lambda: False)

    def test_a_handler_that_fails(self, host):
        """The link can still be read after a handler has failed."""

        def fail(message):
            raise ValueError("no")

        host.on_message = fail
        host.say(Release([1]))
        with pytest.raises(ValueError, match="no"):
            host.link.wait(lambda: False)
        host.on_message = lambda message: None
        host.say(Release([2]))
        assert host.link.wait(lambda: len(host.handled) == 2)

    def test_each_for_its_own(self, host):
        """One waiting thread reads for all; when it has its message another one takes over."""
        waiting = [threading.Event() for _ in range(5)]
        arrived = [False] * 5

        def arrive(message):
            arrived[message.call] = True

        def wait(number):
            def done():
                waiting[number].set()
                return arrived[number]

            assert host.link.wait(done)

        host.on_message = arrive
        threads = [host.start(lambda number=number: wait(number)) for number in range(5)]
        for each in waiting:
            assert each.wait(PATIENCE_S)
        for number in (3, 0, 4, 1, 2):
            assert threads[number].is_alive()
            host.say(Answer(number, None, True))
            threads[number].join(PATIENCE_S)
            assert not threads[number].is_alive()
        host.join()

    def test_no_wake_up_is_lost(self, host):
        """Many threads ask and wait for their answers, over and over; no wake-up is lost."""
        replies = {}
        rounds = 300

        def arrive(message):
            replies[message.question] = message.value

        def ask(thread):
            for number in range(rounds):
                question = thread * rounds + number
                host.link.send(Ask(question, "echo", [question]))
                assert host.link.wait(lambda question=question: question in replies)
                assert replies[question] == question

        def answer():
            for _ in range(5 * rounds):
                message = host.hear()
                host.say(Reply(message.question, -1, message.arguments[0]))

        host.on_message = arrive
        for thread in range(5):
            host.start(lambda thread=thread: ask(thread))
        host.start(answer)
        host.join()
        assert len(replies) == 5 * rounds

    def test_in_bursts(self, host):
        """Messages for several threads that arrive in one read reach all of these threads."""
        rounds = 200
        arrived = [0] * 4

        def arrive(message):
            arrived[message.call] += 1

        def wait(number):
            for count in range(1, rounds + 1):
                assert host.link.wait(lambda count=count: arrived[number] >= count)

        host.on_message = arrive
        for number in range(4):
            host.start(lambda number=number: wait(number))
        for _ in range(rounds):
            host.say(*[Answer(number, None, True) for number in range(4)])
        host.join()


class TestAtTheWrongMoment:
    """Between a look and what follows from it others may have done something."""

    def wait(self, host, done):
        """Wait in a thread, which must end."""
        thread = host.start(lambda: host.link.wait(done))
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        host.join()

    def test_the_reader_leaves(self, host, monkeypatch):
        """A thread that was about to follow a reader reads itself if that reader leaves."""
        real = host.link._follow

        def follow(done):
            if host.link._reader.locked():
                host.link._reader.release()
            real(done)

        monkeypatch.setattr(host.link, "_follow", follow)
        host.say(Release([1]))
        host.link._reader.acquire()
        self.wait(host, lambda: host.handled)

    def test_the_reader_has_it(self, host, monkeypatch):
        """A thread that was about to follow a reader returns if that reader has just brought its message."""
        real = host.link._follow
        arrived = []

        def follow(done):
            arrived.append(1)
            real(done)

        monkeypatch.setattr(host.link, "_follow", follow)
        with host.link._reader:
            self.wait(host, lambda: arrived)

    def test_the_reader_before_had_it(self, host):
        """A thread that takes over from a reader which has brought its message returns at once."""
        arrived = []

        class Lock:
            """A lock that its owner frees after bringing a message."""

            def __init__(self, lock):
                self._lock = lock

            def acquire(self, blocking):
                arrived.append(1)
                return self._lock.acquire(blocking)

            def release(self):
                self._lock.release()

        host.link._reader = Lock(host.link._reader)
        self.wait(host, lambda: arrived)


class TestWake:
    def test_for_what_no_message_brings(self, host):
        """A thread that follows a reader checks its condition again after `wake`."""
        done = threading.Event()
        looked = threading.Event()

        def follow():
            def look():
                looked.set()
                return done.is_set()

            assert host.link.wait(look)

        with host.link._reader:  # another thread reads, and there is no data
            thread = host.start(follow)
            assert looked.wait(PATIENCE_S)
            done.set()
            host.link.wake()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def test_of_a_reader_that_leaves(self, host):
        """A thread that follows a reader reads itself once the reader leaves."""
        looked = threading.Event()

        def follow():
            def look():
                looked.set()
                return len(host.handled) == 2

            assert host.link.wait(look)

        reading = host.start(lambda: host.link.wait(lambda: host.handled), "reader")
        host.start(follow, "follower")
        assert looked.wait(PATIENCE_S)
        host.say(Release([1]))
        reading.join(PATIENCE_S)
        host.say(Release([2]))
        host.join()
        assert len(host.handled) == 2


class TestPoll:
    def test_nothing(self, host):
        """Where nothing has arrived nothing happens."""
        host.link.poll()
        assert host.handled == []

    def test_what_has_arrived(self, host):
        """Messages that have arrived are handled."""
        host.say(Release([1]), Release([2]))
        host.link.poll()
        assert [message for message, _ in host.handled] == [Release([1]), Release([2])]

    def test_the_host_hangs_up(self, host):
        """The end is noticed, and wakes those that wait."""
        host.hang_up()
        host.link.poll()
        assert host.link.closed

    def test_while_another_reads(self, host):
        """Messages are left to the thread that is reading."""
        host.say(Release([1]))
        with host.link._reader:
            host.link.poll()
            assert host.handled == []
        host.link.poll()
        assert len(host.handled) == 1

    def test_for_those_that_wait(self, host):
        """A message that is read for another thread reaches it."""
        looked = threading.Event()

        def follow():
            def look():
                looked.set()
                return host.handled

            assert host.link.wait(look)

        host.link._reader.acquire()
        host.start(follow)
        assert looked.wait(PATIENCE_S)
        host.say(Release([1]))
        host.link._receive(0)
        host.link._reader.release()
        host.link.wake()
        host.join()

    def test_beside_threads_that_wait(self, host):
        """An event loop that polls takes nothing away from threads that wait for it."""
        arrived = [0, 0]
        rounds = 300

        def arrive(message):
            arrived[message.call] += 1

        def wait(number):
            for count in range(1, rounds + 1):
                assert host.link.wait(lambda count=count: arrived[number] >= count)

        def poll():
            while min(arrived) < rounds:
                host.link.poll()

        host.on_message = arrive
        host.start(lambda: wait(0))
        host.start(lambda: wait(1))
        host.start(poll)
        for _ in range(rounds):
            host.say(Answer(0, None, True))
            host.say(Answer(1, None, True))
        host.join()


class TestAttend:
    def test_while_nobody_waits(self, host):
        """Messages are handled even if all threads of the model are busy."""
        handled = threading.Event()
        host.on_message = lambda message: handled.set()
        host.link.attend()
        host.link.attend()
        host.say(Release([1]))
        assert handled.wait(PATIENCE_S)
        assert host.handled == [(Release([1]), "pyruntime attend")]
        assert [each.name for each in threading.enumerate()].count("pyruntime attend") == 1

    def test_beside_threads_that_wait(self, host):
        """A thread that waits gets its messages though the attending thread reads, too."""
        host.link.attend()
        for number in range(1, 50):
            host.say(Infer(number, [], []))
            assert host.link.wait(lambda number=number: len(host.handled) == number)

    def test_the_host_hangs_up(self, host):
        """The end is noticed."""
        host.link.attend()
        host.hang_up()
        assert not host.link.wait(lambda: False)


def test_close(host):
    """A process that the model forked has no link."""
    host.link.close()
    with pytest.raises(OSError):
        host.link.send(log("hello"))


def test_fileno(host):
    """An event loop watches the socket itself."""
    assert host.link.fileno() == host.theirs.fileno()

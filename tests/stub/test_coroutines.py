# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The event loop of a thread that executes, which also reads from the link: the test is the host at its other end."""

import asyncio
import socket
import threading

import pytest

from pyruntime.stub.coroutines import Coroutines
from pyruntime.stub.link import Link
from pyruntime.utils.channel import HostChannel, StubChannel
from pyruntime.utils.messages import PROTOCOL_VERSION, Answer, Hello, Infer, Load, Ready
from tests.patience import PATIENCE_S


class Bench:
    """Coroutines over a link. A message wakes the future of the coroutine that awaits it, or is work."""

    def __init__(self, reads=True):
        self._ours, self._theirs = socket.socketpair()
        self._channel = HostChannel()
        self.work = []
        self.loops = []
        self.awaited = {}
        stub = StubChannel()
        self.link = Link(self._theirs, stub, self._handle)
        self.coroutines = Coroutines(self.link, reads, self.loops.append)
        self.link.send(Hello(PROTOCOL_VERSION, 1, "3"))
        self._channel.receive_data(self._ours.recv(1 << 16))
        stub.receive_data(self._channel.send(Load({}, {}, 1, 1)))
        self.link.send(Ready(False, False))
        self._channel.receive_data(self._ours.recv(1 << 16))

    def _handle(self, message):
        if type(message) is Answer:
            loop, future = self.awaited[message.call]
            loop.call_soon_threadsafe(future.set_result, threading.current_thread())
        else:
            self.work.append(message)
            self.coroutines.work_arrived()

    def answer(self, call):
        """A future that is done when the host has answered this call."""
        loop = asyncio.get_running_loop()
        self.awaited[call] = (loop, loop.create_future())
        return self.awaited[call][1]

    def say(self, *messages):
        self._ours.sendall(b"".join(map(self._channel.send, messages)))

    def wait(self):
        return self.coroutines.wait(lambda: self.work)

    def hang_up(self):
        self._ours.close()

    def close(self):
        self._ours.close()
        self.coroutines.close()
        self._theirs.close()


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()


def infer(number=1):
    return Infer(number, [], [])


class TestRun:
    def test_to_its_end(self, bench):
        """A coroutine is run to its end, and its result is the result."""

        async def coroutine():
            await asyncio.sleep(0)
            return 7

        assert bench.coroutines.run(coroutine()) == 7

    def test_raises(self, bench):
        """`run` raises the coroutine's exception."""

        async def coroutine():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            bench.coroutines.run(coroutine())

    def test_on_one_loop(self, bench):
        """Coroutines use the same loop each time, which is made for the first one and announced then."""

        async def coroutine():
            return asyncio.get_running_loop()

        assert bench.loops == []
        first, second = bench.coroutines.run(coroutine()), bench.coroutines.run(coroutine())
        assert first is second
        assert bench.loops == [first]

    def test_reads_what_it_awaits(self, bench):
        """An answer reaches the coroutine without another thread."""

        async def coroutine():
            future = bench.answer(1)
            bench.say(Answer(1, None, True))
            return await future

        assert bench.coroutines.run(coroutine()) is threading.current_thread()

    def test_beside_work_that_arrives(self, bench):
        """Work that arrives meanwhile is there afterwards."""

        async def coroutine():
            future = bench.answer(1)
            bench.say(infer(), Answer(1, None, True))
            await future

        bench.coroutines.run(coroutine())
        assert bench.work == [infer()]
        assert bench.wait()


class TestBackground:
    def test_goes_on_while_work_is_awaited(self, bench):
        """A background coroutine goes on while the thread waits for work."""
        done = []

        async def coroutine():
            for number in range(3):
                await asyncio.sleep(0)
                done.append(number)
            bench.say(infer())

        bench.coroutines.run_in_background(coroutine())
        assert done == []
        assert bench.wait()
        assert done == [0, 1, 2]
        assert bench.work == [infer()]

    def test_awaits_an_answer(self, bench):
        """Its answers are read by the loop, too."""
        done = []

        async def coroutine():
            done.append(await bench.answer(1))
            bench.say(infer())

        bench.coroutines.run_in_background(coroutine())

        async def later():
            await asyncio.sleep(0)
            bench.say(Answer(1, None, True))

        bench.coroutines.run_in_background(later())
        assert bench.wait()
        assert done == [threading.current_thread()]

    def test_many(self, bench):
        """Background coroutines go on concurrently, also while another coroutine is run."""
        done = []

        async def coroutine(number):
            await asyncio.sleep(0)
            done.append(number)

        async def other():
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            bench.say(infer())

        for number in range(3):
            bench.coroutines.run_in_background(coroutine(number))
        bench.coroutines.run(other())
        assert done == [0, 1, 2]
        assert bench.wait()

    def test_tasks_that_others_have_made(self, bench):
        """A task that a coroutine has left behind goes on as well."""
        done = []

        async def task():
            await asyncio.sleep(0)
            done.append(1)
            bench.say(infer())

        async def coroutine():
            bench.task = asyncio.get_running_loop().create_task(task())

        bench.coroutines.run(coroutine())
        assert bench.wait()
        assert done == [1]

    def test_when_none_is_left(self, bench):
        """When nothing is left to be done the thread reads by itself."""

        async def coroutine():
            pass

        bench.coroutines.run(coroutine())
        bench.say(infer())
        assert bench.wait()
        assert bench.work == [infer()]


class TestWait:
    def test_without_a_loop(self, bench):
        """Without coroutines there is no loop."""
        bench.say(infer())
        assert bench.wait()
        assert bench.loops == []

    def test_for_what_is_there(self, bench):
        """Work that is there is not waited for."""

        async def coroutine():
            await asyncio.Event().wait()

        bench.coroutines.run_in_background(coroutine())
        bench.work.append(infer())
        assert bench.wait()
        bench.coroutines._loop.run_until_complete(self.end(bench))

    async def end(self, bench):
        for task in list(bench.coroutines._background):
            task.cancel()

    @pytest.mark.parametrize("in_background", [False, True])
    def test_the_host_hangs_up(self, bench, in_background):
        """The end of the link is noticed, whether the loop or the thread reads."""

        async def coroutine():
            await asyncio.Event().wait()

        if in_background:
            bench.coroutines.run_in_background(coroutine())
        bench.hang_up()
        assert not bench.wait()
        if in_background:
            bench.coroutines._loop.run_until_complete(self.end(bench))

    def test_another_thread_reads(self, bench):
        """Work that another thread has read wakes the loop."""

        async def coroutine():
            await asyncio.Event().wait()

        bench.coroutines.run_in_background(coroutine())
        thread = threading.Thread(target=lambda: bench.link.wait(lambda: len(bench.work) == 50), daemon=True)
        thread.start()
        for number in range(1, 51):
            bench.say(infer(number))
            assert bench.coroutines.wait(lambda number=number: len(bench.work) >= number)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        bench.coroutines._loop.run_until_complete(self.end(bench))

    def test_at_the_wrong_moment(self, bench):
        """Work that arrives between a look and the waiting is not missed."""

        async def coroutine():
            await asyncio.Event().wait()

        def look():
            if not looks:
                looks.append(1)
                bench.work.append(infer())
                bench.coroutines.work_arrived()
                return False
            return bench.work

        looks = []
        bench.coroutines.run_in_background(coroutine())
        assert bench.coroutines.wait(look)
        bench.coroutines._loop.run_until_complete(self.end(bench))

    def test_told_by_another_thread(self, bench):
        """Work from another thread ends the wait as well."""

        async def coroutine():
            await asyncio.Event().wait()

        bench.coroutines.run_in_background(coroutine())
        looked = threading.Event()

        def bring():
            assert looked.wait(PATIENCE_S)
            bench.work.append(infer())
            bench.coroutines.work_arrived()

        def look():
            looked.set()
            return bench.work

        thread = threading.Thread(target=bring, daemon=True)
        thread.start()
        assert bench.coroutines.wait(look)
        thread.join(PATIENCE_S)
        bench.coroutines._loop.run_until_complete(self.end(bench))


class TestWithoutReading:
    """Of one of several threads, whose loop leaves the link to others."""

    def test_leaves_the_link_alone(self):
        """Without `reads`, the coroutine's loop does not read the link and is not announced."""
        bench = Bench(reads=False)

        async def coroutine():
            future = bench.answer(1)
            reader = threading.Thread(target=lambda: bench.link.wait(lambda: bench.work), daemon=True, name="reader")
            reader.start()
            bench.say(Answer(1, None, True), infer())
            thread = await future
            reader.join(PATIENCE_S)
            return thread.name

        assert bench.coroutines.run(coroutine()) == "reader"
        assert bench.loops == []
        assert not bench.coroutines.reads
        bench.close()


def test_close():
    """The loop ends with its thread."""
    bench = Bench()

    async def coroutine():
        return asyncio.get_running_loop()

    loop = bench.coroutines.run(coroutine())
    bench.close()
    assert loop.is_closed()
    Bench().close()

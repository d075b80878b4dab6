# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a connection asks of a stub, and its end."""

import asyncio
from types import SimpleNamespace

import pytest

from pyruntime.runtime.instances.stub.connection import DROPPED_CHARS_MAX, DROPPED_MAX, StubConnection, portions
from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.utils.channel import State
from pyruntime.utils.errors import LoadError
from pyruntime.utils.messages import Stop

from .far_end import Socket


def test_portions():
    """Ids of sequences go in portions by their number and by their length; one that is too long goes alone."""
    assert list(portions([])) == []
    assert list(portions([1, "two"])) == [[1, "two"]]
    many = list(range(2 * DROPPED_MAX + 1))
    assert [len(each) for each in portions(many)] == [DROPPED_MAX, DROPPED_MAX, 1]
    half, long = "x" * (DROPPED_CHARS_MAX // 2), "x" * (2 * DROPPED_CHARS_MAX)
    assert list(portions([long, half, half, 1, long])) == [[long], [half, half], [1], [long]]


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


def test_load_of_a_stub_that_has_hung_up(requests):
    """A stub that breaks the protocol, or dies, after its Hello fails the load like one that dies later."""

    async def act():
        connection = StubConnection("m_0", requests)
        exited = asyncio.get_running_loop().create_future()
        connection._process = SimpleNamespace(exited=exited, kill=lambda why: exited.set_result(ProcessExit(-9)))
        connection.link._sock = Socket()
        connection.link.connection_made(SimpleNamespace(abort=lambda: None, write=None))
        exited.add_done_callback(lambda _: connection._replies.put_nowait(None))
        connection.link.data_received(b"\xc1")
        assert connection.link.state is State.CLOSED
        if not exited.done():
            connection.kill("a test")
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

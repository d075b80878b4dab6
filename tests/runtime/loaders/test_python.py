# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How long a load waits for what its stubs need, and how it ends them."""

import asyncio

import pytest

from pyruntime.runtime.loaders import python
from pyruntime.runtime.loaders.python import LAUNCH_S_MAX, _kill, _patiently
from pyruntime.utils.errors import Code, LaunchError, LoadError, OutOfMemoryError


class Clock:
    """Time that passes while the load sleeps."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        self.waits = []
        monkeypatch.setattr(python.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(python.asyncio, "sleep", self._sleep)

    async def _sleep(self, delay_s):
        self.waits.append(delay_s)
        self.now += delay_s


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def step(*failures):
    """A step that fails so often."""
    left = list(failures)

    async def attempt():
        if left:
            raise left.pop(0)
        return "made"

    return attempt


def test_waits(clock):
    """Whatever is lacking, the step is repeated, each time after twice the wait."""
    failures = [LaunchError("no descriptors"), OutOfMemoryError("no memory"), LaunchError("no descriptors")]
    assert asyncio.run(_patiently(step(*failures))) == "made"
    assert clock.waits == [0.1, 0.2, 0.4]


def test_gives_up(clock):
    """After the limit the load fails with the last reason, and what an operator can do."""
    with pytest.raises(LoadError, match=r"^no descriptors. The server tried for 15 s. Close connections") as caught:
        asyncio.run(_patiently(step(*[LaunchError("no descriptors")] * 100)))
    assert caught.value.code is Code.UNAVAILABLE
    assert type(caught.value) is LoadError
    assert sum(clock.waits) <= LAUNCH_S_MAX


def test_hopeless(clock):
    """A step that cannot succeed is not tried again: the load fails with the reason."""
    reasons = ["", "it needs more than there is"]
    with pytest.raises(LoadError, match=r"^it needs more than there is$") as caught:
        asyncio.run(_patiently(step(*[LaunchError("no descriptors")] * 3), lambda: reasons.pop(0)))
    assert caught.value.code is Code.UNAVAILABLE
    assert clock.waits == [0.1]


def test_other_failures(clock):
    """A model that is to blame is not tried again."""
    with pytest.raises(LoadError, match=r"^ValueError: no$"):
        asyncio.run(_patiently(step(LoadError("ValueError: no"))))
    assert clock.waits == []


class Connection:
    """A stub that was started, and does not end."""

    def __init__(self):
        self.is_killed = self.is_cancelled = False

    def kill(self, why):
        self.is_killed = True

    async def wait_exited(self):
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


def test_cancelled_while_stubs_are_killed():
    """A load that is cancelled again while it undoes itself tells all its stubs, which then free their memory."""

    async def cancelled():
        connections = {"m_0": Connection(), "m_1": Connection()}
        killing = asyncio.create_task(_kill(connections))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        return connections.values()

    for connection in asyncio.run(cancelled()):
        assert connection.is_killed
        assert connection.is_cancelled

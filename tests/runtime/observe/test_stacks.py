# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stacks for the page, with stubs of straw; tests/e2e/test_watch.py has real ones."""

import asyncio
import os
import threading

import pytest

from pyruntime.runtime.observe import stacks
from pyruntime.runtime.observe.stacks import STACKS_CHARS_MAX, OwnStacks, Stacks
from pyruntime.runtime.observe.stubs import is_below
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.stacks import Heading


class Stub:
    by_signal = False
    problem = ""

    def __init__(self, pid, model, instance="m_0"):
        self.pid = pid
        self.heading = Heading(pid, "", model, "1", instance)
        self.stacks = ""


@pytest.fixture
def stubs(monkeypatch):
    """The stubs that are found; they answer when they are asked."""
    found = []

    def ask(chosen):
        for stub in chosen:
            stub.stacks = f"Thread of {stub.heading.instance}" * 30000

    monkeypatch.setattr(stacks, "find_stubs", lambda resources: found)
    monkeypatch.setattr(stacks, "ask_for_stacks", ask)
    return found


def test_own_stubs_only(stubs):
    """Stubs of another model, and of another server, are not asked."""
    stubs += [Stub(os.getpid(), "m"), Stub(os.getpid(), "other"), Stub(os.getppid(), "m", "theirs")]
    (found,) = asyncio.run(OwnStacks().read("m"))
    assert found[:5] == Stacks("m_0", "1", os.getpid(), by_signal=False, problem="", text="")[:5]
    assert len(found.text) == STACKS_CHARS_MAX
    assert stubs[2].stacks == ""
    assert asyncio.run(OwnStacks().read("nobody")) == []


def test_one_at_a_time(monkeypatch):
    """A second client is refused until the first has its answer."""
    begun, go_on = threading.Event(), threading.Event()

    def read(model):
        begun.set()
        assert go_on.wait(60)
        return []

    monkeypatch.setattr(stacks, "_read", read)

    async def main():
        own = OwnStacks()
        first = asyncio.create_task(own.read("m"))
        await asyncio.to_thread(begun.wait)
        with pytest.raises(InferenceError) as caught:
            await own.read("m")
        assert caught.value.code is Code.UNAVAILABLE
        go_on.set()
        assert await first == []
        assert await own.read("m") == []

    asyncio.run(main())


def test_descent():
    """A process is below itself and its ancestors; one that does not exist is below nothing."""
    assert is_below(os.getpid(), os.getpid())
    assert is_below(os.getpid(), os.getppid())
    assert not is_below(os.getppid(), os.getpid())
    assert not is_below(1 << 30, os.getpid())

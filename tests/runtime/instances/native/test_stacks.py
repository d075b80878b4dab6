# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The side of `pyruntime stack` that is in a server; tests/e2e/test_native_lifecycle.py has the command."""

import asyncio
import os
from pathlib import Path

import pytest

from pyruntime.runtime.instances.native.stacks import NativeStacks, describe
from pyruntime.utils.stacks import END, LINK, decode_heading


def links():
    """The open descriptors of this process."""
    found = list(Path("/proc/self/fd").iterdir())
    return [entry for entry in found if entry.is_symlink()]  # but for the folder itself


class Asking:
    """Asks all instances of this process for stacks, as the command does."""

    def files(self):
        """The files, by instance: (path, heading, what follows it)."""
        found = {}
        for entry in links():
            if os.readlink(entry) == LINK:
                line, end, rest = entry.read_bytes().partition(b"\n")
                heading = decode_heading(line + end)
                found[heading.instance] = (entry, heading, rest)
        return found

    def empty(self, instance):
        """Forget what an instance has said."""
        entry, *_ = self.files()[instance]
        os.truncate(entry, entry.read_bytes().index(b"\n") + 1)

    async def ring(self):
        """Ring, and wait until the bell was heard."""
        bell = next(iter(self.files().values()))[1].bell
        with next(entry for entry in links() if os.readlink(entry) == bell).open("wb", buffering=0) as pipe:
            pipe.write(b"?")
        for _ in range(3):
            await asyncio.sleep(0)

    def said(self):
        """The answers of the instances."""
        return {instance: rest for instance, (_, _, rest) in self.files().items()}


@pytest.fixture
def run():
    """`run(test)`: run a coroutine function with NativeStacks and an Asking."""

    def run(test):
        async def main():
            stacks = NativeStacks()
            try:
                await test(stacks, Asking())
            finally:
                stacks.close()
            assert Asking().files() == {}

        asyncio.run(main())

    return run


def test_instances(run):
    """Each instance has a heading, and answers with its stack: once, and again after its file was emptied."""

    async def test(stacks, asking):
        said = ["first", "second", "third"]
        stacks.open("m", 3, "m_0", lambda: said.pop(0))
        stacks.open("m", 3, "m_1", lambda: "\udcff")
        _, heading, rest = asking.files()["m_0"]
        assert (heading.pid, heading.model, heading.version, heading.instance) == (os.getpid(), "m", "3", "m_0")
        assert rest == b""
        await asking.ring()
        await asking.ring()
        assert asking.said() == {"m_0": b"first" + END, "m_1": b"\\udcff" + END}
        asking.empty("m_0")
        await asking.ring()
        assert asking.said()["m_0"] == b"second" + END

    run(test)


def test_closed(run):
    """A closed instance is not found; closing it twice has no further effect."""

    async def test(stacks, asking):
        closes = [stacks.open("m", 1, name, str) for name in ("a", "b")]
        closes[0]()
        closes[0]()
        assert list(asking.files()) == ["b"]

    run(test)


def test_not_permitted(run, monkeypatch, caplog):
    """Where there is no such file the instance runs all the same."""

    def refuse(name):
        raise OSError(38, "Function not implemented")

    async def test(stacks, asking):
        monkeypatch.setattr(os, "memfd_create", refuse)
        stacks.open("m", 1, "m_0", str)()
        assert asking.files() == {}
        assert caplog.messages == ["`pyruntime stack` will not find m_0: Function not implemented"]

    run(test)


class Job:
    """One that an instance was given."""

    def __init__(self, serial):
        self.serial = serial


def test_what_it_does():
    """The batch that was given first is the one that is executed; those jobs count that are not over."""
    jobs = {Job(4): 1_000_000_000, Job(5): 1_000_000_000, Job(6): 3_000_000_000}
    now = 3_500_000_000
    assert describe([], {}, now) == "executes nothing; 0 requests are not done with"
    assert describe([], jobs, now) == "executes nothing; 3 requests are not done with"
    assert describe({4: 2, 6: 1}, jobs, now) == "executes a batch, which it was given 2.500 s ago; 1 wait behind it"
    assert describe([3], jobs, now) == "executes a batch; 0 wait behind it"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An environment is made once, by one of several callers; an unfinished one is never used."""

import asyncio
import fcntl
import logging
import os
import sys
from pathlib import Path

import pytest

from pyruntime.runtime.environments import cache
from pyruntime.runtime.environments.cache import cache_root, cached
from pyruntime.utils.errors import LoadError

LABEL = "the environment of 'x'"


async def make_file(folder, lock):
    """Make an environment of one file."""
    _make_file(folder)


def _make_file(folder):
    Path(folder).mkdir()
    Path(folder, "file").touch()


async def unexpected(folder, lock):
    pytest.fail("made again")


async def fail_halfway(folder, lock):
    await make_file(folder, lock)
    raise LoadError("no more")


@pytest.fixture
def root(tmp_path):
    """A cache that does not exist yet."""
    return str(tmp_path / "cache" / "environments")


def make(root, how=make_file, key="key"):
    return asyncio.run(cached(root, key, LABEL, how))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/pyruntime/environments"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/pyruntime/environments"),
        ({}, "/home/me/.cache/pyruntime/environments"),
    ],
)
def test_root(monkeypatch, variables, expected):
    """The cache is where the user's caches are."""
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_root(variables) == expected


def test_no_home(monkeypatch):
    """The error for a user without a home folder names the variable to set."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(LoadError, match="set XDG_CACHE_HOME"):
        cache_root({})


def test_made_once(root):
    """A folder is made once, and only its user can change it."""
    folder = make(root)
    assert make(root, unexpected) == folder == f"{root}/key"
    assert make(root, key="other") == f"{root}/other"
    assert os.stat(root).st_mode & 0o777 == 0o700


def test_failure_leaves_nothing(root):
    """A failed folder is removed, and the next caller tries again."""
    with pytest.raises(LoadError, match="no more"):
        make(root, fail_halfway)
    assert os.listdir(root) == ["key.lock"]
    make(root)


def test_cancelling_leaves_nothing(root):
    """A cancelled build leaves no folder behind."""

    async def cancel_halfway():
        halfway = asyncio.Event()

        async def wait_halfway(folder, lock):
            await make_file(folder, lock)
            halfway.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(cached(root, "key", LABEL, wait_halfway))
        await halfway.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_halfway())
    assert os.listdir(root) == ["key.lock"]


def test_unfinished_work_is_removed(root):
    """A folder without its mark, from a killed server, is removed, and so is a mark without its folder."""
    os.makedirs(f"{root}/key/left/over")
    folder = make(root)
    assert os.listdir(folder) == ["file"]
    os.rename(folder, f"{root}/elsewhere")
    with pytest.raises(LoadError, match="no more"):
        make(root, fail_halfway)
    make(root)
    make(root, unexpected)


def test_many_at_once(root):
    """Of many that want the same at once one makes it, and all have it."""
    made = []

    async def make_slowly(folder, lock):
        made.append(folder)
        await asyncio.sleep(0)
        await make_file(folder, lock)

    async def want():
        return await asyncio.gather(*(cached(root, "key", LABEL, make_slowly) for _ in range(5)))

    assert asyncio.run(want()) == [f"{root}/key"] * 5
    assert len(made) == 1


class Heard(logging.Handler):
    """Sets an event as soon as something is logged that contains a text."""

    def __init__(self, text):
        super().__init__()
        self.text = text
        self.event = asyncio.Event()

    def emit(self, record):
        if self.text in record.getMessage():
            self.event.set()


# Takes the lock, says so, and holds it for as long as its input is open.
HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)


@pytest.mark.processes
def test_another_process(root):
    """While another process makes it, one waits, and says so."""

    async def want_what_another_makes():
        os.makedirs(root)
        heard = Heard("waiting for another process that makes the environment of 'x'")
        logger = logging.getLogger("pyruntime.environments")
        logger.addHandler(heard)
        level = logger.level
        logger.setLevel(logging.INFO)
        command = [sys.executable, "-c", HOLD, f"{root}/key.lock"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            await process.stdout.readline()
            task = asyncio.create_task(cached(root, "key", LABEL, make_file))
            await heard.event.wait()
            assert os.listdir(root) == ["key.lock"]
            await process.communicate(b"")
            await task
        finally:
            logger.removeHandler(heard)
            logger.setLevel(level)

    asyncio.run(want_what_another_makes())
    make(root, unexpected)


def test_lock_goes_with_what_is_run(root):
    """A program that inherits the lock holds it, even after its parent has ended."""
    kept = []

    async def keep_lock(folder, lock):
        await make_file(folder, lock)
        kept.append(os.dup(lock))

    make(root, keep_lock)
    with open(kept[0], "wb"), open(f"{root}/key.lock", "w") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_waiting_has_an_end(root, monkeypatch):
    """A lock that is held too long is an error with the file that its owner holds."""
    monkeypatch.setattr(cache, "LOCK_S", 0.001)
    os.makedirs(root)
    with open(f"{root}/key.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LoadError, match=r"being made by another process since 0\.001 s; it holds '.*key\.lock'"):
            make(root)


def test_root_that_others_write_to(root):
    """Programs from a folder that anybody may write to are not run."""
    os.makedirs(root)
    os.chmod(root, 0o777)
    with pytest.raises(LoadError, match="other users may write to it; XDG_CACHE_HOME can name another"):
        make(root)


def test_no_room(root, tmp_path):
    """Where nothing can be written the error says where that was, and how to choose another place."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(LoadError, match=r"cannot be made in '.*': Not a directory; XDG_CACHE_HOME can name another"):
        make(root)

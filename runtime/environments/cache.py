# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Environments that were unpacked or built, in the user's cache, each under a name that says what it was made of.

    <root>/<key>/           an environment, made in the place where it is used: many files in one hold its path
    <root>/<key>.complete   written last; without it the folder is somebody's unfinished work
    <root>/<key>.lock       held by whoever makes the folder, and by the programs that do it for him

Any number of servers may share a cache. Nothing is ever removed but what is unfinished: whoever wants the space back
removes the root while no server runs.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.environments")

# How long one waits for another server to make the same environment, in seconds: longer than making it may take.
LOCK_S = 4000.0
# How often one looks whether the lock is free, in seconds. Nobody tells us, for others wait in other processes.
LOCK_POLL_S = 0.1
FOLDER_MODE, FILE_MODE = 0o700, 0o600

Make = Callable[[str, int], Awaitable[None]]


def cache_root(variables: Mapping[str, str]) -> str:
    """The folder of all environments of this user; it need not exist. Raises LoadError where no place is known."""
    base = variables.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # which is to be ignored, says its specification
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise LoadError(
            "environments are unpacked and built in the user's cache, and this user has no home folder:"
            " set XDG_CACHE_HOME to a folder that can be written to"
        )
    return os.path.join(base, "pyruntime", "environments")


def ensure_root(root: str) -> None:
    """Make the root where it is missing. Raises OSError, and LoadError if others could put programs there for us."""
    os.makedirs(root, FOLDER_MODE, exist_ok=True)
    status = os.stat(root)
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise LoadError(
            f"'{root}' is not used for environments because other users may write to it;"
            " XDG_CACHE_HOME can name another folder"
        )


async def cached(root: str, key: str, label: str, make: Make) -> str:
    """The folder of `key`, as `make(folder, lock)` made it, now or earlier. `label` says what it is, for people.

    Programs that `make` runs should inherit the descriptor `lock`, so that nobody else begins before they have ended.
    Raises LoadError. Cancelling it removes what was made so far.
    """
    folder = os.path.join(root, key)
    try:
        ensure_root(root)
        if _is_complete(folder):
            return folder
        async with _lock(f"{folder}.lock", label) as lock:
            if not _is_complete(folder):
                await _make(folder, label, lock, make)
    except OSError as exc:
        raise LoadError(
            f"{label} cannot be made in '{root}': {exc.strerror or exc}; XDG_CACHE_HOME can name another folder"
        ) from exc
    return folder


def _is_complete(folder: str) -> bool:
    return os.path.exists(f"{folder}.complete") and os.path.isdir(folder)


async def _make(folder: str, label: str, lock: int, make: Make) -> None:
    # A folder may be gone while its mark is still there.
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}.complete")
    await asyncio.to_thread(_remove, folder)
    _LOG.info("making %s in %s; this happens once", label, folder)
    try:
        await make(folder, lock)
    except BaseException:
        await asyncio.to_thread(_remove, folder)
        raise
    _mark(f"{folder}.complete", label)


def _remove(folder: str) -> None:
    if os.path.lexists(folder):
        shutil.rmtree(folder)


def _mark(path: str, label: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w") as file:
        file.write(f"{label}\n")


@asynccontextmanager
async def _lock(path: str, label: str) -> AsyncIterator[int]:
    """Hold the lock, a descriptor. Raises LoadError after LOCK_S seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        try:
            async with asyncio.timeout(LOCK_S):
                if not _try_lock(descriptor):
                    _LOG.info("waiting for another process that makes %s", label)
                    while not _try_lock(descriptor):  # noqa: ASYNC110, it is another process that has to end
                        await asyncio.sleep(LOCK_POLL_S)
        except TimeoutError as exc:
            raise LoadError(f"{label} is being made by another process since {LOCK_S:g} s; it holds '{path}'") from exc
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The user's cache of unpacked and built environments; the key of each is a hash of its inputs.

    <root>/<key>/           an environment; it is built in its final place, because many of its files contain its path
    <root>/<key>.complete   written last; without it the folder is incomplete
    <root>/<key>.lock       locked by the server that makes the folder, and by the programs that it runs for this

Any number of servers may share a cache. Only incomplete folders are ever removed. To free the space, remove the root
while no server runs.
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

# The time limit for waiting until another server has made the same environment, in seconds: longer than making one
# may take.
LOCK_S = 4000.0
# The interval at which a waiting server tries the lock, in seconds. flock has no way to wait without blocking a thread.
LOCK_POLL_S = 0.1
FOLDER_MODE, FILE_MODE = 0o700, 0o600

Make = Callable[[str, int], Awaitable[None]]


def cache_root(variables: Mapping[str, str]) -> str:
    """The folder of all environments of this user; it may not exist yet. Raises LoadError if the user has no home."""
    base = variables.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore a relative path
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        raise LoadError(
            "environments are unpacked and built in the user's cache, and this user has no home folder:"
            " set XDG_CACHE_HOME to a folder that can be written to"
        )
    return os.path.join(base, "pyruntime", "environments")


def ensure_root(root: str) -> None:
    """Create the root if it is missing. Raises OSError, and LoadError if other users could place programs there."""
    os.makedirs(root, FOLDER_MODE, exist_ok=True)
    status = os.stat(root)
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise LoadError(
            f"'{root}' is not used for environments because other users may write to it;"
            " XDG_CACHE_HOME can name another folder"
        )


async def cached(root: str, key: str, label: str, make: Make) -> str:
    """Return the folder of `key`; if the cache lacks it, `make(folder, lock)` makes it. `label` names it in messages.

    Programs that `make` runs should inherit the descriptor `lock`: the lock then lasts until they have ended, even if
    this server is killed. Raises LoadError. Cancelling removes the unfinished folder.
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
    # A user may have removed the folder and left the mark.
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
    """Hold the lock; yields its descriptor. Raises LoadError after LOCK_S seconds."""
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

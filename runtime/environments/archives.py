# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Unpacks archives made by conda-pack: once per content, for all models and servers of a user."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pyruntime.runtime.environments.cache import cached, ensure_root
from pyruntime.runtime.environments.commands import run
from pyruntime.runtime.environments.environment import Place
from pyruntime.runtime.environments.recipe import digest
from pyruntime.utils.errors import LoadError

# The time limit for unpacking, and again for conda-unpack, in seconds: archives have gigabytes in 100,000 files.
UNPACK_S = 1800.0
READ_BYTES = 8 << 20

Check = Callable[[str], Awaitable[object]]


async def unpack_archive(root: str, path: str, check: Check) -> str:
    """Unpack an archive unless the cache has it, and return its folder. Raises LoadError.

    `check` raises LoadError for a folder that is no environment for a model: it is removed. Cancelling removes the
    unfinished folder.
    """
    label = f"the environment of '{path}'"
    variables = Place("/").variables(os.environ)
    try:
        ensure_root(root)
        key = digest("archive", await _content(root, path))
    except OSError as exc:
        raise LoadError(f"{label} cannot be read: {exc.strerror or exc}") from exc

    async def make(folder: str, lock: int) -> None:
        command = [sys.executable, "-P", "-m", "pyruntime.runtime.environments.unpack", path, folder]
        await run(command, f"unpacking '{path}'", UNPACK_S, variables, "/", [lock])
        python, script = f"{folder}/bin/python", f"{folder}/bin/conda-unpack"
        if _exists(script):
            # The first line of the script names the first Python on PATH, so run it with the environment's own Python.
            inside = Place(python, folder).variables(os.environ)
            await run([python, script], f"conda-unpack of {label}", UNPACK_S, inside, folder, [lock])
        await check(folder)

    return await cached(root, key, label, make)


async def _content(root: str, path: str) -> str:
    """The hash of a file, cached until the file changes. Raises OSError, and LoadError if it changes meanwhile."""
    before = _touched(path)
    memory = os.path.join(root, digest("read", before))
    known = _remembered(memory)
    if known:
        return known
    content = hashlib.sha256()
    with await asyncio.to_thread(open, path, "rb", 0) as file:
        # In pieces, so that the load can be cancelled in between.
        while data := await asyncio.to_thread(file.read, READ_BYTES):
            await asyncio.to_thread(content.update, data)
    if _touched(path) != before:
        raise LoadError(f"'{path}' was written to while it was read")
    _remember(memory, content.hexdigest())
    return content.hexdigest()


def _touched(path: str) -> tuple[str, list[int]]:
    """The identity of a file, and the attributes that change with each write."""
    status = os.stat(path)
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return os.path.realpath(path), [status.st_dev, status.st_ino, status.st_size, *times]


def _remembered(memory: str) -> str:
    if not os.path.exists(memory):
        return ""
    with open(memory) as file:
        known = file.read()
    return known if re.fullmatch("[0-9a-f]{64}", known) else ""


def _remember(memory: str, content: str) -> None:
    with suppress(OSError), open(memory, "w") as file:  # a cache that an administrator has filled may be read-only
        file.write(content)


def _exists(path: str) -> bool:
    return os.path.exists(path)

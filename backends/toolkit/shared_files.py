# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A file in the temporary folder that the first of several processes writes, and the last one removes.

The file lies in a folder of its own, whose name tells what it is made of. Each process has a shared lock on the folder
as long as it uses the file; an exclusive one is needed to remove it. Who writes the file locks another one in it. The
kernel ends the locks of a process that was killed. A folder that is left then is used again, or removed when the next
one is made.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from typing import Callable, Iterable

# Weights of fewer bytes are not worth a file: each process has a copy.
SHARED_BYTES_MIN = 64 << 20
_LOCK = "lock"

# Writes the file to this path, and may write others beside it.
Write = Callable[[str], None]


class SharedFile:
    """The file in `path`. Must be closed."""

    def __init__(self, path: str, descriptor: int) -> None:
        """`descriptor` is that of the folder, with a shared lock."""
        self.path = path
        self._descriptor = descriptor

    def close(self) -> None:
        """Remove the folder if this was its last user. Mappings of its files stay valid."""
        # Before the attempt to remove it, so that of several users that end at once the last one can.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        _remove_unused(self.path, self._descriptor)
        os.close(self._descriptor)


def share_file(start: str, name: str, identity: Iterable[str], size: int, write: Write) -> SharedFile:
    """The file `name` that all processes have which call this with the same `identity`.

    `start` is how the names of the folders begin whose file has this name. Calls `write` in the first of the processes,
    while the others wait. It needs up to `size` bytes. Raises OSError, also if there is not enough space, and what
    `write` raises.
    """
    start = os.path.join(tempfile.gettempdir(), f"{start}-{os.getuid()}-")
    folder = start + hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    shared = SharedFile(os.path.join(folder, name), _lock(folder))
    try:
        with open(os.path.join(folder, _LOCK), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(shared.path):
                _remove_others(start, folder, name)
                _check_space(folder, size)
                _write(shared.path, write)
    except BaseException:
        shared.close()
        raise
    return shared


def identity_of(path: str) -> str:
    """A file as it is now, for `share_file`: written to, or replaced, it has another one. Raises OSError."""
    path = os.path.realpath(path)
    status = os.stat(path)
    return f"{path} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _lock(folder: str) -> int:
    """The descriptor of the folder, which is made if need be, with a shared lock. Raises OSError."""
    while True:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid() or status.st_mode & 0o077:  # whoever made it could change the weights
                os.close(descriptor)
                raise PermissionError(f"'{folder}' belongs to another user, or others may use it")
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _is_current(folder, descriptor):
                return descriptor
            os.close(descriptor)


def _is_current(folder: str, descriptor: int) -> bool:
    """Whether the folder has not been removed since its descriptor was opened."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _check_space(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed} bytes are needed and {free} are free below {tempfile.gettempdir()}")


def _write(path: str, write: Write) -> None:
    """Write the file so that it is there completely or not at all, also if this process is killed meanwhile."""
    folder, name = os.path.split(path)
    for each in {*os.listdir(folder)} - {_LOCK}:
        os.unlink(os.path.join(folder, each))
    made = os.path.join(folder, f"unfinished{os.path.splitext(name)[1]}")
    write(made)
    os.rename(made, path)


def _remove_others(start: str, own: str, name: str) -> None:
    """Remove folders that no process has locked."""
    for folder in glob.glob(glob.escape(start) + "*"):
        if folder != own:
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    _remove_unused(os.path.join(folder, name), descriptor)
                finally:
                    os.close(descriptor)


def _remove_unused(path: str, descriptor: int) -> None:
    folder = os.path.dirname(path)
    with suppress(OSError):  # another process has locked it, or removed it
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_current(folder, descriptor):
            with suppress(FileNotFoundError):  # first, because what is left counts as complete with it
                os.unlink(path)
            shutil.rmtree(folder)

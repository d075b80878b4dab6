# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Lets the instances of a model have its weights in memory once.

ONNX Runtime maps external data, but then rearranges most weights for its kernels: a private copy in each process. It
can also write the rearranged weights to a file, and map them from there. So the first instance writes a model with such
a file to a temporary folder, and all instances open that one. It is for this version of ONNX Runtime and for this kind
of processor, and so goes with the last instance.

Each instance has a shared lock on the folder as long as it lives; an exclusive one is needed to remove it. Who writes
the model locks a file in it. The kernel ends the locks of a process that was killed. A folder that is left then is used
again, or removed when the next one is made.
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
from typing import Callable, List, Sequence

from pyruntime.backends.onnxruntime.contents import read_contents

# A model whose files are smaller is not worth a second one.
SHARED_BYTES_MIN = 64 << 20
# The free space that the temporary folder must have, in sizes of the model: it gets the weights twice, as they were
# and rearranged.
_SPACE = 3
_PREFIX = "pyruntime-onnxruntime"
# Describes each core of the processor, and the fields, on x86 and on ARM, by which ONNX Runtime can choose its kernels.
_PROCESSOR = "/proc/cpuinfo"
_KIND_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features")

# Writes the model, as ONNX Runtime has prepared it, to this path, and its weights to WEIGHTS beside it.
Write = Callable[[str], None]
MODEL, WEIGHTS = "model.onnx", "weights.bin"
_LOCK = "lock"


class SharedModel:
    """The folder with the rearranged model in `path`. Must be closed."""

    def __init__(self, folder: str, descriptor: int) -> None:
        self.path = os.path.join(folder, MODEL)
        self._folder = folder
        self._descriptor = descriptor

    def close(self) -> None:
        """Remove the folder if this was its last user. Mappings of its files stay valid."""
        # Before the attempt to remove it, so that of several users that end at once the last one can.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        _remove_unused(self._folder, self._descriptor)
        os.close(self._descriptor)


def weight_bytes(path: str) -> int:
    """The size of a model file together with its external data. Raises OSError and ValueError."""
    return sum(map(os.path.getsize, _files(path)))


def share(path: str, libraries: Sequence[str], made_by: str, write: Write) -> SharedModel:
    """The rearranged model of the one in `path`, for all instances that have the same arguments and files.

    `libraries` are those of its operations, and `made_by` is what else its preparation depends on. Calls `write` in the
    first of the instances, while the others wait. Raises OSError, also if there is not enough space, ValueError, and
    what `write` raises.
    """
    files = _files(path)
    used = [(os.path.realpath(each), os.stat(each)) for each in [*files, *libraries]]
    identity = [
        made_by,
        *_processor(),
        *(f"{name} {each.st_ino} {each.st_size} {each.st_mtime_ns}" for name, each in used),
    ]
    key = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    start = os.path.join(tempfile.gettempdir(), f"{_PREFIX}-{os.getuid()}-")
    folder = start + key
    shared = SharedModel(folder, _lock(folder))
    try:
        with open(os.path.join(folder, _LOCK), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(shared.path):
                _remove_others(start, folder)
                _check_space(folder, _SPACE * sum(map(os.path.getsize, files)))
                _write(folder, write)
    except BaseException:
        shared.close()
        raise
    return shared


def _processor() -> List[str]:
    """What the processor can do. Raises OSError."""
    with open(_PROCESSOR, encoding="utf-8", errors="replace") as file:
        return sorted({line for line in file if line.startswith(_KIND_FIELDS)})


def _files(path: str) -> List[str]:
    folder = os.path.dirname(path)
    return [path, *(os.path.join(folder, each) for each in sorted(read_contents(path).companions))]


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


def _write(folder: str, write: Write) -> None:
    """Write the model so that it is there completely or not at all, also if this process is killed meanwhile."""
    for name in {*os.listdir(folder)} - {_LOCK}:
        os.unlink(os.path.join(folder, name))
    made = os.path.join(folder, "unfinished.onnx")
    write(made)
    os.rename(made, os.path.join(folder, MODEL))


def _remove_others(start: str, own: str) -> None:
    """Remove folders that no process has locked."""
    for folder in glob.glob(glob.escape(start) + "*"):
        if folder != own:
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    _remove_unused(folder, descriptor)
                finally:
                    os.close(descriptor)


def _remove_unused(folder: str, descriptor: int) -> None:
    with suppress(OSError):  # another process has locked it, or removed it
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_current(folder, descriptor):
            with suppress(FileNotFoundError):  # first, because what is left counts as complete with it
                os.unlink(os.path.join(folder, MODEL))
            shutil.rmtree(folder)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Unpacks an archive in a process of its own: `python -m pyruntime.runtime.environments.unpack ARCHIVE FOLDER`.

A large archive takes minutes, and a process can be killed at any time. If the archive cannot be unpacked, it prints one
sentence and exits with 1. The caller removes the incomplete folder.
"""

from __future__ import annotations

import io
import lzma
import os
import shutil
import sys
import tarfile
import zlib

from pyruntime.runtime.environments.members import Kind, Members
from pyruntime.utils.errors import LoadError

COPY_BYTES = 1 << 20
FOLDER_MODE = 0o755
# A file keeps of its mode only whether it is executable. So its owner can always read, write and remove it.
FILE_MODE, EXECUTABLE_MODE = 0o644, 0o755


def unpack(archive: str, folder: str, members: Members) -> None:
    """Unpack into `folder`, which must not exist. Raises OSError, and LoadError for invalid or unsafe archives."""
    os.mkdir(folder, FOLDER_MODE)
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                path = members.admit(member.name, _kind(member), member.linkname, member.size)
                _write(tar, member, folder, path)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError) as exc:
        raise LoadError(f"it is damaged or no such archive: {exc}") from exc


def _kind(member: tarfile.TarInfo) -> Kind:
    if member.isdir():
        return Kind.FOLDER
    if member.issym():
        return Kind.LINK
    if member.islnk():
        return Kind.HARD_LINK
    return Kind.FILE if member.isreg() else Kind.OTHER


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: str, path: str) -> None:
    """Write one admitted member. Never writes to an existing file."""
    target = os.path.join(folder, path) if path else folder
    os.makedirs(target if member.isdir() else os.path.dirname(target), FOLDER_MODE, exist_ok=True)
    if member.isdir():
        return
    if member.issym():
        os.symlink(member.linkname, target)
    elif member.islnk():
        os.link(os.path.join(folder, os.path.normpath(member.linkname)), target, follow_symlinks=False)
    else:
        source = tar.extractfile(member)
        assert source is not None  # a regular file has contents
        mode = EXECUTABLE_MODE if member.mode & 0o100 else FILE_MODE
        with source, open(target, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            shutil.copyfileobj(source, file, COPY_BYTES)
        # A .pyc file is valid only if the time that it records is the modification time of its source.
        os.utime(target, (member.mtime, member.mtime))


def main(archive: str, folder: str) -> int:
    """Unpack, and return the exit code of the process."""
    assert isinstance(sys.stdout, io.TextIOWrapper)  # messages may quote names of members that are not valid text
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        unpack(archive, folder, Members())
    except (LoadError, OSError) as exc:
        print(exc)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

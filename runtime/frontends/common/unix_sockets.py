# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Listens at UNIX sockets: addresses such as `unix:/run/pyruntime/http.sock?mode=660`.

The part before `?` is as in gRPC's names. `mode` is that of the file, in octal: who may connect. Without it only the
server's own user may.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from contextlib import suppress
from typing import NamedTuple

from pyruntime.runtime.settings import SettingsError

MODE = 0o600

_ADDRESS = re.compile(r"unix:(?P<path>/[^?]*)(?:\?mode=0?(?P<mode>[0-7]{3}))?")


class UnixSocket(NamedTuple):
    """A socket that is bound to a path. `identity` tells its file from a later one at the same path."""

    sock: socket.socket
    path: str
    identity: tuple[int, int]

    def remove(self) -> None:
        """Remove its file, unless another server has put its own there."""
        with suppress(OSError):
            if _identity(self.path) == self.identity:
                os.unlink(self.path)


def bind(address: str) -> UnixSocket:
    """Bind a socket to an address that begins with UNIX_PREFIX. A file that a killed server has left is replaced.

    Raises SettingsError for a malformed address, and OSError if the path is in use or cannot be bound to.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise SettingsError(f"the address of a UNIX socket is like unix:/path or unix:/path?mode=660, not {address!r}")
    path = "/" + found["path"].lstrip("/")  # unix:///path is the same as unix:/path
    mode = MODE if found["mode"] is None else int(found["mode"], 8)
    sock = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        # Before it is bound, so that nobody else can connect in between; the umask may take bits away, which follow.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
        os.chmod(path, mode)
        return UnixSocket(sock, path, _identity(path))
    except BaseException:
        sock.close()
        raise


def _identity(path: str) -> tuple[int, int]:
    """The inode, whose number may be used again, and the time of its last change in nanoseconds."""
    status = os.stat(path)
    return status.st_ino, status.st_ctime_ns


def _remove_stale(path: str) -> None:
    """Remove a socket at which nobody listens. Raises OSError if somebody does, or if the file is no socket."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

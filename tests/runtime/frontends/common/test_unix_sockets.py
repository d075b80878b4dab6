# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""UNIX sockets: their addresses, who may connect, and files that killed servers leave behind."""

import os
import socket
import stat

import pytest

from pyruntime.runtime.frontends.common.unix_sockets import bind
from pyruntime.runtime.settings import SettingsError


@pytest.fixture
def bound():
    """`bound(address)`: a bound socket, which is removed at the end."""
    made = []

    def make(address):
        made.append(bind(address))
        return made[-1]

    yield make
    for each in made:
        each.sock.close()
        each.remove()


@pytest.mark.parametrize(("options", "mode"), [("", 0o600), ("?mode=660", 0o660), ("?mode=0666", 0o666)])
def test_mode(bound, tmp_path, options, mode):
    """Only the server's user may connect, unless the address says more; the umask does not matter."""
    before = os.umask(0o077)
    try:
        bound(f"unix:{tmp_path}/a{options}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == mode


def test_form_of_grpc(bound, tmp_path):
    """unix:///path, which clients of gRPC write, is the same as unix:/path."""
    assert bound(f"unix://{tmp_path}/a").path == f"{tmp_path}/a"


@pytest.mark.parametrize("address", ["unix:", "unix:a", "unix:/a?mode=9", "unix:/a?mode=77777", "unix:/a?b", "unix:/?"])
def test_malformed(address):
    """An address that is none is refused, and the message shows one."""
    with pytest.raises(SettingsError, match="the address of a UNIX socket is like unix:/path"):
        bind(address)


def test_file_that_was_left(bound, tmp_path):
    """A socket at which nobody listens is replaced."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{tmp_path}/a")
    left.close()
    made = bound(f"unix:{tmp_path}/a")
    made.sock.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(made.path)


def test_in_use(bound, tmp_path):
    """A socket of another server stays, and so does a file that is no socket."""
    bound(f"unix:{tmp_path}/a").sock.listen()
    with pytest.raises(OSError, match="in use"):
        bind(f"unix:{tmp_path}/a")
    (tmp_path / "b").write_text("text")
    with pytest.raises(FileExistsError):
        bind(f"unix:{tmp_path}/b")
    assert (tmp_path / "b").read_text() == "text"


def test_removal(bound, tmp_path):
    """A server removes its own file, and no other's."""
    mine = bound(f"unix:{tmp_path}/a")
    mine.remove()
    assert not (tmp_path / "a").exists()
    bound(f"unix:{tmp_path}/a")
    mine.remove()
    assert (tmp_path / "a").exists()

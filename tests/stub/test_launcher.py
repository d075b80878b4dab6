# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of the launcher: one that is wrong, or cannot be served, is reported and leaves no descriptor."""

import errno
import socket
from contextlib import ExitStack

import pytest

from pyruntime.stub import launcher as launcher_module
from pyruntime.stub.launcher import _Launcher
from pyruntime.utils.launching import DESCRIPTORS, FAILED, REPLY_BYTES, decode_reply
from tests.own_descriptors import own_descriptors

ALL = len(DESCRIPTORS)


class Host:
    """The host's end, with a launcher in this process."""

    def __init__(self, stack):
        self.requests, theirs = map(stack.enter_context, socket.socketpair())
        noted = tuple(map(stack.enter_context, socket.socketpair()))
        self.control, self._theirs = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self.launcher = _Launcher(theirs, noted, 1024)

    def ask(self, count=ALL):
        socket.send_fds(self.requests, [b"!"], [self._theirs.fileno()] * count)


@pytest.fixture
def host():
    with ExitStack() as stack:
        yield Host(stack)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM])
def test_fork_fails(host, monkeypatch, error):
    """A fork that fails is reported with its reason, however often."""

    def fork():
        raise OSError(error, "no")

    monkeypatch.setattr(launcher_module.os, "fork", fork)
    before = own_descriptors()
    for _ in range(100):
        host.ask()
        assert host.launcher._serve_one()
        assert decode_reply(host.control.recv(REPLY_BYTES)) == (FAILED, error)
    assert own_descriptors() == before


def test_no_memory(host, monkeypatch):
    """So is a lack of memory in the launcher itself."""

    def fork():
        raise MemoryError

    monkeypatch.setattr(launcher_module.os, "fork", fork)
    host.ask()
    assert host.launcher._serve_one()
    assert decode_reply(host.control.recv(REPLY_BYTES)) == (FAILED, errno.ENOMEM)


@pytest.mark.parametrize("count", range(1, ALL))
def test_too_few_descriptors(host, count):
    """A request that came without all of its descriptors is refused."""
    before = own_descriptors()
    host.ask(count)
    assert host.launcher._serve_one()
    assert decode_reply(host.control.recv(REPLY_BYTES)) == (FAILED, errno.EMFILE)
    assert own_descriptors() == before


def test_no_descriptors(host):
    """One without any has nobody to report to."""
    host.requests.send(b"!")
    assert host.launcher._serve_one()


def test_host_that_does_not_listen(host):
    """Nor has one whose host is gone meanwhile."""
    host.ask(1)
    host.control.close()
    assert host.launcher._serve_one()


def test_end(host):
    """When the host has ended there are no more requests."""
    host.requests.close()
    assert not host.launcher._serve_one()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The memory that a stub sees: its request region, and what the host grants it of other models'."""

import socket

import pytest

from pyruntime.runtime.memory.regions import create_region
from pyruntime.stub.memory import Regions

COMMITTED_BYTES = 1 << 20


@pytest.fixture
def granting():
    """A function that has a stub's `regions` learn of another region, as the host does."""
    ours, theirs = socket.socketpair()

    def grant(*others):
        for other in others:
            socket.send_fds(ours, [other.number.to_bytes(8, "little")], [other.fileno()])

    grant.theirs = theirs
    with ours, theirs:
        yield grant


@pytest.fixture
def regions(granting):
    """The regions of a stub. Its request region has 1 MiB of memory."""
    requests = create_region("requests of a test")
    requests.commit(0, COMMITTED_BYTES)
    made = Regions(requests, granting.theirs)
    made.set_number(requests.number)
    yield made
    requests.close()


@pytest.fixture
def other_region():
    """Another model's region, with 1 MiB of memory."""
    made = create_region("another model's memory")
    made.commit(0, COMMITTED_BYTES)
    yield made
    made.close()

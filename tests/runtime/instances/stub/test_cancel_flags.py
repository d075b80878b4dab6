# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Flags of cancelled requests, some of which share one."""

from types import SimpleNamespace

import pytest

from pyruntime.runtime.instances.stub.cancel_flags import CancelFlags
from pyruntime.utils.regions import FLAGS_BYTES

SHARING = 1 + FLAGS_BYTES


@pytest.fixture
def flags():
    """`calls` are those of `set_flag`."""
    calls = []
    made = CancelFlags(lambda *call: calls.append(call))
    made.calls = calls
    return made


def jobs(*serials):
    return [SimpleNamespace(serial=serial) for serial in serials]


def test_set_and_cleared(flags):
    """The flag is set for the cancelled request, until that ends."""
    one, two = jobs(1, 2)
    flags.raise_for(one, [one, two])
    assert flags.raised == {1}
    flags.lower(2)
    flags.lower(1)
    flags.lower(1)
    assert flags.raised == set()
    assert flags.calls == [(1, 1), (1, 0)]


def test_shared(flags):
    """The flag of a request that shares it stays as it is."""
    one, other = jobs(1, SHARING)
    flags.raise_for(one, [one, other])
    assert (flags.raised, flags.calls) == (set(), [])


def test_cleared_for_another(flags):
    """A request that comes to share the flag of a cancelled one has it cleared."""
    (one,) = jobs(1)
    flags.raise_for(one, [one])
    flags.lower(SHARING)
    assert flags.raised == set()
    assert flags.calls == [(1, 1), (SHARING, 0)]

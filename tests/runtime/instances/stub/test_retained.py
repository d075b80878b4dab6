# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Request memory that a model keeps."""

from types import SimpleNamespace

import pytest

from pyruntime.runtime.execution.states import StateMemory
from pyruntime.runtime.instances.stub.retained import RetainedMemory
from pyruntime.utils.errors import PeerError
from pyruntime.utils.messages import Retired


class Slot:
    """Memory of a request. `freed` says how often it was freed."""

    offset = 0
    view = memoryview(b"")

    def __init__(self):
        self.freed = 0

    def free(self):
        self.freed += 1


def batch(*slots):
    return [SimpleNamespace(slots=[slot]) for slot in slots]


def test_kept_until_it_is_retired():
    """The job has the memory no more. It is free when the model says so."""
    retained = RetainedMemory(is_shared=False)
    first, second = Slot(), Slot()
    jobs = batch(first, second)
    retained.retain(7, jobs, [1])
    assert [job.slots for job in jobs] == [[first], []]
    assert retained.by_serial == {8: [second]}
    retained.retired(Retired([8]))
    assert (first.freed, second.freed, retained.by_serial) == (0, 1, {})


def test_shared_with_the_job():
    """The memory of a job that may run again is free when the model and the job have freed it."""
    retained = RetainedMemory(is_shared=True)
    slot, freed = Slot(), []
    state = StateMemory(None, lambda: freed.append(True))
    jobs = batch(slot, state)
    retained.retain(1, jobs, [0, 1])
    retained.retired(Retired([1, 2]))
    assert (slot.freed, freed) == (0, [])
    for job in jobs:
        job.slots[0].free()
    assert (slot.freed, freed) == (1, [True])


def test_end_of_the_stub():
    """The memory is handed over, and not freed: models that were called may read it."""
    retained = RetainedMemory(is_shared=False)
    slots = Slot(), Slot()
    retained.retain(1, batch(*slots), [0, 1])
    assert retained.take_all() == [[slots[0]], [slots[1]]]
    assert retained.take_all() == []
    assert [slot.freed for slot in slots] == [0, 0]


@pytest.mark.parametrize("indexes", [[-1], [1], ["0"], [True], [None], [0, 0]])
def test_requests_that_cannot_be_retained(indexes):
    """Each is one of the batch, once."""
    retained = RetainedMemory(is_shared=False)
    with pytest.raises(PeerError, match="is retained and does not exist, or is retained twice"):
        retained.retain(1, batch(Slot()), indexes)


@pytest.mark.parametrize("serials", [[2], [None], [[1]], [{}], [1, 1]])
def test_requests_that_cannot_be_retired(serials):
    """Each was retained, and is retired once."""
    retained = RetainedMemory(is_shared=False)
    retained.retain(1, batch(Slot()), [0])
    with pytest.raises(PeerError, match="is retired and was not retained"):
        retained.retired(Retired(serials))

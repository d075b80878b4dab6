# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors from GPU to GPU in tests in which no process makes them: the test says when one is complete."""

import asyncio
from typing import NamedTuple

from pyruntime.runtime.memory.gpu_peers import GpuSlot, Moved
from pyruntime.utils.errors import Code, InferenceError

LOST = InferenceError("the broker of GPU 0 was lost", Code.UNAVAILABLE)


class Move(NamedTuple):
    """A copy of tensors to a GPU, or to the `memory` of the model that reads them there for None."""

    tensors: list
    gpu: int | None
    memory: object
    moved: asyncio.Future


class Peers:
    """Stands for GpuPeers. `moves` are all copies in their order, `slots` those of copies that nobody has freed.

    `unreachable` are pairs of GPUs without a way from the one to the other.
    """

    def __init__(self):
        self.tasks = None
        self.moves = []
        self.slots = []
        self.unreachable = set()

    @property
    def pending(self):
        """The copies that are neither complete nor lost."""
        return [move for move in self.moves if not move.moved.done()]

    def reaches(self, source, target):
        """See GpuPeers."""
        return (source, target) not in self.unreachable

    async def move(self, tensors, gpu, memory):
        """See GpuPeers."""
        self.moves.append(Move(tensors, gpu, memory, asyncio.get_running_loop().create_future()))
        return await self.moves[-1].moved

    def complete(self, region, *addresses, index=0):
        """One of the pending copies is complete, in this region."""
        move = self.pending[index]
        assert not any(tensor.region.is_closed for tensor in move.tensors)
        slot = GpuSlot(region, lambda: self.slots.remove(slot))
        self.slots.append(slot)
        move.moved.set_result(Moved(region, slot, list(addresses)))

    def fail(self, error=LOST, index=0):
        """One of the pending copies fails."""
        self.pending[index].moved.set_exception(error)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors on GPUs as simulated stubs have them: their own in chunks that they lease, and those that others made there.

Which models are on a GPU, and read there, is drawn for each scenario. Nobody may give a model a tensor where it does
not read it, or in memory that it was not given, or has given back.
"""

from random import Random
from typing import NamedTuple

from pyruntime.utils.addresses import address, split
from pyruntime.utils.messages import CLOSED_GPU, Ask
from pyruntime.utils.request_codec import MEMORY_GPU

from .regions import POISON

# Where a tensor lies in a chunk, behind what a lessee writes there, and how large it may be.
TENSOR_AT = 16
TENSOR_BYTES_MAX = 48


class OnGpu(NamedTuple):
    """The GPU of all instances of a model, and whether it reads its inputs there."""

    gpu: int
    reads: bool


def drawn(seed, model, moves):
    """Where a model has its tensors in a scenario, after so many moves; None for main memory.

    Some models are on a GPU in all of a scenario and go to another one when they move; they read there or do not.
    """
    draw = Random(f"{seed} GPU of {model}")
    gpu = draw.choice((None, 0, 0, 0, 1))
    reads = draw.random() < 0.7
    return None if gpu is None else OnGpu((gpu + moves) % 2, reads)


class GpuTensors:
    """The tensors of one stub. `lessee` has its chunks."""

    def __init__(self, stub, devices, lessee):
        self._stub = stub
        self._devices = devices
        self._lessee = lessee
        self._where = None
        # The handles of memory that it was given, and of what it has closed since, by the numbers of regions.
        self._given = {}
        self._closed = {}
        # The chunks in which its tensors lie, by the slots of their responses, with the size of each.
        self._tensors = {}

    def load(self, where, gpu):
        """The stub has its tensors on its GPU, if it is on one. `where` is where its model is by now.

        `gpu` is the number that the stub is told, None if it is on none.
        """
        if where is not None:
            own = None if gpu is None else int(gpu)
            self._where = where._replace(gpu=own)
            self._lessee.at_home(own)

    def given(self, message):
        """See MapGpu."""
        self._given[message.number] = message.handle

    def unmap(self, number):
        """See UnmapGpu. False if the memory is none that it was given."""
        if number not in self._given:
            return False
        self._closed[number] = self._given.pop(number)
        self._stub.say(Ask(0, CLOSED_GPU, [number]))
        return True

    def contents(self, at, size, device):
        """The contents of an input, where they are."""
        if self._where is None or not self._where.reads or self._where.gpu != device:
            self._stub.world.ledger.violated(
                f"{self._stub.name} is given an input on GPU {device}, and does not read it there"
            )
        return self._at(at, size)

    def answered(self, at, size, device):
        """The contents of an output of a model that it has called, where they are."""
        if self._where is None or self._where.gpu != device:
            self._stub.world.ledger.violated(f"{self._stub.name} is given an answer on GPU {device}, where it is not")
        return self._at(at, size)

    def _at(self, at, size):
        number, offset = split(at)
        handle = self._given.get(number) or self._lessee.handles.get(number)
        if handle is None:
            handle = self._closed.get(number)
            if handle is None or not self._devices.is_lost(handle):
                self._stub.world.ledger.violated(
                    f"{self._stub.name} is given a tensor in memory {number} on a GPU, which it does not have"
                )
        # The memory of a lost broker is there as long as this process has it open.
        return bytes(size) if handle is None else memoryview(self._devices.memory[handle])[offset : offset + size]

    def place(self, request, slot, contents):
        """Put an output on the GPU, if it may stay there and there is room. Returns its address and device, or None.

        What may stay on a GPU where its model was before an exchange of instances goes to main memory.
        """
        wanted = (request.places or {}).get("OUT")
        if wanted is None or wanted[2] != MEMORY_GPU or len(contents) > TENSOR_BYTES_MAX:
            return None
        gpu = wanted[3]
        if self._where is None or self._where.gpu != gpu:
            return None
        number = self._lessee.take(gpu)
        if number is None:
            return None
        memory = self._devices.memory[self._lessee.handles[number]]
        memory[TENSOR_AT : TENSOR_AT + len(contents)] = contents
        self._tensors[slot] = number, len(contents)
        return address(number, TENSOR_AT), gpu

    def free(self, slot):
        """A response is no longer read."""
        number, size = self._tensors.pop(slot, (None, 0))
        if number in self._lessee.handles:
            memory = self._devices.memory[self._lessee.handles[number]]
            memory[TENSOR_AT : TENSOR_AT + size] = POISON * size
            self._lessee.let_go(number)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated stubs that lease memory of the brokers, as models with tensors on a GPU do, and others that read there."""

from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.memory.gpu_peers import Tensor
from pyruntime.runtime.requests.types import free_slots
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.gpu.driver import HANDLE_BYTES
from pyruntime.utils.messages import CLOSED_GPU, LEASE_GPU, OK, RETURN_GPU, Ask

from .tensors import pack, value_of

# The bytes that a lessee writes.
WRITTEN_BYTES = 16
# A lessee keeps memory for so long, and reads of it take place within such a time, in seconds.
KEPT_S = (0.0, 0.001, 0.02, 0.5, 70.0)
# The chunks that a stub leases in its life.
LEASES_MAX = 4
EVENT = bytes(HANDLE_BYTES)


class Lessee:
    """The leases of one stub: see stub/gpu_memory.py. `devices` are the GPUs, and `draw` says what it does."""

    def __init__(self, stub, devices, draw):
        self._stub = stub
        self._devices = devices
        self._draw = draw
        self._left = draw.randrange(LEASES_MAX)
        # The GPU of its model, if that has its tensors on one.
        self._home = None
        # The handles of what it has leased, and their GPUs, by the numbers of the regions.
        self.handles = {}
        self._gpus = {}
        # Those with a tensor, and those that are to be given back when they have none any more.
        self._taken = set()
        self._over = set()
        self._questions = 0

    @property
    def listens(self):
        """Whether the process reads what the host says."""
        return not self._stub.has_ended and not self._stub.is_deaf and not self._stub.is_faulty

    def at_home(self, gpu):
        """The model has its tensors on this GPU: it leases some memory there, and keeps it for long."""
        self._home = gpu
        self._left += 1

    def go_on(self):
        """Lease memory, perhaps."""
        if self._left and not self._stub.has_ended and not self._stub.is_deaf:
            self._left -= 1
            self._questions += 1
            anywhere = self._draw.randrange(len(self._devices.gpus))
            uuid = f"GPU-{anywhere if self._home is None else self._home}"
            self._stub.say(Ask(self._questions, LEASE_GPU, [uuid, self._devices.lease_bytes(self._draw), EVENT]))

    def replied(self, message):
        """An answer of the host."""
        self._stub.world.note("lease", self._stub.name, message.code)
        if message.code == OK:
            number, gpu, handle, _ = message.value
            self.handles[number] = handle
            self._gpus[number] = gpu
            contents = self._devices.begin_use(handle, self)
            if contents is not None:  # otherwise its broker has ended
                contents[:WRITTEN_BYTES] = pack(number, 2)
                self._devices.written.add(number)
            kept_s = self._draw.choice(KEPT_S)
            self._stub.loop.call_later(kept_s if self._home is None else KEPT_S[-1] + kept_s, self._give_back, number)
        self.go_on()

    def unmap(self, number):
        """Memory is lost."""
        if number in self.handles:
            self._end_use(number)
            self._gpus.pop(number, None)  # it writes there no more
            self._stub.say(Ask(0, CLOSED_GPU, [number]))

    def end(self):
        """The process ends."""
        for number in list(self.handles):
            self._end_use(number)
        self.handles.clear()
        self._gpus.clear()

    def take(self, gpu):
        """A chunk on this GPU for a tensor, by its number; None if there is none without one."""
        for number, other in self._gpus.items():
            if other == gpu and number not in self._taken and number not in self._over:
                self._taken.add(number)
                return number
        return None

    def let_go(self, number):
        """The tensor in a chunk is no longer read."""
        self._taken.discard(number)
        if number in self._over:
            self._give_back(number)

    def _give_back(self, number):
        self._over.add(number)
        if number in self._taken:
            return
        if number in self.handles and not self._stub.has_ended and not self._stub.is_deaf:
            self._end_use(number)
            del self.handles[number]
            self._gpus.pop(number, None)
            self._stub.say(Ask(0, RETURN_GPU, [number]))

    def _end_use(self, number):
        self._devices.end_use(self.handles[number], self)

    def __repr__(self):
        return f"<Lessee {self._stub.name}>"


class Target:
    """Where a tensor is read: a slot in request memory of its own. See RequestMemory."""

    offset = 0

    def __init__(self, world):
        self.region = world.memory.create_region("read", in_need=True)

    def allocate_bare(self, size):
        return self

    def free(self):
        """It ends with its region."""


class WatchedLeases(GpuLeases):
    """Leases that others read, as steps of an ensemble do: where they are, or a copy on another GPU."""

    def __init__(self, world, brokers, sizes, draw):
        super().__init__(brokers, sizes)
        self._world = world
        self._draw = draw

    async def lease(self, uuid, size, event):
        region = await super().lease(uuid, size, event)
        if self._draw.random() < 0.5:
            self._world.loop.call_later(self._draw.choice(KEPT_S), self._begin_read, region)
        return region

    def _begin_read(self, region):
        is_written = region.number in self._world.devices.written
        if is_written and not region.is_closed and not self._world.is_closing:
            region.count_on()
            self._world.tasks.create_task(self._read(region), name="read from a GPU")

    async def _read(self, region):
        """What is read was written by the lessee: nobody else has the memory while somebody counts on it."""
        world, target = self._world, Target(self._world)
        gpu = self._draw.randrange(len(world.devices.gpus))
        slots = []
        try:
            source, at = region, 0
            if gpu != region.gpu.ordinal:
                moved = await world.peers.move([Tensor(region, 0, WRITTEN_BYTES)], gpu, target)
                slots.append(moved.slot)
                world.note("moved to", *moved.where)
                source, (_, at) = moved.region, split(moved.addresses[0])
            if source is not target.region:
                await self.fetch(source, at, WRITTEN_BYTES, target.region, 0)
            value = value_of(target.region.view[:WRITTEN_BYTES])
            if value != region.number:
                world.ledger.violated(f"{value} is read from memory {region.number} on a GPU")
        except InferenceError as exc:
            world.note("not fetched", int(exc.code))
        finally:
            free_slots(slots)
            target.region.close()
            region.close()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Another process as the broker of a GPU, for the memory of a stub there."""

from types import SimpleNamespace

import numpy as np

from pyruntime.stub.gpu_memory import GpuMemory
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.pooled import pooled_tensor
from pyruntime.utils.addresses import split
from pyruntime.utils.messages import FETCH_GPU, LEASE_GPU, MapGpu
from pyruntime.utils.request_codec import MEMORY_GPU

# The bytes of a chunk that is leased.
CHUNK = 8 << 10


def make_broker(process):
    """A broker in this process: leases chunks to `memory`, and notes what it is told."""
    broker = SimpleNamespace(process=process, leased={}, events={}, told=[], refuses=False, is_lost=False)

    def ask(method, arguments):
        if method == FETCH_GPU:
            at, size, offset = arguments
            contents = process.read(broker.written + split(at)[1], size)
            main_memory[offset : offset + size] = np.frombuffer(contents, np.uint8)
            return None
        uuid, size, event = arguments
        assert (method, uuid) == (LEASE_GPU, "GPU-1")
        if broker.refuses:
            raise TritonModelException("there is no memory")
        number, granted = 10 + len(broker.leased), max(size, CHUNK)
        broker.leased[number] = pointer = process.allocate(granted)
        broker.events[number] = event
        if broker.is_lost:  # the host says so before the stub has handled the answer
            broker.memory.unmap(number)
        return [number, 3, process.export(pointer), granted]

    main_memory = np.zeros(1000, np.uint8)
    broker.memory = GpuMemory(
        ask,
        lambda method, arguments: broker.told.append((method, arguments)),
        lambda size: SimpleNamespace(offset=64, pointer=main_memory.ctypes.data + 64, owner=main_memory),
    )
    broker.contents = lambda at, size: process.read(broker.leased[split(at)[0]] + split(at)[1], size)
    return broker


def write_tensor(broker):
    """A tensor that the broker's process has written, which begins at byte 4 of its memory."""
    writer = broker.process
    broker.written, own, event = writer.allocate(64), writer.allocate(64), writer.create_event()
    writer.write(own, bytes(4) + np.arange(3, dtype=np.int32).tobytes())
    writer.copy(broker.written, own, 64)
    writer.record(event)
    broker.memory.chunks.announce(MapGpu(20, "GPU-1", writer.export(broker.written), writer.export_event(event), 64))
    return pooled_tensor(broker.memory, ("A", "INT32", [3], (20 << 36) + 4, 12, MEMORY_GPU, 3), None)

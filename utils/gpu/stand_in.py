# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A GPU that does not exist, for tests on machines without one. Its memory is main memory.

It keeps the rules of the driver, and is stricter where the driver leaves the result undefined:

- A handle is invalid in the process that exported it, on another GPU unless that is a peer, and after its memory is
  freed. An event is invalid on all other GPUs. What is open twice must be closed twice.
- Memory must not be freed while another process has it open, nor used after the process that owns it has ended.
- CUDA_VISIBLE_DEVICES counts when a process first uses a GPU of a machine, and never again.
- A process must wait for an event behind a copy of another process before it reads the result. Each process counts its
  copies. An event carries that number, and memory the numbers of the last copies to its parts, until their process has
  called `settle`; `_seen` is how far this process has waited for each other one. A framework has streams of its own,
  which come behind ours by `order` or `settle` only.

stand_in_memory.py has what processes share. Pointers are not addresses of this process, so that nobody can use one by
mistake.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from pyruntime.utils.gpu.driver import GpuLostError, GpuProperties, gpu_error
from pyruntime.utils.gpu.machine import Machine, parse_machine
from pyruntime.utils.gpu.native import NativeFunctions, in_python
from pyruntime.utils.gpu.stand_in_memory import (
    EVENT,
    MEMORY,
    OPENERS_MAX,
    PAGE_BYTES,
    Shared,
    is_other,
    lives,
    read_handle,
)
from pyruntime.utils.gpu.visible import VISIBLE, visible

# Streams have addresses, and this is none. CUDA's own streams are 1 and 2.
_STREAM = 16
# No mapping of a process lies there.
_FIRST_POINTER = 1 << 52
# The addresses of one GPU. No GPU has those of another one.
_ADDRESSES = 1 << 44

# Those that this process uses.
_gpus: weakref.WeakSet[StandInGpu] = weakref.WeakSet()
# CUDA_VISIBLE_DEVICES as it was when this process first used a GPU of a machine, by the machine's file.
_visible: Dict[str, Optional[str]] = {}


def _device(uuid: str) -> bytes:
    """What handles have of the GPU that they belong to."""
    return hashlib.blake2b(uuid.encode(), digest_size=8).digest()


class StandInGpu:
    """See the module, and `Gpu` for the methods. `path` is the file that machine.py describes."""

    def __init__(self, path: str, ordinal: int = 0) -> None:
        """Raises GpuMissingError if there is no GPU with this number."""
        self._path = path
        _visible.setdefault(path, os.environ.get(VISIBLE))
        self._ordinal = ordinal
        self._memory: Dict[int, Shared] = {}
        self._events: Dict[int, Shared] = {}
        self._next = _FIRST_POINTER + ordinal * _ADDRESSES
        self._copies = 0
        self._seen: Dict[int, int] = {}
        # The same at the last `settle`, and for each stream of a framework at its last `order`.
        self._settled: Dict[int, int] = {}
        self._ordered: Dict[int, Dict[int, int]] = {}
        self._lost = ""
        self._work: List[Callable[[], None]] = []
        gpus = self._gpus(self._machine())
        if not 0 <= ordinal < len(gpus):
            raise gpu_error("CUDA_ERROR_INVALID_DEVICE", "cuDeviceGet", "invalid device ordinal")
        self._uuid = gpus[ordinal].uuid
        self._device = _device(self._uuid)
        _gpus.add(self)

    # Properties.

    def properties(self) -> GpuProperties:
        machine = self._begin("properties")
        gpu = self._gpus(machine)[self._ordinal]
        used = sum(memory.size for memory in self._memory.values() if memory.owner == os.getpid())
        return gpu._replace(free_bytes=gpu.free_bytes - used)

    @property
    def stream(self) -> int:
        return _STREAM + self._ordinal

    def settle(self) -> None:
        self._begin("settle")
        work, self._work = self._work, []
        for each in work:
            each()
        for memory in self._memory.values():
            with memory.locked():
                memory.settled(os.getpid(), self._copies)
        self._settled = self._reached()

    def order(self, stream: int) -> None:
        self._begin("order")
        self._ordered[stream] = self._reached()

    def enqueue(self, work: Callable[[], None]) -> None:
        """Have work done like that of a framework: at the next `settle`, and not before."""
        self._work.append(work)

    def write_by(self, pointer: int, contents: Any) -> None:
        """Write like a framework, whose work is not that of our calls: a fault of `write` is none of it."""
        self._begin("write_by")
        self._fill(pointer, contents, "write_by")

    def read_by(self, stream: int, pointer: int, target: Any) -> None:
        """Read like a framework on a stream of its own, which must come behind the copies to this memory."""
        self._begin("read_by")
        with memoryview(target).cast("B") as filled:
            memory, at = self._range(pointer, len(filled), "read_by")
            with memory.locked():
                copies = memory.copies(at, at + len(filled))
            ordered, settled = self._ordered.get(stream, {}), self._settled
            if any(
                copy > max(ordered.get(writer, 0), settled.get(writer, 0)) and lives(writer) for writer, copy in copies
            ):
                raise gpu_error("CUDA_ERROR_NOT_READY", "read_by", f"nothing orders stream {stream} behind the copy")
            with memoryview(memory.map) as source:
                filled[:] = source[at : at + len(filled)]

    def has(self, pointer: int) -> bool:
        """Whether memory of this GPU lies there."""
        return any(first <= pointer < first + memory.size for first, memory in self._memory.items())

    # Memory.

    def allocate(self, size: int) -> int:
        self._begin("allocate")
        if size <= 0:
            raise gpu_error("CUDA_ERROR_INVALID_VALUE", "allocate", f"expected a positive size, found {size}")
        if size > self.properties().free_bytes:
            raise gpu_error("CUDA_ERROR_OUT_OF_MEMORY", "allocate", "out of memory")
        return self._add(self._memory, Shared.create(MEMORY, size, self._device), size)

    def free(self, pointer: int) -> None:
        self._begin("free")
        memory = self._find(self._memory, pointer, "free", os.getpid())
        with memory.locked():
            for pid in memory.openers():
                raise gpu_error("CUDA_ERROR_INVALID_VALUE", "free", f"process {pid} has the memory open")
            memory.free()
        self._memory.pop(pointer).end()

    def export(self, pointer: int) -> bytes:
        self._begin("export")
        return self._find(self._memory, pointer, "export", os.getpid()).handle

    def open(self, handle: bytes) -> int:
        self._begin("open")
        for pointer, memory in self._memory.items():
            if memory.handle == handle and memory.owner != os.getpid():
                memory.opened += 1
                return pointer
        memory = self._import(MEMORY, handle, "open")
        if not memory.replace_opener(0, os.getpid()):
            memory.end()
            raise gpu_error(
                "CUDA_ERROR_OUT_OF_MEMORY", "open", f"more than {OPENERS_MAX} processes have the memory open"
            )
        return self._add(self._memory, memory, memory.size)

    def close(self, pointer: int) -> None:
        self._begin("close")
        memory = self._memory.get(pointer)
        if memory is None or memory.owner == os.getpid():
            raise gpu_error("CUDA_ERROR_INVALID_VALUE", "close", "the pointer is not that of an open handle")
        memory.opened -= 1
        if not memory.opened:
            memory.replace_opener(os.getpid(), 0)
            self._memory.pop(pointer).end()

    def size(self, pointer: int) -> int:
        self._begin("size")
        return self._find(self._memory, pointer, "size").size

    def native(self) -> NativeFunctions:
        return in_python(self)

    # Copies.

    def write(self, pointer: int, contents: Any) -> None:
        self._begin("write")
        self._fill(pointer, contents, "write")

    def read(self, pointer: int, target: Any) -> None:
        self._begin("read")
        with memoryview(target).cast("B") as filled:
            memory, at = self._range(pointer, len(filled), "read")
            self._check_order(memory, at, len(filled), "read")
            with memoryview(memory.map) as source:
                filled[:] = source[at : at + len(filled)]

    def copy(self, target: int, source: int, size: int) -> None:
        self._begin("copy")
        memory, at = self._range(source, size, "copy")
        self._check_order(memory, at, size, "copy")
        copied = memory.map[at : at + size]
        memory, at = self._range(target, size, "copy")
        memory.map[at : at + size] = copied
        self._copies += 1
        self._wrote(memory, at, size, self._copies)

    # Events.

    def create_event(self) -> int:
        self._begin("create_event")
        return self._add(self._events, Shared.create(EVENT, 0, self._device), 0)

    def record(self, event: int) -> None:
        self._begin("record")
        page = self._find(self._events, event, "record")
        with page.locked():
            page.record(os.getpid(), self._copies)

    def wait(self, event: int) -> None:
        self._begin("wait")
        self._see(event, "wait")

    def synchronize(self, event: int) -> None:
        self._begin("synchronize")
        writer, copy = self._see(event, "synchronize")
        for memory in self._memory.values():
            with memory.locked():
                memory.settled(writer, copy)

    def export_event(self, event: int) -> bytes:
        self._begin("export_event")
        return self._find(self._events, event, "export_event", os.getpid()).handle

    def open_event(self, handle: bytes) -> int:
        self._begin("open_event")
        return self._add(self._events, self._import(EVENT, handle, "open_event"), 0)

    def destroy_event(self, event: int) -> None:
        self._begin("destroy_event")
        page = self._events.pop(event, None)
        if page is None:
            raise gpu_error("CUDA_ERROR_INVALID_HANDLE", "destroy_event", "there is no such event")
        if page.owner == os.getpid():
            page.free()
        page.end()

    # The rules.

    def _machine(self) -> Machine:
        with open(self._path) as file:
            return parse_machine(file.read())

    def _gpus(self, machine: Machine) -> List[GpuProperties]:
        return visible(machine.gpus, _visible[self._path])

    def _begin(self, call: str) -> Machine:
        """Raise the error that the file asks for. A GPU that is lost stays so in this process."""
        machine = self._machine()
        reason = self._lost or machine.faults.get(call)
        if reason:
            error = gpu_error(reason, call)
            if isinstance(error, GpuLostError):
                self._lost = reason
            raise error
        return machine

    def _add(self, table: Dict[int, Shared], shared: Shared, size: int) -> int:
        pointer = self._next
        # A gap, so that a pointer behind the end is in no memory.
        self._next += (size // PAGE_BYTES + 2) * PAGE_BYTES
        table[pointer] = shared
        return pointer

    def _import(self, kind: bytes, handle: bytes, call: str) -> Shared:
        found = read_handle(handle)
        if found is None or found.kind != kind:
            raise gpu_error("CUDA_ERROR_INVALID_HANDLE", call, "invalid resource handle")
        if found.owner == os.getpid():
            raise gpu_error("CUDA_ERROR_INVALID_CONTEXT", call, "invalid device context")
        device = found.device
        if device != self._device and (kind == EVENT or device not in map(_device, self._machine().peers[self._uuid])):
            raise gpu_error("CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", call, "the handle is that of another GPU")
        shared = Shared.open(found)
        if shared is None:
            raise gpu_error("CUDA_ERROR_INVALID_HANDLE", call, "invalid resource handle")
        return shared

    def _find(self, table: Dict[int, Shared], pointer: int, call: str, owner: int = 0) -> Shared:
        shared = table.get(pointer)
        if shared is None or (owner and shared.owner != owner):
            raise gpu_error("CUDA_ERROR_INVALID_VALUE", call, f"{pointer:#x} is not of this process")
        self._check_live(shared, call)
        return shared

    def _range(self, pointer: int, size: int, call: str) -> Tuple[Shared, int]:
        """The memory that has all of these bytes, and where they begin in its mapping."""
        for first, memory in self._memory.items():
            if first <= pointer and pointer + size <= first + memory.size:
                self._check_live(memory, call)
                return memory, pointer - first + PAGE_BYTES
        raise gpu_error("CUDA_ERROR_INVALID_VALUE", call, f"{size} bytes at {pointer:#x} are not all in one allocation")

    def _check_live(self, shared: Shared, call: str) -> None:
        if not shared.is_live:
            raise gpu_error("CUDA_ERROR_INVALID_HANDLE", call, "the process that owns it has freed it, or has ended")

    def _fill(self, pointer: int, contents: Any, call: str) -> None:
        with memoryview(contents).cast("B") as source:
            memory, at = self._range(pointer, len(source), call)
            memory.map[at : at + len(source)] = source
            self._wrote(memory, at, len(source), 0)

    def _wrote(self, memory: Shared, at: int, size: int, copy: int) -> None:
        with memory.locked():
            memory.wrote(at, at + size, os.getpid(), copy)

    def _check_order(self, memory: Shared, at: int, size: int, call: str) -> None:
        with memory.locked():
            copies = memory.copies(at, at + size)
        if any(copy > self._seen.get(writer, 0) and is_other(writer) for writer, copy in copies):
            raise gpu_error("CUDA_ERROR_NOT_READY", call, "no event orders this behind the copy of another process")

    def _reached(self) -> Dict[int, int]:
        """How far our stream is: what it has waited for, and its own copies."""
        return {**self._seen, os.getpid(): self._copies}

    def _see(self, event: int, call: str) -> Tuple[int, int]:
        """Returns the process that recorded the event, and its last copy before."""
        page = self._find(self._events, event, call)
        with page.locked():
            writer, copy = page.recorded
        if not writer:
            raise gpu_error("CUDA_ERROR_NOT_READY", call, "the event was never recorded")
        self._seen[writer] = max(copy, self._seen.get(writer, 0))
        return writer, copy


def seen(path: str) -> Optional[List[str]]:
    """See seen_by_cuda of inventory.py."""
    if path not in _visible:
        return None
    with open(path) as file:
        gpus = parse_machine(file.read()).gpus
    return [gpu.uuid for gpu in visible(gpus, _visible[path])]


def device_of(pointer: int) -> int:
    """See inventory.py."""
    for gpu in _gpus:
        if gpu.has(pointer):
            return gpu._ordinal
    raise gpu_error("CUDA_ERROR_INVALID_VALUE", "device_of", f"{pointer:#x} is not of this process")

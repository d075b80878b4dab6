# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs that processes share: this process writes its tensors there. Those of others are in `chunks`.

The memory belongs to the broker of the GPU. This process leases chunks of it and allocates in them, as it does in its
response region: one copy on the GPU, and no message, for each tensor.
"""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

from pyruntime.stub.freeing_lock import FreeingLock
from pyruntime.stub.gpu_chunks import Chunk, Chunks, lost
from pyruntime.stub.gpu_owners import Owners
from pyruntime.stub.gpu_reserves import Reserve, Reserves, end_process
from pyruntime.stub.gpus import gpu_of
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.gpu_tensor import GpuContents, OnGpu
from pyruntime.utils.addresses import address, split
from pyruntime.utils.arena import slot_bytes
from pyruntime.utils.errors import LocalError
from pyruntime.utils.gpu.chunks import ChunkArena
from pyruntime.utils.gpu.driver import GpuError
from pyruntime.utils.messages import CLOSED_GPU, FETCH_GPU, LEASE_GPU, RETURN_GPU

if TYPE_CHECKING:
    from pyruntime.stub.pb_utils.leased import Slot


class _Lease(ChunkArena):
    """A chunk in which this process allocates."""

    def __init__(self, chunk: Chunk, device: int, size: int) -> None:
        super().__init__(size)
        self.chunk = chunk
        self.device = device


class _TakenBack(NamedTuple):
    """See `take_back`."""

    at: int
    written_on: Optional[int]


class Loan(Protocol):
    """Memory of this process that the host writes to, free when nothing refers to it: `pointer` maps its `offset`."""

    offset: int
    pointer: int


class GpuMemory:
    """See the module. `ask` and `tell` are those of stub/host.py. Thread-safe."""

    def __init__(
        self,
        ask: Callable[[str, List[Any]], Any],
        tell: Callable[[str, List[Any]], None],
        lend: Callable[[int], Loan],
    ) -> None:
        """`lend` is for copies in main memory of a size, in bytes. It raises OutOfMemoryError."""
        self._ask = ask
        self._tell = tell
        self._lend = lend
        self._lock: FreeingLock[_TakenBack] = FreeingLock(self._free_taken_back)
        self.chunks = Chunks(self._lock)
        self._leases: Dict[int, _Lease] = {}
        # How many leases are asked for or being opened, and what was lost meanwhile and may be one of them.
        self._asking = 0
        self._gone: Set[int] = set()
        # The event behind the copies of this process, by the number of the GPU in this process.
        self._events: Dict[int, int] = {}
        self._has_warned = False
        self._reserves = Reserves()
        self._owners = Owners(self._lock)

    def fetch(self, at: int, size: int) -> Loan:
        """A copy in main memory of `size` bytes, made by the broker, so that this process need not use the GPU.

        Raises OutOfMemoryError, and TritonModelException with the host's reason.
        """
        loan = self._lend(size)
        self._ask(FETCH_GPU, [at, size, loan.offset])
        return loan

    def unmap(self, number: int) -> None:
        """Close a region to which no later message refers, or whose memory is gone; it may be a lease.

        A framework that allocates there cannot go on: it has tensors there, and would put others in their place.
        """
        with self._lock:
            is_reserved = self._reserves.are_in(number)
            self._leases.pop(number, None)
            is_known, chunk = self.chunks.remove(number)
            if self._asking and not is_known:
                self._gone.add(number)
        if is_reserved:
            end_process()
        if chunk is not None:
            chunk.close()
        self._tell(CLOSED_GPU, [number])

    def allocate(self, gpu: int, size: int) -> Optional[Tuple[OnGpu, int]]:
        """Memory that others can open: its place, and the pointer to it here. None if there is no room.

        Others read it behind the last `written`. It lasts until `free`.
        """
        try:
            found = self._allocate(gpu, size)
            if found is None:
                found = self._allocate_in(self._lease(gpu, size), size)
        except (GpuError, LocalError, TritonModelException) as exc:
            self._warn(gpu, exc)
            return None
        if found is None:
            return None
        lease, offset = found
        pointer = lease.chunk.pointer
        if pointer is None:  # it was lost just now
            return None
        return OnGpu(address(lease.chunk.number, offset), lease.device), pointer + offset

    def reserve(self, gpu: int, size: int, lacked: Callable[[], int]) -> Optional[Tuple[int, int]]:
        """Memory for a framework to allocate in, whose tensors there need no copy: its pointer and its size.

        None if there is no room. It lasts until the process ends. `lacked` returns for how many bytes it had no room.
        """
        size = slot_bytes(size)
        found = self.allocate(gpu, size)
        if found is None:
            return None
        place, pointer = found
        with self._lock:
            if split(place.address)[0] not in self._leases:  # it was lost just now, which has not ended the process
                return None
            self._reserves.add(Reserve(place, pointer, size, lacked))
        return pointer, size

    def written(self, gpu: int) -> None:
        """Have others read behind the copies of this process so far, where it has allocated. Raises GpuError."""
        gpu_of(gpu).record(self._events[gpu])

    def place(self, contents: GpuContents) -> Optional[OnGpu]:
        """Copy contents on a GPU to memory that others can open, unless they lie there. None if there is no room.

        Raises TritonModelException if they cannot be copied.
        """
        if contents.slot is not None:
            return self._hold(contents.slot)
        gpu = contents.gpu
        try:
            place = self._in_reserve(contents)
            if place is not None:
                return place
            found = self.allocate(gpu, contents.nbytes)
            if found is None:
                return None
            place, pointer = found
            try:
                contents.copy_on_gpu(pointer)
                self.written(gpu)
            except BaseException:
                self.free(place.address)
                raise
        except GpuError as exc:
            raise TritonModelException(f"a tensor cannot be copied on GPU {gpu}: {exc.explanation}") from exc
        return place

    def _hold(self, slot: Slot) -> OnGpu:
        """The place of a slot, which is kept until nobody reads it. Raises TritonModelException if it is lost."""
        at = slot.place.address
        if split(at)[0] not in self._leases:
            raise TritonModelException(f"the tensor is gone: the broker of GPU {slot.gpu} was lost")
        try:
            self.written(slot.gpu)
        except GpuError as exc:
            raise TritonModelException(f"a tensor on GPU {slot.gpu} cannot be shown: {exc.explanation}") from exc
        slot.is_written = True
        self._owners.hold(at, slot)
        return slot.place

    def _in_reserve(self, contents: GpuContents) -> Optional[OnGpu]:
        """The place of contents in a reserve, None if they are in none or not aligned.

        Raises GpuError and TritonModelException. Their owner is kept until nobody reads them, so that the framework
        does not use their memory for others.
        """
        place = self._reserves.find(contents)
        if place is None:
            return None
        contents.settle()  # any stream may write to them
        self.written(contents.gpu)
        self._owners.hold(place.address, contents.owner)
        return place

    def place_all(self, tensors: Sequence[Any], passes_on: bool) -> Tuple[List[Optional[OnGpu]], List[int]]:
        """The places of tensors, None for those in main memory; and the addresses among them to be freed later.

        With `passes_on` a tensor of another process stays where it is. Raises TritonModelException.
        """
        places: List[Optional[OnGpu]] = []
        owned: List[int] = []
        try:
            for tensor in tensors:
                contents = tensor._array
                place = None
                if isinstance(contents, GpuContents) and contents.nbytes:
                    place = contents.place if passes_on else None
                    if place is None:
                        place = self.place(contents)
                        if place is not None:
                            owned.append(place.address)
                places.append(place)
        except BaseException:
            self.free_all(owned)
            raise
        return places, owned

    def free_all(self, addresses: Iterable[int]) -> None:
        """See `free`."""
        for at in addresses:
            self.free(at)

    def free(self, at: int) -> None:
        """Nobody reads a tensor of this process any more. A chunk that is not needed any longer is given back."""
        if self._owners.let_go(at):
            return
        number, offset = split(at)
        with self._lock:
            lease = self._leases.get(number)
            if lease is None:
                return  # it was lost with its broker
            lease.free(offset)
            others = [each for each in self._leases.values() if each is not lease and each.chunk.gpu == lease.chunk.gpu]
            if lease.is_needed(1 + sum(not self._reserves.are_in(each.chunk.number) for each in others)):
                return
            del self._leases[number]
            self.chunks.remove(number)
        self._complete(lease.chunk.gpu)
        lease.chunk.close()
        self._tell(RETURN_GPU, [number])

    def _complete(self, gpu: int) -> None:
        """Return when the copies of this process are complete: they must not change what another process has next."""
        try:
            gpu_of(gpu).synchronize(self._events[gpu])
        except GpuError as exc:  # the GPU is lost, or nothing was copied there
            LOGGER.debug("copies on GPU %d: %s", gpu, exc)

    def take_back(self, at: int, written_on: Optional[int]) -> None:
        """As `free`, for destructors: they may run in a thread that uses the memory, which frees it afterwards.

        A library may still write there on the GPU `written_on`, if it is not None.
        """
        self._lock.take_back(_TakenBack(at, written_on))

    def _free_taken_back(self, taken: _TakenBack) -> None:
        if taken.written_on is not None:
            try:
                gpu_of(taken.written_on).settle()  # nobody knows the stream
            except GpuError as exc:  # the GPU is lost
                LOGGER.debug("work on GPU %d: %s", taken.written_on, exc)
        self.free(taken.at)

    def _allocate(self, gpu: int, size: int) -> Optional[Tuple[_Lease, int]]:
        with self._lock:
            leases = [each for each in self._leases.values() if each.chunk.gpu == gpu]
        for lease in leases:
            found = self._allocate_in(lease, size)
            if found is not None:
                return found
        return None

    def _allocate_in(self, lease: _Lease, size: int) -> Optional[Tuple[_Lease, int]]:
        with self._lock:
            if lease.chunk.number not in self._leases:
                return None
            offset = lease.allocate(size)
        return None if offset is None else (lease, offset)

    def _lease(self, gpu: int, size: int) -> _Lease:
        """Lease another chunk. Raises TritonModelException if the host has none, and GpuError."""
        driver = gpu_of(gpu)
        with self._lock:
            if gpu not in self._events:
                self._events[gpu] = driver.create_event()
            event = self._events[gpu]
            self._asking += 1
        try:
            wanted = [driver.properties().uuid, slot_bytes(size), driver.export_event(event)]
            return self._take(gpu, *self._ask(LEASE_GPU, wanted))
        finally:
            with self._lock:
                self._asking -= 1
                if not self._asking:
                    self._gone.clear()

    def _take(self, gpu: int, number: int, device: int, handle: bytes, size: int) -> _Lease:
        """Open the chunk that the host has leased. Raises GpuError, also if it was lost before it could be used."""
        try:
            chunk = Chunk(number, gpu, gpu_of(gpu).open(handle), None)
        except GpuError:
            self._tell(RETURN_GPU, [number])
            raise
        lease = _Lease(chunk, device, size)
        with self._lock:
            is_gone = number in self._gone
            if not is_gone:
                self.chunks.add(chunk)
                self._leases[number] = lease
        if is_gone:
            chunk.close()
            self._tell(RETURN_GPU, [number])
            raise lost()
        return lease

    def _warn(self, gpu: int, cause: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = cause.explanation if isinstance(cause, GpuError) else cause
            LOGGER.warning("tensors on GPU %d go through main memory, because they have no room there: %s", gpu, reason)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The request memory of one model version: a region in which the host allocates, and which all its stubs map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyruntime.runtime.regions import SharedRegion, create_region
from pyruntime.runtime.requests.types import InferRequest, Slot
from pyruntime.utils.arena import ALIGNMENT, LARGE_BYTES, PAGE_BYTES, Arena
from pyruntime.utils.errors import Code, InferenceError, OutOfMemoryError

# A copy is made in pieces of this size, in bytes: less than a millisecond's work.
COPIED_BYTES = 1 << 20
# The memory of a body that is still to arrive exists as far as the body has come, and about as much again: at least so
# many bytes more, and at most so many, which take two milliseconds to commit.
GROWTH_BYTES_MIN = 64 << 10
GROWTH_BYTES_MAX = 8 << 20


class RequestSlot:
    """A slot of a request region: `size` bytes at `offset`, which for alignment may be after the slot's `start`."""

    __slots__ = ("_arena", "_region", "_start", "offset", "size")

    def __init__(self, arena: Arena, region: memoryview, start: int, offset: int, size: int) -> None:
        self._arena = arena
        self._region = region
        self._start = start
        self.offset = offset
        self.size = size

    @property
    def view(self) -> memoryview:
        """The slot's memory."""
        return self._region[self.offset : self.offset + self.size]

    def fill(self, data: bytes | bytearray) -> None:
        """Copy `data`, which is as long as the slot, into it. A thread that does so lets others run meanwhile."""
        with memoryview(data) as source:
            for at in range(0, self.size, COPIED_BYTES):
                part = source[at : at + COPIED_BYTES]
                self._region[self.offset + at : self.offset + at + len(part)] = part

    def commit(self) -> None:
        """Have the memory exist before anything is written. See BareSlot: that of other slots exists."""

    def grow(self, nbytes: int) -> int:
        """Have the first `nbytes` bytes exist, at least. Returns how many do. All of them, but in a GrowingSlot."""
        return self.size

    def free(self) -> None:
        """Free the slot; another request may then get its memory."""
        self._arena.free(self._start)


class BareSlot(RequestSlot):
    """A slot whose memory does not exist until `commit`, which the thread calls that fills it."""

    __slots__ = ("_commit",)

    def __init__(self, slot: RequestSlot, commit: Callable[[], None]) -> None:
        """It takes the place of `slot`, which is no longer used. `commit` raises InferenceError."""
        super().__init__(slot._arena, slot._region, slot._start, slot.offset, slot.size)
        self._commit: Callable[[], None] | None = commit

    def commit(self) -> None:
        """See RequestSlot. Any thread may call it. Raises InferenceError UNAVAILABLE if there is no memory."""
        if self._commit is not None:
            self._commit()
            self._commit = None

    def free(self) -> None:
        """See RequestSlot."""
        self._arena.free(self._start, is_bare=self._commit is not None)


class GrowingSlot(RequestSlot):
    """A slot for a body that is still to arrive: its memory does not exist until `grow`.

    So a client gets no memory by announcing a body alone. Belongs to the event loop's thread.
    """

    __slots__ = ("_bare", "_commit", "_ready")

    def __init__(self, slot: RequestSlot, bare: int, commit: Callable[[int, int], None]) -> None:
        """It takes the place of `slot`, which is no longer used and has `bare` bytes from its start on.

        `commit`, with a range of the region, raises InferenceError.
        """
        super().__init__(slot._arena, slot._region, slot._start, slot.offset, slot.size)
        self._bare = bare
        self._commit = commit
        # The bytes that exist, from the start on.
        self._ready = 0

    def grow(self, nbytes: int) -> int:
        """See RequestSlot. Raises InferenceError UNAVAILABLE if there is no memory."""
        skew, ready = self.offset - self._start, self._ready
        if skew + nbytes > ready:
            end = max(ready + min(max(ready, GROWTH_BYTES_MIN), GROWTH_BYTES_MAX), skew + nbytes)
            # With its last bytes, of which a message may need fewer, all of it exists: it is warm when it is freed.
            end = self._bare if end >= self.size - GROWTH_BYTES_MIN else -(-end // PAGE_BYTES) * PAGE_BYTES
            self._commit(self._start + ready, end - ready)
            self._ready = end
        return min(self._ready - skew, self.size)

    def free(self) -> None:
        """See RequestSlot."""
        self._arena.free(self._start, is_bare=self._ready < self._bare)


class CountedSlot(RequestSlot):
    """A slot whose bytes count among the pending ones: `on_free` is called when it is freed."""

    __slots__ = ("_on_free",)

    def __init__(self, slot: RequestSlot, on_free: Callable[[], None]) -> None:
        """It takes the place of `slot`, which is no longer used."""
        super().__init__(slot._arena, slot._region, slot._start, slot.offset, slot.size)
        self._on_free = on_free

    def free(self) -> None:
        """See RequestSlot."""
        super().free()
        self._on_free()


class SlotOfSlot:
    """The memory of another slot, which a subclass frees: see requests.types.Slot."""

    __slots__ = ("_slot",)

    _slot: Slot

    @property
    def offset(self) -> int:
        """See Slot."""
        return self._slot.offset

    @property
    def view(self) -> memoryview:
        """See Slot."""
        return self._slot.view


class SharedSlot(SlotOfSlot):
    """A slot with two users: it is freed when both have freed it."""

    __slots__ = ("_counting",)

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._counting = 2

    def free(self) -> None:
        """Release one of the two uses."""
        self._counting -= 1
        if not self._counting:
            self._slot.free()


class RequestMemory:
    """Owns the request region. Slots are allocated and freed on the event loop's thread only."""

    def __init__(
        self,
        model_name: str,
        first_bytes: int,
        growth_bytes: int,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Make the region. `soon`: see Arena. Raises OutOfMemoryError."""
        self._model_name = model_name
        self._is_closed = False
        self.region: SharedRegion = create_region(f"requests to {model_name}")
        self._arena = Arena(self.region, growth_bytes, soon=soon)
        self._view = self.region.view
        try:
            self._arena.reserve(first_bytes)
        except OutOfMemoryError:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<RequestMemory {self._model_name} {self._arena}>"

    @property
    def live(self) -> int:
        """The number of slots in use."""
        return self._arena.live

    def allocate(self, size: int, lead: int = 0, data: bytes | bytearray | memoryview | None = None) -> RequestSlot:
        """A slot for `size` bytes, placed so that byte `lead` of it is aligned for any datatype.

        It holds a copy of `data`, which has so many bytes, unless that is None.

        Raises InferenceError UNAVAILABLE if there is no memory for it, or the model was unloaded.
        """
        if self._is_closed:
            self._check_open()
        skew = -lead % ALIGNMENT
        try:
            start = self._arena.allocate(size + skew)
        except OutOfMemoryError as exc:
            raise self._no_room(size, exc) from exc
        offset = start + skew
        if data is not None:
            self._view[offset : offset + size] = data
        return RequestSlot(self._arena, self._view, start, offset, size)

    def allocate_bare(self, size: int, lead: int = 0) -> RequestSlot:
        """As `allocate`, for a slot that a thread fills, and before commits."""
        self._check_open()
        skew = -lead % ALIGNMENT
        try:
            start, bare = self._arena.allocate_bare(size + skew)
        except OutOfMemoryError as exc:
            raise self._no_room(size, exc) from exc
        slot = RequestSlot(self._arena, self._view, start, start + skew, size)
        return BareSlot(slot, partial(self._commit, size, start, bare)) if bare else slot

    def allocate_growing(self, size: int, lead: int = 0) -> RequestSlot:
        """As `allocate`, for a body that is still to arrive: see GrowingSlot."""
        self._check_open()
        skew = -lead % ALIGNMENT
        try:
            start, bare = self._arena.allocate_bare(size + skew, LARGE_BYTES)
        except OutOfMemoryError as exc:
            raise self._no_room(size, exc) from exc
        slot = RequestSlot(self._arena, self._view, start, start + skew, size)
        return GrowingSlot(slot, bare, partial(self._commit, size)) if bare else slot

    def _check_open(self) -> None:
        if self._is_closed:
            raise InferenceError(f"Model '{self._model_name}' was unloaded", Code.UNAVAILABLE)

    def _commit(self, size: int, start: int, bare: int) -> None:
        try:
            self.region.commit(start, bare)
        except OutOfMemoryError as exc:
            raise self._no_room(size, exc) from exc

    def _no_room(self, size: int, reason: OutOfMemoryError) -> InferenceError:
        message = f"no room for a request of {size} bytes to model '{self._model_name}': {reason}"
        return InferenceError(message, Code.UNAVAILABLE)

    def place(self, request: InferRequest) -> RequestSlot | None:
        """Copy the inputs of `request` that are not in the region yet into one new slot, and return that.

        Raises InferenceError UNAVAILABLE if there is no memory for them.
        """
        size = 0
        for tensor in request.inputs:
            if tensor.offset < 0:
                size += -(-len(tensor.data) // ALIGNMENT) * ALIGNMENT
        if not size:
            for tensor in request.inputs:
                if tensor.offset < 0:
                    tensor.offset = 0  # an empty tensor: any offset is valid
            return None
        slot = self.allocate(size)
        request.slots.append(slot)
        view = slot.view
        at = 0
        for tensor in request.inputs:
            if tensor.offset < 0:
                n = len(tensor.data)
                view[at : at + n] = tensor.data
                tensor.offset = slot.offset + at
                at += -(-n // ALIGNMENT) * ALIGNMENT
        return slot

    def reclaim(self) -> None:
        """Free the pages that a stub, which has ended, allocated where no slot is."""
        self._arena.reclaim()

    def close(self) -> None:
        """Unmap the region as soon as nobody else counts on it. Nothing can be allocated there any more."""
        self._is_closed = True
        self._view = memoryview(b"")
        self.region.close()

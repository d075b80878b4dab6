# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The request memory of one model version: one region that the host allocates in and all its stubs map."""

from __future__ import annotations

from pyruntime.runtime.inference import InferRequest
from pyruntime.runtime.memory.regions import create_region
from pyruntime.utils.arena import ALIGNMENT, Arena
from pyruntime.utils.errors import Code, InferenceError, OutOfMemoryError
from pyruntime.utils.regions import Region


class RequestSlot:
    """A slot of a request region. `view` is exactly the size asked for."""

    __slots__ = ("_arena", "offset", "view")

    def __init__(self, arena: Arena, offset: int, view: memoryview) -> None:
        self._arena = arena
        self.offset = offset
        self.view = view

    def free(self) -> None:
        """Give the slot back; its view is dead from here on."""
        self._arena.free(self.offset)


class RequestMemory:
    """Owns the request region. Slots are allocated and freed on the event loop's thread only."""

    def __init__(self, model_name: str, first_bytes: int, growth_bytes: int) -> None:
        """Make the region. Raises OutOfMemoryError."""
        self._model_name = model_name
        self.region: Region = create_region(f"requests to {model_name}")
        self._arena = Arena(self.region, growth_bytes)
        self._view = self.region.view
        self._arena.reserve(first_bytes)

    def __repr__(self) -> str:
        return f"<RequestMemory {self._model_name} {self._arena}>"

    @property
    def live(self) -> int:
        """How many slots are in use."""
        return self._arena.live

    def allocate(self, size: int, lead: int = 0) -> RequestSlot:
        """A slot for `size` bytes, placed so that byte `lead` of it is aligned for any datatype.

        Raises InferenceError UNAVAILABLE if there is no memory for it.
        """
        skew = -lead % ALIGNMENT
        try:
            offset = self._arena.allocate(size + skew)
        except OutOfMemoryError as exc:
            raise InferenceError(
                f"no room for a request of {size} bytes to model '{self._model_name}': {exc}", Code.UNAVAILABLE
            ) from exc
        if not skew:
            return RequestSlot(self._arena, offset, self._view[offset : offset + size])
        return _SkewedSlot(self._arena, offset, self._view[offset + skew : offset + skew + size], skew)

    def place(self, request: InferRequest) -> None:
        """Copy those inputs of `request` that are not in the region yet into one new slot of its.

        Raises InferenceError UNAVAILABLE if there is no memory for them.
        """
        size = 0
        for tensor in request.inputs:
            if tensor.offset < 0:
                size += -(-len(tensor.data) // ALIGNMENT) * ALIGNMENT
        if not size:
            for tensor in request.inputs:
                if tensor.offset < 0:
                    tensor.offset = 0  # nothing in it: anywhere will do
            return
        slot = self.allocate(size)
        request.slots.append(slot)
        at = 0
        for tensor in request.inputs:
            if tensor.offset < 0:
                n = len(tensor.data)
                slot.view[at : at + n] = tensor.data
                tensor.offset = slot.offset + at
                at += -(-n // ALIGNMENT) * ALIGNMENT

    def close(self) -> None:
        """Unmap the region."""
        self._view = memoryview(b"")
        self.region.close()


class _SkewedSlot(RequestSlot):
    """A slot whose view starts a little into it."""

    __slots__ = ("_start",)

    def __init__(self, arena: Arena, start: int, view: memoryview, skew: int) -> None:
        super().__init__(arena, start + skew, view)
        self._start = start

    def free(self) -> None:
        self._arena.free(self._start)

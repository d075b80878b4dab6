# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the responses of a model, and the inputs of its calls, for messages: tensors into the response region.

One slot has all outputs of one response, so that the host frees it by one number. A call to another model has one slot
for all inputs that are not in shared memory yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set, Tuple

from pyruntime.stub import gpus
from pyruntime.stub.client_memory import ClientMemory, ClientOutputs, GpuOutputs
from pyruntime.stub.memory import SHRUNK, Regions
from pyruntime.stub.pb_utils.errors import TritonModelException
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.stub.response_memory import SMALL_BYTES, ResponseMemory
from pyruntime.utils.arena import ALIGNMENT, LARGE_BYTES
from pyruntime.utils.errors import Code, LocalError, OutOfMemoryError
from pyruntime.utils.messages import (
    INLINE_BYTES_MAX,
    NO_SLOT,
    OK,
    SLOT,
    STATES,
    TENSORS,
    StatelessResponse,
    WireResponse,
    encode_error,
)
from pyruntime.utils.regions import Region
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, TensorRef

if TYPE_CHECKING:
    from pyruntime.stub.gpu_memory import GpuMemory
    from pyruntime.stub.pb_utils.gpu_tensor import OnGpu

# Longer error messages are cut, because people read them.
MESSAGE_CHARS_MAX = 64 << 10


class ResponseWriter(ResponseMemory):
    """Encodes responses, and the inputs of calls, for messages. Thread-safe."""

    def __init__(self, region: Region, growth_bytes: int, model_name: str, outputs: Set[str]) -> None:
        super().__init__(region, growth_bytes)
        self._model_name = model_name
        self.outputs = outputs
        # Called with the name of an output that is left out because the model has none of that name.
        self.on_undeclared: Callable[[str], None] = _nothing

    def drop(self, response: WireResponse) -> None:
        """Free the memory of a response that is not sent."""
        slots = [response[SLOT]] + [slot for slot, _ in response[STATES:]]
        self.free([slot for slot in slots if slot != NO_SLOT])

    def place(self, tensors: List[Tensor], regions: Regions) -> Tuple[int, List[TensorRef]]:
        """The inputs of a call: their slot, or NO_SLOT, and references to them.

        Small inputs are part of the message. A large array that is in shared memory already stays there, and must not
        be freed before the call ends. Raises TritonModelException if there is no memory.
        """
        if gpus.known and any(type(tensor) is not Tensor for tensor in tensors):
            placed = self._place_on_gpu(tensors, regions)
            if placed is not None:
                return placed
        parts = []
        size = 0
        for tensor in tensors:
            contents = tensor._encoded()
            n = len(contents) if type(contents) is bytes else contents.nbytes
            size += n
            parts.append((tensor._name, tensor._datatype, tensor._shape, contents, n))
        if size > INLINE_BYTES_MAX:
            return self._place(parts, regions)
        refs: List[TensorRef] = []
        for name, datatype, shape, contents, n in parts:
            if type(contents) is not bytes:
                contents = contents.tobytes()
            refs.append((name, datatype, shape, contents, n, MEMORY_CPU, 0))
        return NO_SLOT, refs

    def _place_on_gpu(self, tensors: List[Tensor], regions: Regions) -> Optional[Tuple[int, List[TensorRef]]]:
        """As `place`, where inputs stay on a GPU, and nothing is part of the message. None if none can stay."""
        memory = regions.gpu
        places, owned = memory.place_all(tensors, passes_on=True)
        if not any(places):
            return None
        parts: List[Any] = []
        try:
            for tensor, place in zip(tensors, places):
                if place is None:
                    contents = tensor._encoded()
                    n = len(contents) if type(contents) is bytes else contents.nbytes
                    parts.append((tensor._name, tensor._datatype, tensor._shape, contents, n))
            slot, refs = self._place(parts, regions)
            slot = self._own(slot, memory, owned)
        except BaseException as exc:
            memory.free_all(owned)
            if isinstance(exc, OutOfMemoryError):
                raise TritonModelException(f"no room for a request: {exc}") from exc
            raise
        return slot, _merged(tensors, places, refs)

    def _place(self, parts: List[Any], regions: Regions) -> Tuple[int, List[TensorRef]]:
        places = []
        size = 0
        for _, _, _, contents, n in parts:
            at = regions.locate(contents) if n >= LARGE_BYTES and type(contents) is not bytes else None
            places.append((at, size))
            if at is None:
                size += -(-n // ALIGNMENT) * ALIGNMENT
        slot = NO_SLOT
        if size:
            try:
                with self._lock:
                    slot = self._allocate(size)
            except OutOfMemoryError as exc:
                raise TritonModelException(f"no room for a request of {size} bytes: {exc}") from exc
        refs: List[TensorRef] = []
        for (name, datatype, shape, contents, n), (at, offset) in zip(parts, places):
            if at is None:
                at = max(slot, 0) + offset if n else 0
                self._copy(contents, at, n, slot)
            refs.append((name, datatype, shape, at, n, MEMORY_CPU, 0))
        return slot, refs

    def write(self, response: InferenceResponse, wanted: Set[str]) -> WireResponse:
        """The encoded `response`, with its `wanted` outputs in shared memory.

        If a response cannot be written, only its own request fails.
        """
        try:
            error = response._error
            if error is not None:
                return encode_error(int(error.code()), error.message()[:MESSAGE_CHARS_MAX])
            if type(wanted) is set:
                return self._write(response, wanted, None)
            return self._write_elsewhere(response, wanted)
        except Exception as exc:
            return encode_error(Code.INTERNAL, f"a response of model '{self._model_name}' cannot be sent: {exc!r}")

    def _write_elsewhere(self, response: InferenceResponse, wanted: Set[str]) -> StatelessResponse:
        """Like `_write`, if outputs may have places other than the region, or inputs lie in memory of clients."""
        if type(wanted) is GpuOutputs:
            return self._write_on_gpu(response, wanted)
        if type(wanted) is not ClientOutputs:
            return self._write(response, wanted, None)
        wire = self._write(response, wanted, wanted.memory)
        if wanted.memory.has_shrunk():
            self.drop(wire)
            return encode_error(Code.UNAVAILABLE, f"an input cannot be read: {SHRUNK}")
        return wire

    def _write(
        self, response: InferenceResponse, wanted: Set[str], memory: Optional[ClientMemory]
    ) -> StatelessResponse:
        """`memory` is that of the client of a request, if it has any."""
        tensors = []
        size = 0
        for tensor in response._output_tensors:
            name, datatype, contents = tensor._name, tensor._datatype, tensor._array
            if name not in wanted:
                if name not in self.outputs:
                    self.on_undeclared(name)
                continue
            if contents is None or datatype == "BYTES":
                contents = tensor._encoded()
            if type(contents) is bytes:
                n = len(contents)
            else:
                n = contents.nbytes
                if n <= SMALL_BYTES:
                    contents = contents.tobytes()
            tensors.append((name, datatype, tensor._shape, size, n, contents))
            if memory is None or name not in memory.places:
                size += -(-n // ALIGNMENT) * ALIGNMENT
        if memory is not None and memory.places:
            return self._write_placed(response, memory, tensors, size)
        if not size:
            return OK, "", NO_SLOT, [(*tensor[:3], 0, 0, MEMORY_CPU, 0) for tensor in tensors], response._parameters
        try:
            with self._lock:
                if self._taken_back:  # as _allocate does, which costs a call
                    self._free_loans()
                slot = self._arena.allocate(size)
        except OutOfMemoryError as exc:
            return encode_error(Code.UNAVAILABLE, f"no room for a response of {size} bytes: {exc}")
        refs: List[TensorRef] = []
        for name, datatype, shape, at, n, contents in tensors:
            at += slot
            if type(contents) is bytes:
                self._map[at : at + n] = contents
            else:
                self._copy(contents, at, n, slot)
            refs.append((name, datatype, shape, at, n, MEMORY_CPU, 0))
        return OK, "", slot, refs, response._parameters

    def _write_on_gpu(self, response: InferenceResponse, wanted: GpuOutputs) -> StatelessResponse:
        """Like `_write`, if some outputs may stay on a GPU."""
        every = response._output_tensors
        staying = [tensor for tensor in every if tensor._name in wanted.staying and tensor._name in wanted]
        if not any(type(tensor) is not Tensor for tensor in staying):
            return self._write(response, set(wanted), None)
        memory = wanted.regions.gpu
        places, owned = memory.place_all(staying, passes_on=False)
        for index, (tensor, place) in enumerate(zip(staying, places)):
            if place is not None and place.device != wanted.staying[tensor._name]:
                # The instances were on that GPU when the request came, and were exchanged since.
                memory.free(place.address)
                owned.remove(place.address)
                places[index] = None
        by_tensor = {id(tensor): place for tensor, place in zip(staying, places)}
        others = [tensor for tensor in every if by_tensor.get(id(tensor)) is None]
        slot = NO_SLOT
        try:
            wire = self._write(InferenceResponse._from_wire(others, response._parameters), set(wanted), None)
            slot = wire[SLOT]
            if wire[0] == OK:
                slot = self._own(slot, memory, owned)
        except OutOfMemoryError as exc:
            memory.free_all(owned)
            return encode_error(Code.UNAVAILABLE, f"no room for a response: {exc}")
        except BaseException:
            memory.free_all(owned)
            raise
        if wire[0] != OK:
            memory.free_all(owned)
            return wire
        written = [tensor for tensor in every if tensor._name in wanted]
        refs = _merged(written, [by_tensor.get(id(tensor)) for tensor in written], wire[TENSORS])
        return OK, "", slot, refs, response._parameters

    def _write_placed(
        self, response: InferenceResponse, memory: ClientMemory, tensors: List[Any], size: int
    ) -> StatelessResponse:
        """Like `_write`, if some outputs go to client memory, and `size` bytes to the region."""
        places = memory.places
        placed = [(name, contents, n) for name, _, _, _, n, contents in tensors if name in places]
        for name, _, n in placed:
            if n > places[name][1]:
                return encode_error(
                    Code.INTERNAL,
                    f"shared memory size specified with the request for output '{name}' ({places[name][1]} bytes) "
                    f"should be at least {n} bytes to hold the results",
                )
        slot = NO_SLOT
        refs: List[TensorRef] = []
        try:
            memory.write(placed)
            if size:
                with self._lock:
                    slot = self._allocate(size)
        except LocalError as exc:
            return encode_error(Code.UNAVAILABLE, f"a response cannot be put in its place: {exc}")
        except OutOfMemoryError as exc:
            return encode_error(Code.UNAVAILABLE, f"no room for a response of {size} bytes: {exc}")
        for name, datatype, shape, at, n, contents in tensors:
            if name in places:
                at = places[name][0]
            else:
                at = max(slot, 0) + at if n else 0
                self._copy(contents, at, n, slot)
            refs.append((name, datatype, shape, at, n, MEMORY_CPU, 0))
        return OK, "", slot, refs, response._parameters


def _nothing(name: str) -> None:
    """The default callback."""


def _merged(tensors: List[Tensor], places: List[Optional[OnGpu]], others: List[TensorRef]) -> List[TensorRef]:
    """References to tensors in their order: those on a GPU have a place, and `others` refer to the rest."""
    rest = iter(others)
    refs: List[TensorRef] = []
    for tensor, place in zip(tensors, places):
        if place is None:
            refs.append(next(rest))
        else:
            size = tensor._encoded().nbytes
            refs.append((tensor._name, tensor._datatype, tensor._shape, place.address, size, MEMORY_GPU, place.device))
    return refs


class StateWriter(ResponseWriter):
    """Also writes the states that a model returns for the sequence of a request.

    They lie in a slot of their own, because they are kept until the next request of the sequence, the outputs only
    until they are sent. Those on the model's GPU stay there, if the model reads inputs there: then `gpu_memory` is that
    of stub/host.py.
    """

    gpu_memory: Optional[Callable[[], Optional[Tuple[int, GpuMemory]]]] = None

    def __init__(self, region: Region, growth_bytes: int, model_name: str, outputs: Set[str], states: Set[str]) -> None:
        """`states` are the names of the state outputs, which may be outputs for clients as well."""
        super().__init__(region, growth_bytes, model_name, outputs | states)
        self._states = states

    def write(self, response: InferenceResponse, wanted: Set[str]) -> WireResponse:
        """See ResponseWriter."""
        wire = super().write(response, wanted)
        if wire[0] != OK:
            return wire
        try:
            states = response._states(self._states)
            return (*wire[:STATES], self._write_states(states)) if states else wire
        except Exception as exc:
            self.drop(wire)
            code = Code.UNAVAILABLE if isinstance(exc, OutOfMemoryError) else Code.INTERNAL
            return encode_error(code, f"the states that model '{self._model_name}' returned cannot be kept: {exc}")

    def _write_states(self, states: List[Tensor]) -> Tuple[int, List[TensorRef]]:
        """The slot of states, and references to them. Raises OutOfMemoryError and TritonModelException."""
        staying = self._staying(states)
        if staying is None:
            return self._put(*_laid_out(states))
        memory, on_gpu = staying
        places, owned = memory.place_all(on_gpu, passes_on=False)
        by_tensor = {id(tensor): place for tensor, place in zip(on_gpu, places)}
        try:
            slot, refs = self._put(*_laid_out([each for each in states if by_tensor.get(id(each)) is None]))
            slot = self._own(slot, memory, owned)
        except BaseException:
            memory.free_all(owned)
            raise
        return slot, _merged(states, [by_tensor.get(id(each)) for each in states], refs)

    def _staying(self, states: List[Tensor]) -> Optional[Tuple[GpuMemory, List[Tensor]]]:
        """The states on the model's GPU, and the memory there that outlives them; None if there are none."""
        if self.gpu_memory is None or all(type(tensor) is Tensor for tensor in states):
            return None
        found = self.gpu_memory()
        if found is None:
            return None
        gpu, memory = found
        on_gpu = [tensor for tensor in states if getattr(tensor._array, "gpu", None) == gpu]
        return (memory, on_gpu) if on_gpu else None

    def _put(self, parts: List[Any], size: int) -> Tuple[int, List[TensorRef]]:
        """Copy tensors of `size` bytes together into a new slot. Raises OutOfMemoryError."""
        slot = NO_SLOT
        if size:
            with self._lock:
                slot = self._allocate(size)
        refs: List[TensorRef] = []
        for name, datatype, shape, at, n, contents in parts:
            at = max(slot, 0) + at if n else 0
            self._copy(contents, at, n, slot)
            refs.append((name, datatype, shape, at, n, MEMORY_CPU, 0))
        return slot, refs


def _laid_out(tensors: List[Tensor]) -> Tuple[List[Any], int]:
    """Tensors one behind the other, each with its offset and size, and the size of all."""
    parts = []
    size = 0
    for tensor in tensors:
        contents = tensor._encoded()
        n = len(contents) if type(contents) is bytes else contents.nbytes
        parts.append((tensor._name, tensor._datatype, tensor._shape, size, n, contents))
        size += -(-n // ALIGNMENT) * ALIGNMENT
    return parts, size

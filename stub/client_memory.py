# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of one request in client shared memory.

A client may write to its memory as soon as it has the last response, and a model may still keep the inputs: in Triton
it has a copy of them. Here it has a private mapping, in which the kernel copies a page only when this process writes to
it. So if the model keeps an input, the stub replaces the mapping by a copy before it answers the client. It does the
same before it writes an output that overlaps an input.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Set, Tuple

from pyruntime.stub.guard import Guard
from pyruntime.stub.memory import HeldMap, Regions, Source
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import LocalError
from pyruntime.utils.request_codec import MEMORY_GPU

if TYPE_CHECKING:
    from pyruntime.stub.pb_utils.request import InferenceRequest
    from pyruntime.stub.pb_utils.tensor import Tensor
    from pyruntime.utils.request_codec import OutputPlaceRef, TensorRef


class ClientMemory(Source):
    """The client memory of one request. `places` are the places of its outputs there, by name."""

    def __init__(self, regions: Regions, places: Dict[str, OutputPlaceRef], tensors: Iterable[TensorRef]) -> None:
        """`tensors` are the inputs."""
        self.places = places
        self._regions = regions
        self._inputs = [
            (at, size)
            for _, _, _, at, size, kind, _ in tensors
            if type(at) is int and kind != MEMORY_GPU and regions.is_granted(at)
        ]
        self._request: Any = None
        self._maps: List[Any] = []
        self._guards: List[Guard] = []
        for at in [*[at for at, _ in self._inputs], *[place[0] for place in places.values()]]:
            regions.expect(at)

    def belong(self, request: InferenceRequest) -> None:
        """Set the request."""
        self._request = weakref.ref(request)

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source."""
        buffer, offset = self._regions.buffer(at, size)
        if type(buffer) is HeldMap:
            self._maps.append(weakref.ref(buffer))
            if buffer.guard is not None:
                self._guards.append(buffer.guard)
        return buffer, offset

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return self._regions.read(at, size)

    def on_gpu(self, ref: TensorRef, hold: Any) -> Tensor:
        """See Source."""
        return self._regions.on_gpu(ref, hold)

    def has_shrunk(self) -> bool:
        """Whether inputs were missing in part when they were read, so that the outputs are of no use."""
        return any(guard.is_hit for guard in self._guards)

    def keep(self) -> None:
        """Replace the mappings of inputs by copies, so that later writes of the client do not change their arrays."""
        request = None if self._request is None else self._request()
        if request is not None:
            for tensor in request.inputs():
                if tensor._region is not None and tensor._array is None and self._regions.is_granted(tensor._address):
                    with contextlib.suppress(LocalError):  # the model gets the error if it reads the input
                        tensor._contents()
        maps, self._maps = self._maps, []
        for reference in maps:
            mapped = reference()
            if mapped is not None:
                mapped.detach()

    def write(self, outputs: List[Tuple[str, Any, int]]) -> None:
        """Write outputs (name, contents and size) to client memory. Raises LocalError if that fails."""
        if any(_overlap(self.places[name][0], size, *read) for name, _, size in outputs for read in self._inputs):
            self.keep()
        for name, contents, size in outputs:
            self._regions.write(self.places[name][0], contents, size)


class ClientOutputs(Set[str]):
    """The names of the requested outputs, and the client memory for some of them."""

    def __init__(self, names: Iterable[str], memory: ClientMemory) -> None:
        super().__init__(names)
        self.memory = memory


class GpuOutputs(Set[str]):
    """The names of the requested outputs, `staying` those that may stay on a GPU, in memory of `regions`.

    Of each that is the number of the GPU, which is the server's.
    """

    def __init__(self, names: Iterable[str], places: Dict[str, OutputPlaceRef], regions: Regions) -> None:
        super().__init__(names)
        self.staying = {name: place[3] for name, place in places.items()}
        self.regions = regions


def _overlap(at: int, size: int, other: int, other_size: int) -> bool:
    """Whether two address ranges overlap. Those of different regions never do, because an address has the region."""
    return split(at)[0] == split(other)[0] and at < other + other_size and other < at + size

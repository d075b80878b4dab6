# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The shared memory of clients, as one request has to do with it: inputs that lie there, outputs that go there.

A client may write to its memory again as soon as it has the last response, and a model may still hold the inputs then:
in Triton it has a copy. Here it has a private mapping, of which the kernel copies a page when it is first written to,
and nothing before that. So a copy takes the place of the mapping, if the model does hold on to it, before the client is
answered; and before an output is written to where an input lies.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Set, Tuple

from pyruntime.stub.memory import HeldMap, Regions, Source
from pyruntime.utils.addresses import split
from pyruntime.utils.errors import LocalError

if TYPE_CHECKING:
    from pyruntime.stub.pb_utils.request import InferenceRequest
    from pyruntime.utils.request_codec import OutputPlaceRef, TensorRef


class ClientMemory(Source):
    """See the module. `places` are the outputs that go to a client's memory: see OutputPlaceRef."""

    def __init__(self, regions: Regions, places: Dict[str, OutputPlaceRef], tensors: Iterable[TensorRef]) -> None:
        """`tensors` are the inputs."""
        self.places = places
        self._regions = regions
        self._inputs = [(at, size) for _, _, _, at, size, _, _ in tensors if type(at) is int and regions.is_granted(at)]
        self._request: Any = None
        self._maps: List[Any] = []
        for at in [*[at for at, _ in self._inputs], *[place[0] for place in places.values()]]:
            regions.expect(at)

    def belong(self, request: InferenceRequest) -> None:
        """This is the request."""
        self._request = weakref.ref(request)

    def buffer(self, at: Any, size: int) -> Tuple[Any, int]:
        """See Source."""
        buffer, offset = self._regions.buffer(at, size)
        if type(buffer) is HeldMap:
            self._maps.append(weakref.ref(buffer))
        return buffer, offset

    def read(self, at: Any, size: int) -> bytes:
        """See Source."""
        return self._regions.read(at, size)

    def keep(self) -> None:
        """From now on no array of an input changes when the client's memory does."""
        request = None if self._request is None else self._request()
        if request is not None:
            for tensor in request.inputs():
                if tensor._array is None and self._regions.is_granted(tensor._address):
                    with contextlib.suppress(LocalError):  # it cannot be read: the model will see, if it tries to
                        tensor._contents()
        maps, self._maps = self._maps, []
        for reference in maps:
            mapped = reference()
            if mapped is not None:
                mapped.detach()

    def write(self, outputs: List[Tuple[str, Any, int]]) -> None:
        """Put outputs in their places: name, contents and size of each. Raises LocalError if that is not possible."""
        if any(_overlap(self.places[name][0], size, *read) for name, _, size in outputs for read in self._inputs):
            self.keep()
        for name, contents, size in outputs:
            self._regions.write(self.places[name][0], contents, size)


class ClientOutputs(Set[str]):
    """The names of the outputs that a request wants, and the memory that some of them go to."""

    def __init__(self, names: Iterable[str], memory: ClientMemory) -> None:
        super().__init__(names)
        self.memory = memory


def _overlap(at: int, size: int, other: int, other_size: int) -> bool:
    """Whether two ranges of addresses have a byte in common. Numbers of regions are never so close that they could."""
    return split(at)[0] == split(other)[0] and at < other + other_size and other < at + size

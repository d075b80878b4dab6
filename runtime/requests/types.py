# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A request and its response as values, between frontends and models. (pure)

Every request creates some of these, so they are plain slotted classes: frozen ones are slower.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyruntime.runtime.regions import ClientRegion, GpuHandle, GpuRegion, SharedRegion
from pyruntime.utils.errors import Code, InferenceError

# What is derived from the outputs of one kind of response: an ensemble derives something for each step that reads them.
DERIVED_MAX = 64

# A value of the "parameters" of a request or a response.
Parameter = str | int | bool | float


class Slot(Protocol):
    """A piece of a model's request region. The owner frees it exactly once, when it is no longer read."""

    @property
    def offset(self) -> int: ...

    @property
    def view(self) -> memoryview: ...

    def free(self) -> None: ...


def free_slots(slots: list[Slot]) -> None:
    """Free all of them."""
    for slot in slots:
        slot.free()


@dataclass(frozen=True, slots=True)
class ClientContents:
    """Contents that lie in a client's shared memory, `size` bytes at `address`. The host does not look at them."""

    memory: ClientRegion
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where an output goes, or lies: `byte_size` bytes of a region that a client has registered under this name.

    `contents` is the memory that the stub may write.
    """

    region: str
    offset: int
    byte_size: int
    contents: ClientContents = field(compare=False, repr=False)

    def filled(self, size: int) -> OutputPlace:
        """The place of an output of `size` bytes."""
        return replace(self, byte_size=size)


class GpuMemory(GpuHandle, Protocol):
    """Memory of a client on a GPU: see memory/cuda_regions.py. Both copies raise InferenceError."""

    device_id: int

    def for_stubs(self) -> GpuRegion: ...

    async def read(self, at: int, size: int, region: SharedRegion, offset: int) -> None: ...

    async def write(self, at: int, size: int, region: SharedRegion, offset: int) -> None: ...

    def count_on(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuContents:
    """Contents that lie on a GPU, `size` bytes at `offset` of the memory of a client."""

    memory: GpuMemory
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """As OutputPlace, on a GPU. No stub and no backend sees it: the output is copied there when it is made."""

    region: str
    offset: int
    byte_size: int
    contents: GpuContents = field(compare=False, repr=False)

    def filled(self, size: int) -> GpuPlace:
        """The place of an output of `size` bytes."""
        return replace(self, byte_size=size)


@dataclass(frozen=True, slots=True)
class OnGpu:
    """Where a tensor of a model lies that stays on its GPU, for other models or for the memory of a client there."""

    memory: GpuRegion
    byte_size: int


@dataclass(slots=True)
class InputTensor:
    """One input: `data` is its contents in C order (BYTES in the four-byte-length form).

    `offset` says where the contents lie in the model's request region, in bytes, or is their address in another region;
    -1 while they lie elsewhere. With `client` they lie in a client's memory, and `data` is empty; so it is while they
    lie on a `gpu`: in memory of a client, from where they are copied before the request is checked, or of a model.
    `strings` is how many elements BYTES have, -1 while they are not counted.
    """

    name: str
    datatype: str
    shape: list[int]
    data: memoryview | bytes
    offset: int = -1
    client: ClientContents | None = None
    strings: int = field(default=-1, compare=False)
    gpu: GpuContents | OnGpu | None = None

    @property
    def byte_size(self) -> int:
        """The size of the contents, in bytes."""
        if isinstance(self.gpu, OnGpu):
            return self.gpu.byte_size
        return len(self.data) if self.client is None else self.client.size


@dataclass(slots=True)
class OutputTensor:
    """One output: `data` is a view of the instance's response region, valid until the response is released.

    `address` is the address of the view for other stubs: see utils/addresses.py. It is 0 for private memory of the
    host. With `place` the output lies in memory of the client, or on a GPU, and `data` is empty.
    """

    name: str
    datatype: str
    shape: list[int]
    data: memoryview | bytes
    address: int = 0
    place: OutputPlace | GpuPlace | OnGpu | None = None

    @property
    def byte_size(self) -> int:
        """The size of the contents, in bytes."""
        return len(self.data) if self.place is None else self.place.byte_size


class KeptOutputs(list[OutputTensor]):
    """The outputs of all responses that are described alike. Nobody may change them.

    `derived` is what receivers have derived from them for the next such response, by keys of their own. It is bounded
    by DERIVED_MAX: see `derive`.
    """

    __slots__ = ("derived",)

    def __init__(self, outputs: Iterable[OutputTensor]) -> None:
        super().__init__(outputs)
        self.derived: dict[Hashable, Any] = {}

    def derive(self, key: Hashable, value: object) -> None:
        """Keep a derived value."""
        if len(self.derived) >= DERIVED_MAX:
            self.derived.clear()
        self.derived[key] = value


@dataclass(slots=True)
class InferRequest:
    """One inference request. `version` is -1 for "by the version policy"; `timeout_us` is 0 for none.

    `requested_outputs` is None if the client names none, which means all of them; `output_places` are the places of
    those that go to the client's own memory, and `gpu_places` to its memory on a GPU. `uses_gpu`: inputs or outputs lie
    there.
    """

    model_name: str
    version: int = -1
    id: str = ""
    inputs: list[InputTensor] = field(default_factory=list)
    requested_outputs: list[str] | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    batch_size: int = 1
    trace: str = ""
    slots: list[Slot] = field(default_factory=list)
    output_places: dict[str, OutputPlace] = field(default_factory=dict)
    uses_gpu: bool = False
    gpu_places: Mapping[str, GpuPlace] | None = None

    def place_output(self, name: str, place: OutputPlace | GpuPlace) -> None:
        """Have an output go to memory of the client."""
        if isinstance(place, OutputPlace):
            self.output_places[name] = place
        else:
            self.uses_gpu = True
            self.gpu_places = {**(self.gpu_places or {}), name: place}

    def free(self) -> None:
        """Free the request memory. Idempotent: the slots are forgotten."""
        slots, self.slots = self.slots, []
        free_slots(slots)

    def failure(self, message: str, code: Code = Code.INTERNAL) -> InferenceError:
        """An error about this request: see request_failure."""
        return request_failure(self.id, message, code)


def request_failure(id: str, message: str, code: Code = Code.INTERNAL) -> InferenceError:
    """An error about one request, under Triton's `[request id: ...]` prefix."""
    return InferenceError(f"[request id: {id or '<id_unknown>'}] {message}", code)


def _nothing_to_release() -> None:
    pass


@dataclass(slots=True)
class InferResponse:
    """One successful response. `release` frees its memory when the outputs are no longer read; call it once.

    A model that sends many responses to one request waits while too many of them are not taken. `take` marks this one
    as taken, for receivers that keep it longer; `release` does so, too. `regions` are those that its outputs lie in.
    """

    model_name: str
    model_version: int
    id: str
    outputs: list[OutputTensor]
    parameters: dict[str, Parameter] = field(default_factory=dict)
    release: Callable[[], None] = _nothing_to_release
    take: Callable[[], None] = _nothing_to_release
    regions: Sequence[SharedRegion | GpuRegion] = ()


def keep_open(response: InferResponse) -> None:
    """Keep the regions of a response open until its release, also if the process that made it ends before.

    For those who pass a response on later.
    """
    regions, release_outputs = response.regions, response.release

    def release() -> None:
        release_outputs()
        for region in regions:
            region.close()

    for region in regions:
        region.count_on()
    response.release = release

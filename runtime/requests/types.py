# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A request and its response as values: what frontends make, schedulers queue and instances answer. (pure)

The hot path handles a few of these for every request, hence plain slotted classes rather than frozen ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyruntime.runtime.regions import ClientRegion
from pyruntime.utils.errors import Code, InferenceError

# What a client may put under "parameters", and what a response carries back.
Parameter = str | int | bool | float


class Slot(Protocol):
    """A piece of a model's request region. The owner frees it exactly once, when nobody reads it any more."""

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

    `contents` are the bytes that the stub may write, for whoever sends it there.
    """

    region: str
    offset: int
    byte_size: int
    contents: ClientContents = field(compare=False, repr=False)

    def filled(self, size: int) -> OutputPlace:
        """The place of an output that has turned out to have so many bytes."""
        return replace(self, byte_size=size)


@dataclass(slots=True)
class InputTensor:
    """One input: `data` is its contents in C order (BYTES in the four-byte-length form).

    `offset` says where the contents lie in the model's request region, in bytes, or is their address in another region;
    -1 while they lie elsewhere. With `client` they lie in a client's memory, and `data` is empty. `strings` is how many
    elements BYTES are known to have, -1 while nobody has counted them.
    """

    name: str
    datatype: str
    shape: list[int]
    data: memoryview | bytes
    offset: int = -1
    client: ClientContents | None = None
    strings: int = field(default=-1, compare=False)

    @property
    def byte_size(self) -> int:
        """How many bytes the contents have, wherever they are."""
        return len(self.data) if self.client is None else self.client.size


@dataclass(slots=True)
class OutputTensor:
    """One output: `data` is a view of the instance's response region, valid until the response is released.

    `address` is where that is for other stubs: see utils/addresses.py. With `place` the client finds the output in its
    own memory, and `data` is empty.
    """

    name: str
    datatype: str
    shape: list[int]
    data: memoryview | bytes
    address: int = 0
    place: OutputPlace | None = None

    @property
    def byte_size(self) -> int:
        """How many bytes the contents have, wherever they are."""
        return len(self.data) if self.place is None else self.place.byte_size


@dataclass(slots=True)
class InferRequest:
    """One inference request. `version` is -1 for "by the version policy"; `timeout_us` is 0 for none.

    `requested_outputs` is None where the client named none, which means all of them; `output_places` are those that go
    to the client's own memory.
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

    def free(self) -> None:
        """Give back the request memory. Safe to call again: the slots are forgotten."""
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
    """One successful response. `release` gives its memory back once nobody reads the outputs any more; call it once.

    A model that sends many responses to one request waits while too many of them are not taken. `take` says that this
    one is, for those who keep it longer; `release` says so too. `region` is where the outputs lie, if anywhere.
    """

    model_name: str
    model_version: int
    id: str
    outputs: list[OutputTensor]
    parameters: dict[str, Parameter] = field(default_factory=dict)
    release: Callable[[], None] = _nothing_to_release
    take: Callable[[], None] = _nothing_to_release
    region: object = None

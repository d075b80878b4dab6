# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Implicit state: tensors that the server keeps for a sequence from one request to the next. (pure)

A request receives them as inputs, and its model replaces them by its state outputs. A C++ backend in this process
gives the contents themselves. A stub writes them into its response region, or into memory that it leases on its GPU,
where they stay: the next request of the sequence goes to the same stub and refers to them, so the host copies nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pyruntime.runtime.config.spec import StateSpec
from pyruntime.runtime.regions import GpuRegion, GrantedRegion
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import Code, InferenceError
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU


class StateMemory:
    """Shared memory with states that a model has returned, as a slot of the jobs that read them (see requests.types).

    It lies in `regions`, of which some may be on a GPU. Its creator has one use of it, and `share` adds one. The last
    `free` frees it.
    """

    __slots__ = ("_on_free", "_uses", "regions")

    offset = 0
    view = memoryview(b"")

    def __init__(self, region: GrantedRegion, on_free: Callable[[], None], on_gpu: Iterable[GpuRegion] = ()) -> None:
        self.regions: Sequence[GrantedRegion] = (region, *on_gpu)
        self._on_free = on_free
        self._uses = 1

    def share(self) -> StateMemory:
        """The same memory, for one more `free`."""
        self._uses += 1
        return self

    def free(self) -> None:
        """End one use."""
        self._uses -= 1
        if not self._uses:
            self._on_free()


class State(NamedTuple):
    """A state as an input of the model; `name` is the name of the input.

    `contents` are its `size` bytes, or their address in shared memory. `memory` keeps them at that address; None if
    nothing frees them while the model is loaded. `place` is the kind of that memory and the number of its GPU.
    """

    name: str
    datatype: str
    shape: list[int]
    contents: bytes | int
    size: int
    memory: StateMemory | None = None
    place: tuple[int, int] = (MEMORY_CPU, 0)


# Copies the first value of a state. Returns the copy's address, and its memory. Raises InferenceError.
Copied = Callable[[StateSpec], tuple[int, StateMemory]]


def no_copies(spec: StateSpec) -> tuple[int, StateMemory]:
    """Copies nothing: for states of which none is in shared memory."""
    raise AssertionError(f"the state '{spec.input_name}' is in shared memory")


def _is_changed_in_place(spec: StateSpec) -> bool:
    """Whether a stub changes the state in place. A C++ backend in this process does so in memory of its own."""
    return spec.is_shared and isinstance(spec.initial, int)


# A state output that lies in shared memory: its name, datatype and shape, the address of its contents and their size.
StateOutput = tuple[str, str, Sequence[int], int, int]


_NONE: Mapping[str, int] = {}


class SequenceStates:
    """The states of one sequence. Their first values come from the configuration.

    A stub changes a state that `is_shared` in place, so each sequence has a copy of the first value from its beginning.
    """

    __slots__ = ("_is_over", "_model_name", "_specs", "_states")

    def __init__(self, specs: Iterable[StateSpec], model_name: str, copied: Copied) -> None:
        """`copied` makes a copy of contents in shared memory, at the address that the copy has in requests.

        Raises InferenceError if it does.
        """
        self._model_name = model_name
        self._is_over = False
        self._specs = {spec.output_name: spec for spec in specs}
        self._states: dict[str, State] = {}
        try:
            for spec in self._specs.values():
                contents, memory = spec.initial, None
                if _is_changed_in_place(spec):
                    contents, memory = copied(spec)
                shape = list(spec.shape)
                self._put(spec.output_name, State(spec.input_name, spec.datatype, shape, contents, spec.size, memory))
        except InferenceError:
            self.drop()
            raise

    def __repr__(self) -> str:
        return f"<SequenceStates {self._model_name} [{', '.join(state.name for state in self.inputs)}]>"

    @property
    def inputs(self) -> Sequence[State]:
        """The additional inputs of the sequence's next request."""
        return list(self._states.values())

    def update(self, output_name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> None:
        """Replace a state. The data is copied, unless it is `bytes`.

        Raises InferenceError INVALID_ARG if the configuration has no such state, or another datatype or shape; the
        state is then unchanged.
        """
        spec = self._checked(output_name, datatype, shape, len(data))
        self._put(output_name, State(spec.input_name, datatype, list(shape), bytes(data), len(data)))

    def update_all(
        self, outputs: Sequence[StateOutput], memory: StateMemory, on_gpus: Mapping[str, int] = _NONE
    ) -> None:
        """Replace states by outputs of one response, which lie in `memory`; each of them uses it from now on.

        `on_gpus` has the number of the GPU of those that lie on one. Raises InferenceError as `update` does; all states
        are then unchanged. Does nothing after `drop`.
        """
        specs = [self._checked(name, datatype, shape, size) for name, datatype, shape, _, size in outputs]
        for spec in specs:
            if _is_changed_in_place(spec):
                why = "The model changes it in place, by use_same_buffer_for_input_output, and does not return it"
                raise self._refused(spec.output_name, why)
        if self._is_over:
            return
        for spec, (name, datatype, shape, at, size) in zip(specs, outputs, strict=True):
            place = (MEMORY_GPU, on_gpus[name]) if name in on_gpus else (MEMORY_CPU, 0)
            self._put(name, State(spec.input_name, datatype, list(shape), at, size, memory.share(), place))

    def drop(self) -> None:
        """The sequence has ended or begins again: end the use of all memory. Requests that read it keep theirs."""
        self._is_over = True
        for state in self._states.values():
            if state.memory is not None:
                state.memory.free()
        self._states.clear()

    def _put(self, output_name: str, state: State) -> None:
        former = self._states.get(output_name)
        self._states[output_name] = state
        if former is not None and former.memory is not None:
            former.memory.free()

    def _checked(self, output_name: str, datatype: str, shape: Sequence[int], byte_size: int) -> StateSpec:
        """The spec of a state output. Raises InferenceError."""
        spec = self._specs.get(output_name)
        if spec is None:
            raise self._refused(output_name, f"State configuration is missing for model '{self._model_name}'.")
        if datatype != spec.datatype:
            raise self._refused(output_name, f"Its datatype is {spec.datatype}, got {datatype}")
        wanted = [1] * (len(spec.shape) - len(spec.dims)) + list(spec.dims)
        if len(shape) != len(wanted) or any(dim not in (-1, size) for size, dim in zip(shape, wanted, strict=True)):
            raise self._refused(output_name, f"Its shape is {wanted}, got {list(shape)}")
        size = BY_NAME[datatype].size
        if size and math.prod(shape) * size != byte_size:
            raise self._refused(output_name, f"It has {math.prod(shape) * size} bytes, got {byte_size}")
        return spec

    def _refused(self, output_name: str, why: str) -> InferenceError:
        return InferenceError(f"unable to add state '{output_name}'. {why}", Code.INVALID_ARG)

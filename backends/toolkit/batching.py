# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Executes a batch of requests by one call of a framework, and gives every request its part of the outputs.

With `max_batch_size` above 0, inputs of requests whose other dimensions agree are joined along the first one. The
outputs of the call are split along the first one again, as views. Without batching each request is one call. If a call
for several requests fails, each request is executed by itself, so that only those that are at fault fail.

The states of sequences are inputs and outputs of that call like all others: see states.py.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, Mapping, Sequence, Set, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.settings import StateSpec
from pyruntime.backends.toolkit.states import States

# Executes the framework: takes the inputs by name and the names of the wanted outputs, returns those outputs by name.
Run = Callable[[Dict[str, Any], List[str]], Mapping[str, Any]]
Inputs = Dict[str, Any]


class Arrays:
    """How a framework's arrays are read, joined, split and written. An array has `shape` and slices.

    `read` and `write` are called for each request, so what one call can do for a batch belongs to `join` and `finish`.
    """

    # Whether the states of sequences are not finished, but written as the framework has them: on a GPU, for example.
    states_stay = False

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """The array of an input. Any exception is the error of its request."""
        return tensor.as_numpy()

    def join(self, arrays: List[Any]) -> Any:
        """What the framework gets: an input's arrays as one, along the first dimension. A single one is not copied."""
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def finish(self, array: Any) -> Any:
        """An output of the framework as it is split among the requests."""
        return array

    def write(self, name: str, array: Any) -> pb_utils.Tensor:
        """An output of one request. A scalar gets one dimension, which a configuration must have."""
        return pb_utils.Tensor(name, array if array.shape else array.reshape(1))


# A request of a call: its place in the batch, its inputs, its rows, which count only with batching, and the names of
# the outputs that are made for it. One is made for each request: a named tuple would cost five times as much.
_Member = Tuple[int, Inputs, int, Set[str]]


class BatchExecutor:
    """See the module. `outputs` are the names of all outputs, in the order in which they are asked for.

    Each request also gets the outputs of `states`, whether or not they are among `outputs`.
    """

    def __init__(
        self, run: Run, arrays: Arrays, outputs: Sequence[str], is_batching: bool, states: Sequence[StateSpec] = ()
    ) -> None:
        self._run = run
        self._arrays = arrays
        self._is_batching = is_batching
        self._states = States(states) if states else None
        names = [state.output.name for state in states]
        self._outputs = [*outputs, *(name for name in names if name not in outputs)]
        self._always = set(names)
        # Those in place have memory of their own, which is not the framework's.
        staying = [state.output.name for state in states if not state.is_in_place] if arrays.states_stay else []
        self._staying = frozenset(staying)

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """The responses, in the order of the requests. Raises nothing: errors are in the responses."""
        responses: List[Any] = [None] * len(requests)
        # Requests with the same key can be joined.
        groups: Dict[Hashable, List[_Member]] = {}
        read = self._arrays.read
        for place, request in enumerate(requests):
            inputs = {}
            shapes = []
            rows = 1
            try:
                for tensor in request.inputs():
                    name = tensor.name()
                    array = inputs[name] = read(tensor)
                    if self._is_batching:
                        shape = array.shape
                        rows = shape[0]
                        shapes.append((name, shape[1:]))
            except Exception as exc:
                responses[place] = _failed(exc)
                continue
            key: Hashable = place
            if shapes:  # clients may name the inputs in any order
                key = shapes[0] if len(shapes) == 1 else frozenset(shapes)
            wanted = request.requested_output_names()
            groups.setdefault(key, []).append((place, inputs, rows, wanted | self._always if self._always else wanted))
        for members in groups.values():
            self._execute(members, requests, responses)
        return responses

    def _execute(
        self, members: List[_Member], requests: Sequence[pb_utils.InferenceRequest], responses: List[Any]
    ) -> None:
        """Execute the framework once, and put the response of each member at its place."""
        inputs = [member[1] for member in members]
        wanted = set().union(*[member[3] for member in members])
        join, finish = self._arrays.join, self._arrays.finish
        try:
            joined = {name: join([each[name] for each in inputs]) for name in inputs[0]}
            outputs = self._run(joined, [name for name in self._outputs if name in wanted])
            staying = self._staying
            finished = [(name, array if name in staying else finish(array)) for name, array in outputs.items()]
            made = self._split(members, finished)
            if self._states is not None:
                made = self._states.keep([requests[member[0]] for member in members], made)
        except Exception as exc:
            if len(members) == 1:
                responses[members[0][0]] = _failed(exc)
                return
            for member in members:
                self._execute([member], requests, responses)
            return
        for member, tensors in zip(members, made):
            responses[member[0]] = pb_utils.InferenceResponse(tensors)

    def _split(self, members: List[_Member], outputs: List[Tuple[str, Any]]) -> List[List[pb_utils.Tensor]]:
        """The tensors of each member."""
        if self._is_batching:
            _check_rows(outputs, sum([member[2] for member in members]))
        write = self._arrays.write
        is_alone = len(members) == 1
        made = []
        start = 0
        for _, _, rows, wanted in members:
            stop = start + rows
            tensors = []
            for name, array in outputs:
                if name in wanted:
                    tensors.append(write(name, array if is_alone else array[start:stop]))
            made.append(tensors)
            start = stop
        return made


def _check_rows(outputs: Sequence[Tuple[str, Any]], rows: int) -> None:
    """Raise ValueError if an output has not one row for each row of the inputs."""
    for name, array in outputs:
        shape = list(array.shape)
        if not shape or shape[0] != rows:
            raise ValueError(
                f"output '{name}' has the shape {shape}, but its first dimension must be that of the batch, {rows}: "
                "set max_batch_size to 0 if the model does not batch"
            )


def _failed(exc: Exception) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc) or type(exc).__name__))

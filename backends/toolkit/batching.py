# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Executes a batch of requests by one call of a framework, and gives every request its part of the outputs.

With `max_batch_size` above 0, inputs of requests whose other dimensions agree are joined along the first one. The
outputs of the call are split along the first one again, as views. Without batching each request is one call. If a call
for several requests fails, each request is executed by itself, so that only those that are at fault fail.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Hashable, List, Mapping, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

# Executes the framework: takes the inputs by name and the names of the wanted outputs, returns those outputs by name.
Run = Callable[[Dict[str, Any], List[str]], Mapping[str, Any]]
Inputs = Dict[str, Any]


class Arrays:
    """How a framework reads and joins arrays. An array has `shape` and slices."""

    def read(self, tensor: pb_utils.Tensor) -> Any:
        """The array of an input. Any exception is the error of its request."""
        return tensor.as_numpy()

    def join(self, arrays: List[Any]) -> Any:
        """Several arrays as one, along the first dimension."""
        return np.concatenate(arrays)

    def write(self, name: str, array: Any) -> pb_utils.Tensor:
        """An output. A scalar gets one dimension, which a configuration must have."""
        return pb_utils.Tensor(name, array if array.shape else array.reshape(1))


class BatchExecutor:
    """See the module. `outputs` are the names of all outputs, in the order in which they are asked for."""

    def __init__(self, run: Run, arrays: Arrays, outputs: Sequence[str], is_batching: bool) -> None:
        self._run = run
        self._arrays = arrays
        self._outputs = list(outputs)
        self._is_batching = is_batching

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """The responses, in the order of the requests. Raises nothing: errors are in the responses."""
        responses: Dict[int, pb_utils.InferenceResponse] = {}
        groups: Dict[Hashable, List[Tuple[int, Inputs]]] = {}
        for index, request in enumerate(requests):
            try:
                inputs = {tensor.name(): self._arrays.read(tensor) for tensor in request.inputs()}
            except Exception as exc:
                responses[index] = _failed(exc)
                continue
            key = _signature(inputs) if self._is_batching else index
            groups.setdefault(key, []).append((index, inputs))
        for members in groups.values():
            self._execute(requests, members, responses)
        return [responses[index] for index in range(len(requests))]

    def _execute(
        self,
        requests: Sequence[pb_utils.InferenceRequest],
        members: List[Tuple[int, Inputs]],
        responses: Dict[int, pb_utils.InferenceResponse],
    ) -> None:
        wanted = [requests[index].requested_output_names() for index, _ in members]
        names = [name for name in self._outputs if any(name in each for each in wanted)]
        try:
            outputs = self._run(self._joined(members), names)
            made = self._split(members, wanted, outputs)
        except Exception as exc:
            if len(members) == 1:
                responses[members[0][0]] = _failed(exc)
                return
            for member in members:
                self._execute(requests, [member], responses)
            return
        for (index, _), response in zip(members, made):
            responses[index] = response

    def _joined(self, members: List[Tuple[int, Inputs]]) -> Inputs:
        first = members[0][1]
        if len(members) == 1:
            return first
        return {name: self._arrays.join([inputs[name] for _, inputs in members]) for name in first}

    def _split(
        self, members: List[Tuple[int, Inputs]], wanted: Sequence[Any], outputs: Mapping[str, Any]
    ) -> List[pb_utils.InferenceResponse]:
        counts = [_rows(inputs) for _, inputs in members]
        if self._is_batching:
            _check_rows(outputs, sum(counts))
        if len(members) == 1:
            return [self._response(wanted[0], outputs)]
        made = []
        start = 0
        for count, names in zip(counts, wanted):
            stop = start + count
            made.append(self._response(names, {name: array[start:stop] for name, array in outputs.items()}))
            start = stop
        return made

    def _response(self, wanted: Any, outputs: Mapping[str, Any]) -> pb_utils.InferenceResponse:
        write = self._arrays.write
        return pb_utils.InferenceResponse([write(name, array) for name, array in outputs.items() if name in wanted])


def _rows(inputs: Inputs) -> int:
    for array in inputs.values():
        count: int = array.shape[0]
        return count
    return 1


def _signature(inputs: Inputs) -> Hashable:
    """Requests with the same signature can be joined."""
    return frozenset((name, tuple(array.shape[1:])) for name, array in inputs.items())


def _check_rows(outputs: Mapping[str, Any], rows: int) -> None:
    """Raise ValueError if an output has not one row for each row of the inputs."""
    for name, array in outputs.items():
        shape = list(array.shape)
        if not shape or shape[0] != rows:
            raise ValueError(
                f"output '{name}' has the shape {shape}, but its first dimension must be that of the batch, {rows}: "
                "set max_batch_size to 0 if the model does not batch"
            )


def _failed(exc: Exception) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc) or type(exc).__name__))

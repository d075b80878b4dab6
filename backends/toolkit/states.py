# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The states of sequences in the backends of frameworks: inputs that the server keeps, and outputs that follow them.

A framework gets them as inputs and makes them as outputs, like those of clients. Usually the response brings the next
state. One that is in place has its memory for all requests of the sequence: the output of the framework, which has
memory of its own, is copied there when the call has succeeded.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.settings import StateSpec


class States:
    """The states of a model."""

    def __init__(self, states: Sequence[StateSpec]) -> None:
        # The names of inputs that are in place, by those of the outputs.
        self._inputs = {state.output.name: state.input.name for state in states if state.is_in_place}

    def keep(
        self, requests: Sequence[pb_utils.InferenceRequest], made: Sequence[List[pb_utils.Tensor]]
    ) -> List[List[pb_utils.Tensor]]:
        """Put the states among the outputs of each request where they belong. Returns the tensors of the responses.

        Raises ValueError if a state that is in place has another size; all states are then unchanged.
        """
        if not self._inputs:
            return list(made)
        kept = []
        changes: List[Tuple[Any, Any]] = []
        for request, tensors in zip(requests, made):
            wanted = request.requested_output_names()
            own = {tensor.name(): self._memory(request, tensor) for tensor in tensors if tensor.name() in self._inputs}
            for tensor in tensors:
                # A model may return what it got.
                _move_apart(tensor, [memory for name, memory in own.items() if name != tensor.name()])
            changes += [(own[tensor.name()], tensor._contents()) for tensor in tensors if tensor.name() in own]
            kept.append([tensor for tensor in tensors if tensor.name() not in own or tensor.name() in wanted])
        for memory, contents in changes:
            np.copyto(memory, contents)
        return kept

    def _memory(self, request: pb_utils.InferenceRequest, made: pb_utils.Tensor) -> Any:
        """The memory of a state, as an array. Raises ValueError if the state that was made does not fit."""
        name = self._inputs[made.name()]
        taken = pb_utils.get_input_tensor_by_name(request, name)
        if taken is None:
            raise ValueError(
                f"the request has no '{name}', whose place the state '{made.name()}' takes: a sample of model_warmup "
                "lists states like inputs"
            )
        if (taken.triton_dtype(), taken.shape()) != (made.triton_dtype(), made.shape()):
            raise ValueError(
                f"the state '{made.name()}' has the shape {made.shape()}, and cannot take the place of "
                f"'{taken.name()}' with {taken.shape()}, as use_same_buffer_for_input_output wants: a state whose size "
                "varies needs use_growable_memory as well, or neither of them"
            )
        return taken._contents()


def _move_apart(tensor: pb_utils.Tensor, memories: Sequence[Any]) -> None:
    """Copy the contents of a tensor if they may lie in any of these memories."""
    if not tensor.is_cpu():  # these are main memory
        return
    contents = tensor._encoded()
    if isinstance(contents, np.ndarray) and any(np.may_share_memory(contents, memory) for memory in memories):
        tensor._array = contents.copy()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Says what a program of torch.export takes and returns, by the graph of the program. (pure)"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from pyruntime.backends.toolkit.exported import describe_value
from pyruntime.backends.toolkit.settings import TensorSpec
from pyruntime.utils.errors import LoadError

# A larger bound is none: max_batch_size is an INT32.
_ROWS_MAX = (1 << 31) - 1


def describe_exported(program: Any, model: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    """The inputs and outputs of an exported program. Results without names are OUTPUT__0, OUTPUT__1 and so on.

    Results that are no tensors, such as sizes and lists of tensors, are no outputs. Raises LoadError for an input that
    is no tensor, and if there are no outputs.
    """
    check_arguments(program, model)
    values = _values(program)
    signature = program.graph_signature
    # The names of the results, in the lists and dicts in which the program returns them.
    returned = program.call_spec.out_spec.unflatten(list(signature.user_outputs))
    if isinstance(returned, Mapping):
        told = [(str(key), name) for key, name in returned.items()]
    else:
        results = returned if isinstance(returned, (tuple, list)) else [returned]
        told = [(f"OUTPUT__{index}", name) for index, name in enumerate(results)]
    inputs = [describe_value(model, name, values[name]) for name in signature.user_inputs]
    tensors = [(own, name) for own, name in told if _is_tensor(values, name)]
    if not tensors:
        raise LoadError(f"model '{model}' returns no tensor")
    return inputs, [describe_value(model, own, values[name]) for own, name in tensors]


def check_arguments(program: Any, model: str) -> None:
    """Raise LoadError if the program takes anything but tensors, such as numbers and lists of tensors."""
    values = _values(program)
    positional, named = program.call_spec.in_spec.unflatten(list(program.graph_signature.user_inputs))
    for argument in (*positional, *named.values()):
        if not _is_tensor(values, argument):
            raise LoadError(
                f"model '{model}' was exported with an argument that is no tensor, {argument}, which cannot be served"
            )


def rows_max(program: Any) -> Optional[int]:
    """The largest batch that the bounds of the inputs' first dimensions allow; None if they have none."""
    values = _values(program)
    bounds = []
    for name in program.graph_signature.user_inputs:
        shape = values[name].shape if _is_tensor(values, name) else ()
        if shape and not isinstance(shape[0], int):
            allowed = program.range_constraints.get(shape[0].node.expr)
            if allowed is not None and allowed.upper <= _ROWS_MAX:
                bounds.append(int(allowed.upper))
    return min(bounds, default=None)


def _values(program: Any) -> Dict[str, Any]:
    return {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}


def _is_tensor(values: Dict[str, Any], name: Any) -> bool:
    """Whether a name in the signature, which has constants as well, is that of a tensor."""
    return isinstance(name, str) and hasattr(values.get(name), "dtype")

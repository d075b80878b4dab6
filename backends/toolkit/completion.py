# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Completes a configuration by what a model file says of its inputs and outputs, and compares the two. (pure)

`complete` is all of a backend's `auto_complete_config` but the description of its model file. The rules are those of
Triton's ONNX Runtime backend: a model can batch if the first dimension of all its inputs and outputs may have any size.
What the server adds for sequences, control inputs and states, is in the file, and is not completed.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence, Tuple

from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings, server_options
from pyruntime.utils.errors import ConfigError

# Describes the model file in a version's folder: its inputs and its outputs, with all dimensions. Raises LoadError.
Describe = Callable[[Settings, str], Tuple[List[TensorSpec], List[TensorSpec]]]

_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def complete(config: Dict[str, Any], location: Mapping[str, str], describe: Describe) -> None:
    """Complete a configuration by the model file, which is read only if inputs or outputs are missing.

    `location` is what the stub gives to a class that declares it. Raises ConfigError, and what `describe` raises.
    """
    if not is_complete(config):
        inputs, outputs = describe(read_settings(config), f"{location['model_dir']}/{location['version']}")
        complete_config(config, inputs, outputs, int(server_options(location)["default-max-batch-size"]))


def is_complete(config: Dict[str, Any]) -> bool:
    """Whether the configuration names inputs and outputs, so that the model file need not be read."""
    return bool(config.get("input")) and bool(config.get("output"))


def complete_config(
    config: Dict[str, Any], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], default_max_batch_size: int
) -> None:
    """Fill in what `config` lacks: inputs, outputs, `max_batch_size` and the dynamic batcher. Raises ConfigError.

    Inputs or outputs that are configured stay as they are, and so does `max_batch_size` then.
    """
    settings = read_settings(config)
    listed = _without_added(settings, inputs, outputs)
    for noun, tensors in listed.items():
        for tensor in tensors:
            if tensor.dims is None and not config.get(noun):
                raise ConfigError(
                    f"autofill failed for model '{config.get('name', '')}': its file does not tell how many dimensions "
                    f"{noun} '{tensor.name}' has: declare each {noun} in config.pbtxt"
                )
    can_batch = all(map(_may_batch, [*inputs, *outputs]))
    if config.get("max_batch_size", 0) > 0:
        if not can_batch:
            raise ConfigError(
                f"autofill failed for model '{config.get('name', '')}': model does not support batching while non-zero "
                "max_batch_size is specified"
            )
    elif can_batch and not settings.inputs and not settings.outputs and not _has_whole_states(settings, inputs):
        config["max_batch_size"] = max(0, default_max_batch_size)
    is_batching = config.get("max_batch_size", 0) > 0
    for noun, tensors in listed.items():
        if not config.get(noun):
            config[noun] = [_entry(tensor, is_batching) for tensor in tensors]
    if config.get("max_batch_size", 0) > 1 and not any(scheduler in config for scheduler in _SCHEDULERS):
        config["dynamic_batching"] = {}


def check_tensors(
    settings: Settings, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], optional: Collection[str] = ()
) -> None:
    """Compare the configured tensors, those of sequences too, with those of the model file. Raises ConfigError.

    Every input of the file must be configured, but for those that are `optional` in it: no request could have it else.
    """
    for noun, configured, found in (("input", settings.all_inputs, inputs), ("output", settings.all_outputs, outputs)):
        known = {tensor.name: tensor for tensor in found}
        for tensor in configured:
            if tensor.name not in known:
                raise _unknown(settings, noun, tensor, known)
            _check_tensor(settings, noun, tensor, known[tensor.name])
    names = {tensor.name for tensor in settings.all_inputs}
    needed = [tensor.name for tensor in inputs if tensor.name not in optional]
    lacking = [name for name in needed if name not in names]
    if lacking:
        raise ConfigError(
            f"unable to load model '{settings.name}', configuration expects {len(needed) - len(lacking)} inputs, model "
            f"provides {len(needed)}: declare {_quoted(lacking)} in config.pbtxt, which the model needs in each request"
        )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _unknown(settings: Settings, noun: str, tensor: TensorSpec, known: Collection[str]) -> ConfigError:
    """The error for a tensor of the configuration that the model file does not have. The messages are Triton's."""
    if tensor in settings.controls:
        return ConfigError(
            f"configuration specified sequence control '{tensor.name}', but model does not provide that input"
        )
    return ConfigError(f"unexpected inference {noun} '{tensor.name}', allowed {noun}s are: {', '.join(sorted(known))}")


def _without_added(
    settings: Settings, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Dict[str, List[TensorSpec]]:
    """The inputs that clients send and the outputs that they get, by their fields in a configuration.

    Where all outputs are states clients get these. Raises ConfigError if the file lacks what the server adds.
    """
    states = [state.output for state in settings.states]
    listed = {}
    for noun, found, added in (("input", inputs, settings.added_inputs), ("output", outputs, states)):
        known = {tensor.name for tensor in found}
        for tensor in added:
            if tensor.name not in known:
                raise _unknown(settings, noun, tensor, known)
        names = {tensor.name for tensor in added}
        listed[noun] = [tensor for tensor in found if tensor.name not in names]
    return {**listed, "output": listed["output"] or [*outputs]}


def _has_whole_states(settings: Settings, inputs: Sequence[TensorSpec]) -> bool:
    """Whether the dims of a state have all dimensions of the file, so that none is that of the batch."""
    ranks = {tensor.name: len(tensor.dims) for tensor in inputs if tensor.dims is not None}
    return any(len(state.input.dims or ()) == ranks.get(state.input.name) for state in settings.states)


def shape_text(dims: Sequence[int]) -> str:
    """A shape as Triton's messages have it."""
    return f"[{','.join(map(str, dims))}]"


def _may_batch(tensor: TensorSpec) -> bool:
    return tensor.dims is None or (bool(tensor.dims) and tensor.dims[0] == -1)


def _entry(tensor: TensorSpec, is_batching: bool) -> Dict[str, Any]:
    dims: List[int] = list(tensor.dims or ())[1 if is_batching else 0 :]
    entry: Dict[str, Any] = {"name": tensor.name, "data_type": tensor.datatype, "dims": dims}
    if not dims and is_batching:  # a configuration needs a dimension, and the model has none besides that of the batch
        entry.update(dims=[1], reshape={"shape": []})
    elif not dims:
        entry["dims"] = [1]
    return entry


def _check_tensor(settings: Settings, noun: str, configured: TensorSpec, found: TensorSpec) -> None:
    if configured.datatype != found.datatype:
        raise ConfigError(
            f"unable to load model '{settings.name}', configuration expects datatype {configured.datatype} for {noun} "
            f"'{configured.name}', model provides {found.datatype}"
        )
    if found.dims is None:
        return
    start = f"model '{settings.name}', tensor '{configured.name}': "
    dims: Tuple[int, ...] = configured.dims or ()
    if settings.max_batch_size > 0:
        if not _may_batch(found):
            raise ConfigError(
                f"{start}for the model to support batching the shape should have at least 1 dimension and the first "
                f"dimension must be -1; but shape expected by the model is {shape_text(found.dims)}"
            )
        dims = (-1, *dims)
    elif not found.dims and dims == (1,):  # a scalar, see _entry
        return
    is_same = len(dims) == len(found.dims) and all(-1 in pair or pair[0] == pair[1] for pair in zip(dims, found.dims))
    if not is_same:
        more = ""
        if settings.max_batch_size > 0:
            more = " (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape)"
        raise ConfigError(
            f"{start}the model expects {len(found.dims)} dimensions (shape {shape_text(found.dims)}) but the model "
            f"configuration specifies {len(dims)} dimensions{more} (shape {shape_text(dims)})"
        )

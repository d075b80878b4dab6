# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Merges what auto_complete_config returned into a model's configuration. (pure)

The model receives the rendered configuration as a dict and returns it changed; a C++ backend sets it as JSON. Only the
fields below are merged. Like Triton, this module ignores every other change of the dict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.protobuf import json_format

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.utils.dtypes import BY_NUMBER
from pyruntime.utils.errors import LoadError

# The schedulers that a model may choose.
SCHEDULERS = ("dynamic_batching", "sequence_batching")


def minimal_config(name: str) -> Config:
    """The configuration of a model that has no config.pbtxt."""
    config = new_model_config()
    config.name = name
    return config


def complete(config: Config, returned: Mapping[str, object]) -> Config:
    """`config`, normalised, merged with what the model's code returned, and normalised again. Raises LoadError."""
    merged = merge_auto_complete(config, returned)
    # The first time has filled in all that depends on files and on GPUs.
    return normalize(merged, directory_name=config.name, files=(), gpus=())


def merge_auto_complete(config: Config, returned: Mapping[str, object]) -> Config:
    """A copy of `config` with the fields that the model's auto_complete_config set in `returned`, its `as_dict()`.

    Merges max_batch_size, input, output, the scheduler (if `config` has none) and decoupled.
    Raises LoadError if one of them has an invalid value.
    """
    completed = _parse(config.name, returned)
    merged = new_model_config()
    merged.CopyFrom(config)
    if "max_batch_size" in returned:
        merged.max_batch_size = completed.max_batch_size
    for noun in ("input", "output"):
        if noun in returned:
            merged.ClearField(noun)
            getattr(merged, noun).extend(getattr(completed, noun))
            _check_datatypes(config.name, noun, getattr(merged, noun))
    for scheduler in SCHEDULERS:
        if completed.HasField(scheduler) and merged.WhichOneof("scheduling_choice") is None:
            getattr(merged, scheduler).CopyFrom(getattr(completed, scheduler))
    if completed.HasField("model_transaction_policy"):
        merged.model_transaction_policy.decoupled = completed.model_transaction_policy.decoupled
    return merged


def _parse(name: str, returned: Mapping[str, object]) -> Config:
    adopted = ("max_batch_size", "input", "output", *SCHEDULERS, "model_transaction_policy")
    completed = new_model_config()
    try:
        json_format.ParseDict({key: returned[key] for key in adopted if key in returned}, completed)
    except (json_format.ParseError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # ParseDict raises ParseError for most invalid values, but Python's own errors for values of unexpected types.
        raise LoadError(f"in auto-complete-config function for model '{name}': {error}") from error
    return completed


def _check_datatypes(name: str, noun: str, tensors: Sequence[Config]) -> None:
    for tensor in tensors:
        if tensor.data_type != 0 and tensor.data_type not in BY_NUMBER:
            raise LoadError(
                f"{noun} '{tensor.name}' in auto-complete-config function for model '{name}' has an unknown "
                f"'data_type', {tensor.data_type}"
            )

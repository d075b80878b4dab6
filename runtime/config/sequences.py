# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates `sequence_batching` of a configuration, and builds its spec. (pure)

Each rule is one ConfigError, with Triton's message if Triton has the rule.
"""

from __future__ import annotations

import math
from collections import Counter
from struct import Struct

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import ControlSpec, QueuePolicySpec, SequenceBatchingSpec, StateSpec
from pyruntime.utils.dtypes import BY_NUMBER, BYTES_PREFIX_SIZE
from pyruntime.utils.errors import ConfigError

# Each sequence has its own copy, and a tensor of a request is rarely larger: more is a misplaced digit.
STATE_BYTES_MAX = 1 << 30

# Parameters of a model: how many sequences may wait for a slot, and for how long. Triton has no such limits, and so its
# schema has no fields for them.
BACKLOG_SIZE = "SEQUENCE_BACKLOG_MAX_SIZE"
BACKLOG_TIMEOUT = "SEQUENCE_BACKLOG_TIMEOUT_MICROSECONDS"
# Digits of their values: more than any number of microseconds needs.
BACKLOG_DIGITS_MAX = 18

_KIND_PREFIX = "CONTROL_SEQUENCE_"
_CORRELATION_ID_DATATYPES = frozenset({"UINT64", "INT64", "UINT32", "INT32", "BYTES"})
# The fields that can hold the values of a control, with the datatype and the binary layout of each.
_FALSE_TRUE = (
    ("int32_false_true", "INT32", Struct("<i")),
    ("fp32_false_true", "FP32", Struct("<f")),
    ("bool_false_true", "BOOL", Struct("<?")),
)
_FALSE_TRUE_NAMES = "'int32_false_true', 'fp32_false_true'"


def validate_sequence_batching(config: Config) -> None:
    """Raise ConfigError for the first error in the `sequence_batching` of `config`, normalised.

    Leaves rules that depend on the model's inputs and batch size, which may still be missing, to `validate_completed`.
    """
    name, batching = config.name, config.sequence_batching
    _check_control_tensors(name, batching)
    for kind in ("START", "END", "READY", "CORRID"):
        _check_control(name, batching, kind)
    for size in batching.oldest.preferred_batch_size:
        if size < 1:
            raise ConfigError(f"sequence batching preferred batch size must be positive for {name}")
    if not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise ConfigError(f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}")
    _check_states(name, batching)
    for parameter in (BACKLOG_SIZE, BACKLOG_TIMEOUT):
        _backlog_limit(config, parameter)


def validate_completed(config: Config) -> None:
    """Raise ConfigError for the first contradiction between `sequence_batching` and the rest of `config`, complete."""
    name, batching = config.name, config.sequence_batching
    inputs = {tensor.name for tensor in config.input}
    for control_input in batching.control_input:
        if control_input.name in inputs:
            raise ConfigError(f"sequence batching control tensor '{control_input.name}' is an input of {name} already")
    for state in batching.state:
        if state.input_name in inputs:
            raise ConfigError(f"the state input '{state.input_name}' of {name} is an input already")
    if any(size > config.max_batch_size for size in batching.oldest.preferred_batch_size):
        raise ConfigError(f"sequence batching preferred batch size must be <= max batch size for {name}")


def sequence_batching_spec(config: Config) -> SequenceBatchingSpec | None:
    """The spec for the sequence scheduler, or None for a model without sequences."""
    batching = config.sequence_batching
    if not config.HasField("sequence_batching"):
        return None
    oldest, direct = batching.oldest, batching.direct
    is_oldest = batching.HasField("oldest")
    slots = oldest.max_candidate_sequences if is_oldest else 0
    return SequenceBatchingSpec(
        oldest=is_oldest,
        slots=slots if slots > 0 else max(1, config.max_batch_size),
        max_idle_us=batching.max_sequence_idle_microseconds,
        max_queue_delay_us=(oldest if is_oldest else direct).max_queue_delay_microseconds,
        minimum_slot_utilization=direct.minimum_slot_utilization,
        preferred_batch_sizes=tuple(oldest.preferred_batch_size),
        controls=tuple(
            _control_spec(control_input.name, control)
            for control_input in batching.control_input
            for control in control_input.control
        ),
        states=tuple(_state_spec(state, config.max_batch_size) for state in batching.state),
        preserve_ordering=oldest.preserve_ordering,
        backlog=QueuePolicySpec(
            max_queue_size=_backlog_limit(config, BACKLOG_SIZE),
            default_timeout_us=_backlog_limit(config, BACKLOG_TIMEOUT),
        ),
    )


def _backlog_limit(config: Config, parameter: str) -> int:
    """A limit of the backlog, 0 for none. Raises ConfigError."""
    if parameter not in config.parameters:
        return 0
    text = config.parameters[parameter].string_value
    if not text.isascii() or not text.isdigit() or len(text) > BACKLOG_DIGITS_MAX:
        raise ConfigError(
            f"the parameter {parameter} of model '{config.name}' must be a number in at most {BACKLOG_DIGITS_MAX} "
            f"digits, 0 for no limit, and is '{text}'"
        )
    return int(text)


def _control_spec(name: str, control: Config) -> ControlSpec:
    kind = control.Kind.Name(control.kind).removeprefix(_KIND_PREFIX)
    for field, datatype, layout in _FALSE_TRUE:
        if len(values := getattr(control, field)):
            return ControlSpec(name, kind, datatype, layout.pack(values[0]), layout.pack(values[1]))
    return ControlSpec(name, kind, BY_NUMBER[control.data_type].name)


def _state_spec(state: Config, max_batch_size: int) -> StateSpec:
    initial = state.initial_state[0] if state.initial_state else None
    shape = tuple(initial.dims) if initial is not None else tuple(1 if dim == -1 else dim for dim in state.dims)
    size = _byte_size(state.data_type, shape)
    return StateSpec(
        input_name=state.input_name,
        output_name=state.output_name,
        datatype=BY_NUMBER[state.data_type].name,
        dims=tuple(state.dims),
        shape=(1, *shape) if max_batch_size > 0 else shape,
        initial=bytes(size),
        size=size,
        data_file=initial.data_file if initial is not None else "",
        is_shared=state.use_same_buffer_for_input_output,
        is_growable=state.use_growable_memory,
    )


def _byte_size(data_type: int, shape: tuple[int, ...]) -> int:
    """The size of an initial state of zeros. An element of BYTES is then an empty string: only its length prefix."""
    return math.prod(shape) * (BY_NUMBER[data_type].size or BYTES_PREFIX_SIZE)


def _check_control_tensors(name: str, batching: Config) -> None:
    seen: set[str] = set()
    for control_input in batching.control_input:
        if not control_input.name:
            raise ConfigError(f"sequence batching control tensor must have a name for {name}")
        for control in control_input.control:
            if control.kind not in control.Kind.values():
                raise ConfigError(
                    f"sequence batching control tensor '{control_input.name}' has an unknown kind, {control.kind}, "
                    f"for {name}"
                )
        if control_input.name in seen or len(control_input.control) > 1:
            kinds = Counter(control.kind for control in control_input.control)
            for kind, count in kinds.items():
                if count > 1:
                    raise _multiple(name, control_input.control[0].Kind.Name(kind))
            raise ConfigError(
                f"sequence batching control tensor '{control_input.name}' is specified for multiple control kinds "
                f"for {name}"
            )
        seen.add(control_input.name)


def _multiple(name: str, kind: str) -> ConfigError:
    return ConfigError(f"sequence batching specifies multiple {kind} tensors for {name}")


def _check_control(name: str, batching: Config, kind: str) -> None:
    """Check the control of one kind, of which there may be at most one tensor."""
    label = _KIND_PREFIX + kind
    found = [
        control
        for control_input in batching.control_input
        for control in control_input.control
        if control.Kind.Name(control.kind) == label
    ]
    if len(found) > 1:
        raise _multiple(name, label)
    for control in found:
        lengths = {field: len(getattr(control, field)) for field, _, _ in _FALSE_TRUE}
        given = [field for field, length in lengths.items() if length]
        if kind == "CORRID":
            _check_correlation_id(name, label, control, given)
        elif not given:
            raise ConfigError(
                f"sequence batching must specify either {_FALSE_TRUE_NAMES} or 'bool_false_true' for {label} for {name}"
            )
        elif len(given) > 1:
            raise ConfigError(
                f"sequence batching specifies more than one from {_FALSE_TRUE_NAMES} and 'bool_false_true' for "
                f"{label} for {name}"
            )
        elif lengths[given[0]] != 2:
            raise ConfigError(
                f"sequence batching control '{given[0]}' must have exactly 2 entries for {label} for {name}"
            )


def _check_correlation_id(name: str, label: str, control: Config, given: list[str]) -> None:
    if given:
        raise ConfigError(
            f"sequence batching must not specify either {_FALSE_TRUE_NAMES} or 'bool_false_true' for {label} for {name}"
        )
    datatype = BY_NUMBER.get(control.data_type)
    if datatype is None or datatype.name not in _CORRELATION_ID_DATATYPES:
        raise ConfigError(
            f"unexpected data type for control {label} for {name}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def _check_states(name: str, batching: Config) -> None:
    read = {control_input.name for control_input in batching.control_input}
    written: set[str] = set()
    for state in batching.state:
        if not state.input_name or not state.output_name:
            raise ConfigError(f"a state of {name} must specify 'input_name' and 'output_name'")
        subject = f"the state input '{state.input_name}' of {name}"
        if state.input_name in read:
            raise ConfigError(f"{subject} is an input already")
        if state.output_name in written:
            raise ConfigError(f"{name} has more than one state output '{state.output_name}'")
        read.add(state.input_name)
        written.add(state.output_name)
        if state.data_type not in BY_NUMBER:
            raise ConfigError(f"{subject} must specify 'data_type'")
        for dim in state.dims:
            if dim < 1 and dim != -1:
                raise ConfigError(
                    f"{subject} dimension must be integer >= 1, or -1 to indicate a variable-size dimension, got {dim}"
                )
        _check_initial_state(state)


def _check_initial_state(state: Config) -> None:
    name, dims, shape = state.input_name, list(state.dims), [max(1, dim) for dim in state.dims]
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. "
            f"Found '{len(state.initial_state)}' elements."
        )
    for initial in state.initial_state:
        shape = list(initial.dims)
        if not initial.name:
            raise ConfigError(f"Field 'name' must be set when using initial_state for state input '{name}'.")
        if initial.data_type != state.data_type:
            raise ConfigError(
                f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
            )
        if len(shape) != len(dims):
            raise ConfigError(
                f"Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
                f"input '{name}'. {len(shape)} != {len(dims)}"
            )
        for dim, wanted in zip(shape, dims, strict=True):
            if dim < 0:
                raise ConfigError(f"'initial_state' field for state input name '{name}' contains variable dimensions.")
            if wanted not in (-1, dim):
                raise ConfigError(
                    f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                    f"{dim} != {wanted}"
                )
        if initial.WhichOneof("state_data") is None:
            raise ConfigError(f"initial_state setting expects state'{name}' to have state_data set")
    if (size := _byte_size(state.data_type, tuple(shape))) > STATE_BYTES_MAX:
        raise ConfigError(f"the state input '{name}' has {size} bytes, and at most {STATE_BYTES_MAX} are allowed")

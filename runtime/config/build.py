# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the `ModelSpec` of a normalised, valid configuration. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from pyruntime.runtime.config.ensembles import ensemble_spec
from pyruntime.runtime.config.metrics import first_response_bounds_ms, metric_tags
from pyruntime.runtime.config.rate_limits import resource_needs
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.sequences import sequence_batching_spec
from pyruntime.runtime.config.spec import DynamicBatchingSpec, InstanceSpec, ModelSpec, QueuePolicySpec, TensorSpec
from pyruntime.runtime.config.warmup import warmup_samples
from pyruntime.utils.dtypes import BY_NUMBER


def model_spec(config: Config) -> ModelSpec:
    """The spec of `config`, which must have passed `normalize` and `validate`."""
    inputs = {tensor.name: _tensor_spec(tensor, config.max_batch_size) for tensor in config.input}
    outputs: dict[str, TensorSpec] = {}
    for tensor in config.output:  # of outputs with the same name the first counts, as in Triton
        outputs.setdefault(tensor.name, _tensor_spec(tensor, config.max_batch_size))
    return ModelSpec(
        name=config.name,
        backend=config.backend,
        runtime=config.runtime,
        platform=config.platform or config.backend,
        max_batch_size=config.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        required_inputs=frozenset(name for name, tensor in inputs.items() if not tensor.optional),
        instances=_distinct([each for group in config.instance_group for each in _instances(group)]),
        decoupled=config.model_transaction_policy.decoupled,
        default_model_filename=config.default_model_filename,
        parameters={name: parameter.string_value for name, parameter in config.parameters.items()},
        dynamic_batching=_dynamic_batching(config),
        json=render(config),
        iterative_sequence=config.sequence_batching.iterative_sequence,
        metric_tags=metric_tags(config),
        first_response_bounds_ms=first_response_bounds_ms(config),
        sequence_batching=sequence_batching_spec(config),
        response_cache=config.response_cache.enable,
        ensemble=ensemble_spec(config),
        warmup=warmup_samples(config),
    )


def _tensor_spec(tensor: Config, max_batch_size: int) -> TensorSpec:
    is_input = "optional" in tensor.DESCRIPTOR.fields_by_name
    dims = tuple(tensor.dims)
    return TensorSpec(
        name=tensor.name,
        datatype=BY_NUMBER[tensor.data_type].name,
        dims=dims,
        shape=(-1, *dims) if max_batch_size > 0 else dims,
        optional=is_input and tensor.optional,
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        label_filename="" if is_input else tensor.label_filename,
        allow_ragged_batch=is_input and tensor.allow_ragged_batch,
    )


def _instances(group: Config) -> list[InstanceSpec]:
    """The group's instances: `count` per GPU, or `count` in all without GPUs. Numbers run through the whole group."""
    kind = group.Kind.Name(group.kind).removeprefix("KIND_")
    devices = [gpu for gpu in group.gpus or [0] for _ in range(group.count)]
    settings = type(group)()
    settings.CopyFrom(group)
    settings.ClearField("name")
    settings.ClearField("count")
    settings.ClearField("gpus")  # each instance has one of them
    alike = settings.SerializeToString(deterministic=True)
    needs, priority = resource_needs(group.rate_limiter), group.rate_limiter.priority
    return [
        InstanceSpec(f"{group.name}_{index}", kind, device_id, group.passive, (alike, device_id), needs, priority)
        for index, device_id in enumerate(devices)
    ]


def _distinct(instances: Sequence[InstanceSpec]) -> tuple[InstanceSpec, ...]:
    """The instances with names of their own: those of a group of the same name as another are numbered on."""
    found: dict[str, InstanceSpec] = {}
    for each in instances:
        name, number = each.name, count()
        while name in found:
            name = f"{each.name.rpartition('_')[0]}_{next(number)}"
        found[name] = replace(each, name=name)
    return tuple(found.values())


def _dynamic_batching(config: Config) -> DynamicBatchingSpec | None:
    if not config.HasField("dynamic_batching"):
        return None
    batching = config.dynamic_batching
    return DynamicBatchingSpec(
        preferred_batch_sizes=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        policy=_queue_policy(batching.default_queue_policy),
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        level_policies=tuple(
            (level, _queue_policy(batching.priority_queue_policy[level]))
            for level in sorted(batching.priority_queue_policy)
        ),
        preserve_ordering=batching.preserve_ordering,
    )


def _queue_policy(policy: Config) -> QueuePolicySpec:
    return QueuePolicySpec(
        max_queue_size=policy.max_queue_size,
        default_timeout_us=policy.default_timeout_microseconds,
        delays=policy.timeout_action == policy.DELAY,
        allow_timeout_override=policy.allow_timeout_override,
    )

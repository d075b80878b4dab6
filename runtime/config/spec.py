# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The part of a model configuration that the server acts on, as plain values. (pure)

Protobuf messages are slow to read; these are made once when a model loads and read on every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `datatype` is the protocol name (`FP32`); -1 in a shape matches any size.

    `dims` is what config.pbtxt says; `shape` is what a client sends: `dims` behind a leading -1 when the model batches.
    `reshape` is the non-batch shape that the model sees instead of `dims`, or None.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    optional: bool = False
    reshape: tuple[int, ...] | None = None
    label_filename: str = ""
    allow_ragged_batch: bool = False


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance: `kind` is "CPU", "GPU", "MODEL" or "AUTO"; `name` is `<group>_<i>`."""

    name: str
    kind: str
    device_id: int
    passive: bool = False


@dataclass(frozen=True, slots=True)
class DynamicBatchingSpec:
    """What `dynamic_batching {}` asks for. `max_queue_size` 0 means unlimited."""

    preferred_batch_sizes: tuple[int, ...]
    max_queue_delay_us: int
    max_queue_size: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model's configuration, ready for use. `json` is the rendering of the config endpoint and of `args`.

    With `iterative_sequence` the model may ask to be given a request again, until it is done with it. `metric_tags` are
    labels of its metrics; `first_response_bounds_ms` are its own buckets for these times, None for the usual ones.
    `labels` are the lines of the outputs' label files, by output; whoever loads a model reads them.
    """

    name: str
    backend: str
    runtime: str
    platform: str
    max_batch_size: int
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    required_inputs: frozenset[str]
    instances: tuple[InstanceSpec, ...]
    decoupled: bool
    default_model_filename: str
    parameters: dict[str, str]
    dynamic_batching: DynamicBatchingSpec | None
    json: bytes
    iterative_sequence: bool = False
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    first_response_bounds_ms: tuple[float, ...] | None = None

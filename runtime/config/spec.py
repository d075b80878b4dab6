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
class ControlSpec:
    """An input that tells the model where in a sequence a request is.

    `kind` is START, READY or END, whose contents are `false` or `true`; or CORRID, whose contents are the id.
    """

    name: str
    kind: str
    datatype: str
    false: bytes = b""
    true: bytes = b""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """A tensor that is kept for every sequence, from one of its requests to the next.

    `shape` and `initial` are what it begins with, the batch dimension included; `data_file` is where `initial` is to be
    read from, "" for a state of zeros. Whoever loads a model reads it. `dims` is what config.pbtxt says.
    """

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    initial: bytes
    data_file: str = ""


@dataclass(frozen=True, slots=True)
class SequenceBatchingSpec:
    """What `sequence_batching {}` asks for: sequences have slots of an instance, which has `slots` of them.

    With `oldest` requests are batched as they come, up to preferred sizes; otherwise by slot, and a batch is due when
    `minimum_slot_utilization` of the slots have a request.
    """

    oldest: bool
    slots: int
    max_idle_us: int
    max_queue_delay_us: int
    minimum_slot_utilization: float
    preferred_batch_sizes: tuple[int, ...]
    controls: tuple[ControlSpec, ...]
    states: tuple[StateSpec, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model's configuration, ready for use. `json` is the rendering of the config endpoint and of `args`.

    With `iterative_sequence` the model may ask to be given a request again, until it is done with it;
    `sequence_batching` is None where no request depends on one that came before it. `metric_tags` are labels of its
    metrics; `first_response_bounds_ms` are its own buckets for these times, None for the usual ones.
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
    sequence_batching: SequenceBatchingSpec | None = None
    response_cache: bool = False

    @property
    def is_batched(self) -> bool:
        """Whether several requests may be executed together."""
        return self.dynamic_batching is not None or (self.sequence_batching is not None and self.max_batch_size > 1)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of a model configuration that the server uses, as plain values. (pure)

They are built once, when a model loads, and read for every request: attributes of protobuf messages are slow to read.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. `datatype` is the protocol's name (`FP32`); -1 in a shape matches any size.

    `dims` is the field of config.pbtxt. `shape` is the shape that a client sends: `dims`, after a leading -1 if the
    model batches. `reshape` is the shape without batch dimension that the model sees instead of `dims`, or None.
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
    """One instance: `kind` is "CPU", "GPU", "MODEL" or "AUTO"; `name` is `<group>_<i>`.

    Instances with equal `signature` differ in nothing but the name. `needs` and `priority` are for the rate limiter:
    the resources that an execution needs, each with its name, whether it is global, and how much.
    """

    name: str
    kind: str
    device_id: int
    passive: bool = False
    signature: Hashable = field(default=(), compare=False)
    needs: tuple[tuple[str, bool, int], ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True)
class QueuePolicySpec:
    """A queue policy: how many requests may wait, 0 for any number, and for how long, 0 for any time.

    A request that has waited too long is rejected; with `delays` it goes behind the others. `allow_timeout_override`:
    the request's own timeout may make the time shorter.
    """

    max_queue_size: int = 0
    default_timeout_us: int = 0
    delays: bool = False
    allow_timeout_override: bool = False


@dataclass(frozen=True, slots=True)
class DynamicBatchingSpec:
    """The settings of `dynamic_batching {}`.

    `priority_levels` is 0 if all requests are of one level; `level_policies` has the levels with a policy of their own.
    """

    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    policy: QueuePolicySpec = QueuePolicySpec()
    priority_levels: int = 0
    default_priority_level: int = 0
    level_policies: tuple[tuple[int, QueuePolicySpec], ...] = ()
    preserve_ordering: bool = False

    @property
    def takes_timeouts(self) -> bool:
        """Whether the timeout of a request may shorten the time that it waits."""
        policies = (self.policy, *(policy for _, policy in self.level_policies if self.priority_levels))
        return any(policy.allow_timeout_override and policy.default_timeout_us for policy in policies)

    def policy_of(self, level: int) -> QueuePolicySpec:
        """The policy of a priority level. Levels inherit all of the default policy, or nothing."""
        return dict(self.level_policies).get(level, self.policy) if self.priority_levels else self.policy


@dataclass(frozen=True, slots=True)
class ControlSpec:
    """A control input, which tells the model the position of a request in its sequence.

    `kind` is START, READY or END, with the contents `false` or `true`; or CORRID, with the correlation id as contents.
    """

    name: str
    kind: str
    datatype: str
    false: bytes = b""
    true: bytes = b""


@dataclass(frozen=True, slots=True)
class StateSpec:
    """An implicit state: a tensor that the server keeps for each sequence from one request to the next.

    `shape` (with the batch dimension) and `initial`, which has `size` bytes, are its first value. `data_file` names the
    file with that value, "" for zeros; the loading of the model reads it. The loading of a model in Python puts the
    contents into shared memory, and `initial` is then their address. `dims` is the field of config.pbtxt. `is_shared`:
    the input and the output are the same memory while the model executes a request. `is_growable`: its memory may grow.
    """

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    initial: bytes | int
    size: int
    data_file: str = ""
    is_shared: bool = False
    is_growable: bool = False


@dataclass(frozen=True, slots=True)
class SequenceBatchingSpec:
    """The settings of `sequence_batching {}`. Each instance has `slots` for sequences.

    With `oldest`, requests are batched in order of arrival, up to preferred sizes; otherwise by slot, and a batch is
    due when `minimum_slot_utilization` of the slots have a request. `preserve_ordering` is for `oldest` only. `backlog`
    says how many sequences may wait for a slot, and how long a request of such a sequence may.
    """

    oldest: bool
    slots: int
    max_idle_us: int
    max_queue_delay_us: int
    minimum_slot_utilization: float
    preferred_batch_sizes: tuple[int, ...]
    controls: tuple[ControlSpec, ...]
    states: tuple[StateSpec, ...]
    preserve_ordering: bool
    backlog: QueuePolicySpec = QueuePolicySpec()


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step of an ensemble, a request to a model.

    `inputs` and `outputs` map the model's names of tensors to those of the ensemble. `model_version` -1 is the latest.
    """

    model_name: str
    model_version: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class EnsembleSpec:
    """The settings of `ensemble_scheduling {}`. `max_inflight_requests`, of each step, is 0 for any number.

    `optional_outputs` are outputs of the ensemble that may be absent because the steps before them were skipped.
    """

    steps: tuple[StepSpec, ...]
    max_inflight_requests: int
    optional_outputs: frozenset[str]


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a warm-up sample: `size` bytes of zeros, of random values, or from a file.

    `shape` has the batch dimension, unless it is a control input: one that is not among the inputs of the model. `file`
    is in the folder of such files of the model, "" for none.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int
    is_random: bool
    file: str
    is_control: bool


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """Requests for each instance to execute before it is ready: `batch_size` at a time, `count` times."""

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupInput, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The configuration of one model. `json` is its rendering for the config endpoint and for `args`.

    With `iterative_sequence` the model may reschedule a request until it has finished it. `sequence_batching` is None
    for a model without sequences. `metric_tags` are labels of the model's metrics;
    `first_response_bounds_ms` are its histogram buckets for the first response, None for the default ones.
    `labels` are the lines of the label files, by output name; the loading of the model reads them. `ensemble` is None
    for a model that is no ensemble.
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
    ensemble: EnsembleSpec | None = None
    warmup: tuple[WarmupSample, ...] = ()

    @property
    def is_batched(self) -> bool:
        """Whether several requests may be executed together."""
        return self.dynamic_batching is not None or (self.sequence_batching is not None and self.max_batch_size > 1)

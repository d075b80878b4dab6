# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The models of scenarios: each is drawn from its kind and a small number, and its configuration is read once.

To add a kind, write a function that draws the text of a configuration, and list it in KINDS.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from random import Random

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.preferred_groups import with_groups_of
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.gpus.tensor_places import PARAMETER
from pyruntime.runtime.instances.stub.execution_timer import PARAMETER as EXECUTION_TIMEOUT
from pyruntime.runtime.loaders.version_loader import final_spec
from pyruntime.runtime.repository.draft import Draft
from pyruntime.runtime.repository.instance_mode import instance_processes
from pyruntime.runtime.repository.scan import ModelFolder

# How many models there are of each kind. More would make each rarer, and reading them longer.
VARIANTS = 40
# The resource that executions share in servers with a rate limiter, and how much there is of it.
RESOURCE = "R"
RESOURCE_LIMIT = 2

_TENSORS = "input { name: 'IN' data_type: TYPE_INT64 dims: -1 } output { name: 'OUT' data_type: TYPE_INT64 dims: -1 }"


@dataclass(frozen=True, eq=False)
class Model:
    """A model. `calls` is the model that it calls, or "" ; `steps` are the models of an ensemble."""

    name: str
    kind: str
    draft: Draft
    spec: ModelSpec
    calls: str = ""
    steps: tuple["Model", ...] = ()

    @cached_property
    def is_decoupled(self):
        return self.spec.decoupled

    @cached_property
    def is_sequence(self):
        return self.spec.sequence_batching is not None and not self.spec.iterative_sequence

    @cached_property
    def is_iterative(self):
        return self.spec.iterative_sequence

    @cached_property
    def states(self):
        """The states of its sequences."""
        return self.spec.sequence_batching.states if self.is_sequence else ()

    @cached_property
    def warm_ups(self):
        """How many requests of its warm-up each life of an instance executes first, on each of its threads."""
        return sum(sample.batch_size * sample.count for sample in self.spec.warmup)

    @cached_property
    def may_be_limited(self):
        """Whether its executions may have a limit of time."""
        return self.kind not in ("native", "ensemble") and "INSTANCE_MODE" not in self.spec.parameters

    @cached_property
    def needs(self):
        """How much of the resource an execution needs."""
        return sum(amount for _, _, amount in self.spec.instances[0].needs) if self.spec.instances else 0

    def shape(self, rows, elements):
        """The shape of an input of a client."""
        return [rows, elements] if self.spec.max_batch_size else [elements]


def _instances(draw):
    limiter = ""
    if draw.random() < 0.4:
        needs = f"resources {{ name: '{RESOURCE}' global: true count: {draw.randint(1, RESOURCE_LIMIT)} }}"
        limiter = f" rate_limiter {{ {needs} priority: {draw.randint(0, 2)} }}"
    parameters = " parameters { key: 'INSTANCE_MODE' value { string_value: 'thread' } }" if draw.random() < 0.15 else ""
    return f"instance_group {{ kind: KIND_CPU count: {draw.choice((1, 1, 2, 3))}{limiter} }}{parameters}"


def _policy(draw):
    """One queue policy."""
    text = f"timeout_action: {draw.choice(('REJECT', 'REJECT', 'DELAY'))} "
    text += f"default_timeout_microseconds: {draw.choice((0, 0, 3_000, 200_000))} "
    text += f"allow_timeout_override: {draw.choice(('true', 'false'))} max_queue_size: {draw.choice((0, 0, 0, 3))}"
    return text


def _batching(draw, size):
    """One `dynamic_batching`."""
    text = f"max_queue_delay_microseconds: {draw.choice((0, 0, 500, 20_000))} "
    preferred = draw.choice(((), (), (2,), (2, 4), (size,)))
    text += "".join(f"preferred_batch_size: {each} " for each in preferred if each <= size)
    text += f"preserve_ordering: {draw.choice(('true', 'false', 'false'))} "
    if draw.random() < 0.6:
        text += f"default_queue_policy {{ {_policy(draw)} }} "
    levels = draw.choice((0, 0, 2, 3))
    if levels:
        text += f"priority_levels: {levels} default_priority_level: {draw.randint(1, levels)} "
        if draw.random() < 0.5:
            text += f"priority_queue_policy {{ key: {draw.randint(1, levels)} value {{ {_policy(draw)} }} }} "
    return f"dynamic_batching {{ {text} }}"


def plain(draw):
    return f"max_batch_size: {draw.choice((0, 0, 4))} {_TENSORS} {_instances(draw)}"


def batched(draw):
    size = draw.choice((2, 4, 8))
    return f"max_batch_size: {size} {_TENSORS} {_instances(draw)} {_batching(draw, size)}"


def decoupled(draw):
    text = batched(draw) if draw.random() < 0.4 else plain(draw)
    return f"{text} model_transaction_policy {{ decoupled: true }}"


def cached(draw):
    text = batched(draw) if draw.random() < 0.4 else plain(draw)
    return f"{text} response_cache {{ enable: true }}"


def streamed(draw):
    """Decoupled, and its streams are cached."""
    parameter = "parameters { key: 'CACHE_STREAMS' value { string_value: 'true' } }"
    return f"{decoupled(draw)} response_cache {{ enable: true }} {parameter}"


def warmed(draw):
    """Executes samples before it is ready."""
    is_batched = draw.random() < 0.5
    size = draw.randint(1, 2) if is_batched else 1
    tensor = "inputs { key: 'IN' value { data_type: TYPE_INT64 dims: 1 zero_data: true } }"
    sample = f"name: 'sample' batch_size: {size} count: {draw.choice((0, 1, 3))} {tensor}"
    return f"{batched(draw) if is_batched else plain(draw)} model_warmup {{ {sample} }}"


def stateful(draw):
    """Keeps a state for each sequence: the value of the request before. Some models change it in place."""
    is_shared = draw.choice(("true", "false", "false"))
    zeros = "initial_state { name: 'zeros' data_type: TYPE_INT64 dims: 1 zero_data: true }"
    state = f"input_name: 'STATE' output_name: 'NEXT' data_type: TYPE_INT64 dims: 1 {zeros}"
    state = f"state {{ {state} use_same_buffer_for_input_output: {is_shared} }}"
    return sequence(draw).replace("sequence_batching {", f"sequence_batching {{ {state}", 1)


def sequence(draw):
    size = draw.choice((1, 2, 4))
    controls = "".join(
        f"control_input {{ name: '{kind}' control {{ kind: CONTROL_SEQUENCE_{kind} int32_false_true: [0, 1] }} }} "
        for kind in ("START", "READY", "END")
        if draw.random() < 0.5
    )
    if draw.random() < 0.5:
        delay = f"max_queue_delay_microseconds: {draw.choice((0, 0, 2_000))}"
        order = f"preserve_ordering: {draw.choice(('true', 'false'))}"
        strategy = f"oldest {{ max_candidate_sequences: {draw.choice((1, 2, 4))} {delay} {order} }}"
    else:
        delay = f"max_queue_delay_microseconds: {draw.choice((0, 2_000))}"
        strategy = f"direct {{ {delay} minimum_slot_utilization: {draw.choice((0.0, 0.5))} }}"
    idle = draw.choice((50_000, 1_000_000))
    batching = f"sequence_batching {{ max_sequence_idle_microseconds: {idle} {controls} {strategy} }}"
    instances = f"instance_group {{ kind: KIND_CPU count: {draw.choice((1, 2))} }}"
    return f"max_batch_size: {size} {_TENSORS} {instances} {batching}"


def iterative(draw):
    controls = draw.choice(("", "control_input { name: 'START' control { int32_false_true: [0, 1] } } "))
    instances = _instances(draw)
    order = f"preserve_ordering: {draw.choice(('true', 'false'))}"
    strategy = f"oldest {{ max_candidate_sequences: 4 {order} }}" if draw.random() < 0.7 else ""
    batching = f"sequence_batching {{ iterative_sequence: true {controls}{strategy} }}"
    return f"max_batch_size: 4 {_TENSORS} {instances} {batching}"


def caller(draw):
    return plain(draw)


def native(draw):
    return batched(draw) if draw.random() < 0.6 else plain(draw)


KINDS = {
    "plain": plain,
    "batched": batched,
    "decoupled": decoupled,
    "cached": cached,
    "streamed": streamed,
    "warmed": warmed,
    "sequence": sequence,
    "stateful": stateful,
    "iterative": iterative,
    "caller": caller,
    "native": native,
}
# What ensembles are made of.
STEP_KINDS = ("plain", "batched", "native", "cached", "decoupled")


@cache
def model_of(kind, number):
    """The model of a kind with a number below VARIANTS."""
    name = f"{kind}_{number}"
    draw = Random(name)
    if kind == "ensemble":
        return _ensemble(name, draw)
    backend = "cpp" if kind == "native" else "python"
    calls = f"{draw.choice(('plain', 'batched', 'native'))}_{draw.randrange(VARIANTS)}" if kind == "caller" else ""
    draft, spec = _read(name, f"backend: '{backend}' {KINDS[kind](draw)}")
    return Model(name, kind, draft, spec, calls)


def named(name):
    """The model of this name."""
    kind, _, number = name.rpartition("_")
    return model_of(kind, int(number))


@cache
def changed(model, count, gpu, reads, limit_ms=0):
    """A draft of a model whose first instance group has so many instances, as before for None.

    All of them are on a GPU, None for none. With `reads` the model reads its inputs there. Executions of the model may
    take `limit_ms` milliseconds, 0 for any time.
    """
    if count is None and gpu is None and not limit_ms:
        return model.draft
    config = with_groups_of(model.draft.config, model.draft.config)
    if count is not None:
        config.instance_group[0].count = count
    if gpu is not None:
        for group in config.instance_group:
            group.kind = group.KIND_GPU
            group.gpus[:] = [gpu]
    if reads:
        config.parameters[PARAMETER].string_value = "no"
    if limit_ms:
        config.parameters[EXECUTION_TIMEOUT].string_value = str(limit_ms)
    return _draft(model.name, config)


def _ensemble(name, draw):
    """A chain of two or three models; in some of them the last two read the same tensor."""
    size = draw.choice((0, 2))
    steps = [_step(draw, size) for _ in range(draw.choice((2, 2, 3)))]
    is_fork = len(steps) == 3 and draw.random() < 0.4 and not any(step.is_decoupled for step in steps)
    text, tensor, outputs = "", "IN", ["OUT"]
    for index, step in enumerate(steps):
        made = "OUT" if index == len(steps) - 1 else f"t{index}"
        if is_fork and index == 1:
            made = "SIDE"
            outputs.append(made)
        text += (
            f"step {{ model_name: '{step.name}' model_version: -1 "
            f"input_map {{ key: 'IN' value: '{tensor}' }} output_map {{ key: 'OUT' value: '{made}' }} }} "
        )
        tensor = tensor if made == "SIDE" else made
    tensors = "input { name: 'IN' data_type: TYPE_INT64 dims: -1 } "
    tensors += "".join(f"output {{ name: '{each}' data_type: TYPE_INT64 dims: -1 }} " for each in outputs)
    limit = draw.choice((0, 0, 1, 2))
    credits = f"max_inflight_requests: {limit} " if limit else ""
    decoupled = any(step.is_decoupled for step in steps)
    policy = "model_transaction_policy { decoupled: true } " if decoupled else ""
    config = f"platform: 'ensemble' max_batch_size: {size} {policy}{tensors} ensemble_scheduling {{ {credits}{text} }}"
    draft, spec = _read(name, config)
    return Model(name, "ensemble", draft, spec, steps=tuple(steps))


def _step(draw, size):
    """A model that batches if the ensemble does."""
    while True:
        step = model_of(draw.choice(STEP_KINDS), draw.randrange(VARIANTS))
        if bool(step.spec.max_batch_size) == bool(size):
            return step


def _read(name, text):
    config = parse_model_config(f"name: '{name}' {text}", "config.pbtxt")
    config = normalize(config, directory_name=name, files=("model.py",), gpus=())
    draft = _draft(name, config)
    return draft, draft.identity


def _draft(name, config):
    folder = ModelFolder(name, f"/simulated/{name}", None, (1,))
    spec = final_spec(Draft(folder, config, None, (), (1,), {}), config)
    return Draft(folder, config, spec, instance_processes(spec), (1,), {})

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The plain values that a configuration becomes."""

import pytest

from pyruntime.runtime.config.autocomplete import merge_auto_complete, minimal_config
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.spec import DynamicBatchingSpec, InstanceSpec, QueuePolicySpec, TensorSpec
from pyruntime.runtime.config.unsupported import unsupported_features
from pyruntime.runtime.config.validate import validate

from ..model_specs import spec_from


def _spec(text, gpus=()):
    return spec_from(text, gpus=gpus)


def test_the_least_model():
    """A configuration that says nothing has values all the same."""
    spec = _spec("")
    assert (spec.name, spec.backend, spec.runtime, spec.platform) == ("m", "python", "", "python")
    assert (spec.max_batch_size, spec.inputs, spec.outputs, spec.required_inputs) == (0, {}, {}, frozenset())
    assert spec.instances == (InstanceSpec(name="m_0", kind="CPU", device_id=0),)
    assert (spec.decoupled, spec.default_model_filename) == (False, "model.py")
    assert (spec.parameters, spec.dynamic_batching) == ({}, None)


def test_the_rest_of_the_values():
    """Each comes from the field of its name."""
    spec = _spec(
        "runtime: 'r' platform: 'p' backend: 'b' model_transaction_policy { decoupled: true } "
        "parameters { key: 'k' value { string_value: 'v' } } default_model_filename: 'f.py'"
    )
    assert (spec.runtime, spec.platform, spec.backend) == ("r", "p", "b")
    assert (spec.decoupled, spec.parameters, spec.default_model_filename) == (True, {"k": "v"}, "f.py")


def test_json_is_the_rendering():
    """The spec has the JSON that the config endpoint shows."""
    config = normalize(minimal_config("m"), directory_name="m", files=["model.py"], gpus=())
    assert model_spec(config).json == render(config)


@pytest.mark.parametrize(("max_batch_size", "batch"), [(0, ()), (1, (-1,))])
def test_tensors(max_batch_size, batch):
    """A client sends the dims, behind a dimension of any size if the model batches at all."""
    spec = _spec(
        f"max_batch_size: {max_batch_size} "
        "input { name: 'A' data_type: TYPE_STRING dims: [ -1, 4 ] optional: true allow_ragged_batch: true } "
        "input { name: 'B' data_type: TYPE_BF16 dims: 4 reshape { shape: [ 2, 2 ] } } "
        "output { name: 'C' data_type: TYPE_BOOL dims: 2 label_filename: 'labels.txt' } "
        "output { name: 'D' data_type: TYPE_FP32 dims: 1 reshape {} }"
    )
    assert spec.inputs == {
        "A": TensorSpec("A", "BYTES", (-1, 4), (*batch, -1, 4), optional=True, allow_ragged_batch=True),
        "B": TensorSpec("B", "BF16", (4,), (*batch, 4), reshape=(2, 2)),
    }
    assert spec.outputs == {
        "C": TensorSpec("C", "BOOL", (2,), (*batch, 2), label_filename="labels.txt"),
        "D": TensorSpec("D", "FP32", (1,), (*batch, 1), reshape=()),
    }
    assert spec.required_inputs == {"B"}


def test_of_outputs_with_one_name_the_first_counts():
    text = "output [ {{ name: 'A' {0} dims: 1 }}, {{ name: 'B' {0} dims: 2 }}, {{ name: 'A' {0} dims: [ 3, 4 ] }} ]"
    spec = _spec(text.format("data_type: TYPE_BOOL"))
    assert list(spec.outputs) == ["A", "B"]
    assert spec.outputs["A"].dims == (1,)


@pytest.mark.parametrize(
    ("groups", "gpus", "expected"),
    [
        ("{}", (), [("m_0_0", "CPU", 0)]),
        ("{ count: 2 }, { name: 'g' }", (), [("m_0_0", "CPU", 0), ("m_0_1", "CPU", 0), ("g_0", "CPU", 0)]),
        ("{ count: 2 }", (0, 3), [("m_0_0", "GPU", 0), ("m_0_1", "GPU", 0), ("m_0_2", "GPU", 3), ("m_0_3", "GPU", 3)]),
        ("{ kind: KIND_MODEL }", (0,), [("m_0_0", "MODEL", 0)]),
        (
            "{ name: 'g' count: 2 }, { name: 'g' kind: KIND_MODEL count: 2 }, { name: 'g' }, { name: 'g_1' }",
            (),
            [
                *(("g_0", "CPU", 0), ("g_1", "CPU", 0), ("g_2", "MODEL", 0), ("g_3", "MODEL", 0), ("g_4", "CPU", 0)),
                ("g_1_0", "CPU", 0),
            ],
        ),
        ("{ name: 'm_1' }, { }", (), [("m_1_0", "CPU", 0), ("m_1_1", "CPU", 0)]),
    ],
)
def test_instances(groups, gpus, expected):
    """Names count through the group, over all of its GPUs, and through all groups of one name."""
    spec = _spec(f"instance_group [ {groups} ]", gpus)
    assert [(instance.name, instance.kind, instance.device_id) for instance in spec.instances] == expected


def test_passive_instances():
    """A group's instances are all passive, or none is."""
    assert [i.passive for i in _spec("instance_group [ { passive: true }, {} ]").instances] == [True, False]


def test_dynamic_batching():
    """The settings of the batcher, in its units."""
    assert _spec("max_batch_size: 8 dynamic_batching {}").dynamic_batching == DynamicBatchingSpec((8,))
    policy = "default_queue_policy { max_queue_size: 5 }"
    spec = _spec(f"max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: 7 {policy} }}")
    assert spec.dynamic_batching == DynamicBatchingSpec((8,), 7, QueuePolicySpec(5))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", False), ("sequence_batching {}", False), ("sequence_batching { iterative_sequence: true }", True)],
)
def test_iterative_sequence(text, expected):
    """The configuration decides whether the model may reschedule requests."""
    assert _spec(text).iterative_sequence is expected


def test_all_steps_in_their_order():
    """A model without a file that completes its configuration itself ends up with values to serve by."""
    config = minimal_config("m")
    config = normalize(config, directory_name="m", files=["model.py"], gpus=())
    tensor = {"name": "A", "data_type": "TYPE_INT8", "dims": [2]}
    returned = {"max_batch_size": 4, "input": [tensor], "output": [tensor], "dynamic_batching": {}}
    config = merge_auto_complete(config, returned)
    config = normalize(config, directory_name="m", files=["model.py"], gpus=())
    validate(config, ())
    assert unsupported_features(config) == []
    spec = model_spec(config)
    assert spec.inputs == spec.outputs == {"A": TensorSpec("A", "INT8", (2,), (-1, 2))}
    assert spec.dynamic_batching == DynamicBatchingSpec((4,))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON of a configuration."""

import json

import pytest

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.render import render


def _rendered(text):
    return json.loads(render(parse_model_config(text, "config.pbtxt")))


def test_golden():
    """Names, order, defaults, lists, maps and messages, to the letter."""
    text = """
        max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: [ 16 ] }
        output { name: "B" data_type: TYPE_STRING dims: [ -1 ] reshape { shape: [ -1, 1 ] } }
        dynamic_batching {}
        parameters { key: "k" value { string_value: "v" } }
        model_transaction_policy {}
    """
    config = parse_model_config(text, "config.pbtxt")
    config = normalize(config, directory_name="m", files=["model.py"], gpus=())
    golden = """
        {"name":"m","platform":"","backend":"python","runtime":"",
        "version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,
        "input":[{"name":"A","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,
        "allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],
        "output":[{"name":"B","data_type":"TYPE_STRING","dims":[-1],"reshape":{"shape":[-1,1]},"label_filename":"",
        "is_shape_tensor":false,"is_non_linear_format_io":false}],
        "batch_input":[],"batch_output":[],
        "optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},
        "output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},
        "dynamic_batching":{"preferred_batch_size":[8],"max_queue_delay_microseconds":0,"preserve_ordering":false,
        "priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},
        "instance_group":[{"name":"m","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],
        "passive":false,"host_policy":""}],
        "default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},
        "parameters":{"k":{"string_value":"v"}},"model_warmup":[],"model_transaction_policy":{"decoupled":false}}
    """
    assert render(config).decode() == "".join(line.strip() for line in golden.splitlines())


def test_long_integers_are_numbers():
    """64-bit integers are not quoted, not even the largest."""
    batching = _rendered(f"dynamic_batching {{ max_queue_delay_microseconds: {2**64 - 1} }}")["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 2**64 - 1


def test_maps_are_objects_in_order():
    """Keys are strings, for every type in the schema, and sorted."""
    entries = "priority_queue_policy { key: 10 } priority_queue_policy { key: 2 value { max_queue_size: 3 } }"
    policies = _rendered(f"dynamic_batching {{ {entries} }}")["dynamic_batching"]["priority_queue_policy"]
    assert list(policies) == ["2", "10"]
    assert policies["2"]["max_queue_size"] == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [("zero_data: true", {"zero_data": True}), ("input_data_file: ''", {"input_data_file": ""}), ("", {})],
)
def test_of_a_choice_only_the_one_made_is_shown(text, expected):
    """Members of a oneof are shown when set, plain ones too."""
    warmup = _rendered(f"model_warmup {{ inputs {{ key: 'x' value {{ {text} }} }} }}")["model_warmup"][0]
    assert warmup["inputs"]["x"] == {"data_type": "TYPE_INVALID", "dims": [], **expected}


def test_an_unknown_enum_value_is_its_number():
    """A name is not invented for it."""
    assert _rendered("input { data_type: 99 }")["input"][0]["data_type"] == 99


@pytest.mark.parametrize(
    "number", ["0.1", "0.33333334", "1017.09875", "3.4028235e+38", "0.12345678", "0.0", "1.0", "16777217.0"]
)
def test_floats_have_few_digits(number):
    """A float is shown as it was written, as far as 32 bits hold it."""
    direct = _rendered(f"sequence_batching {{ direct {{ minimum_slot_utilization: {number} }} }}")
    utilization = direct["sequence_batching"]["direct"]["minimum_slot_utilization"]
    assert utilization == (16777216.0 if number == "16777217.0" else float(number))


def test_doubles_are_exact():
    """A double has all its digits; infinity, which JSON lacks, is null."""
    options = "histogram_options { buckets: [ 0.1, inf ] }"
    metric = _rendered(f"model_metrics {{ metric_control {{ {options} }} }}")["model_metrics"]["metric_control"][0]
    assert metric == {"histogram_options": {"buckets": [0.1, None]}}

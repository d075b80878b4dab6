# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every rule about a configuration, by its message."""

import pytest

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.validate import INSTANCES_MAX, validate, validate_devices, validate_instances
from pyruntime.utils.errors import ConfigError, LoadError

INPUT = "name: 'x' data_type: TYPE_FP32"
SHAPE_TENSOR = "shape tensors are only supported for TensorRT platform for m"
NON_LINEAR = "Non-linear IO format is only supported for the TensorRT platform for m"


def _validate(text, name="m", files=("model.py",), gpus=()):
    config = parse_model_config(text, "config.pbtxt")
    config = normalize(config, directory_name=name, files=files, gpus=gpus)
    validate(config, gpus)
    return config


def _complaint(text, **kwargs):
    with pytest.raises(LoadError) as caught:
        _validate(text, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"input {{ {INPUT} dims: [ -1, 4 ] }} output {{ {INPUT} dims: 1 }}",
        f"max_batch_size: 4 input {{ {INPUT} dims: 1 reshape {{}} }}",
        f"max_batch_size: 4 input {{ {INPUT} reshape {{ shape: 1 }} }}",
        f"input {{ {INPUT} dims: [ 2, -1, 6 ] reshape {{ shape: [ 2, -1, 2, 3 ] }} }}",
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 1, 4 ] }",
        "dynamic_batching {}",
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 1 } }",
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }",
        "dynamic_batching { priority_queue_policy { key: 7 } }",  # without levels nothing is of level 7
        "response_cache { enable: true }",
        "model_transaction_policy { decoupled: true } response_cache {}",
        "model_transaction_policy { decoupled: true } response_cache { enable: true }"
        "parameters { key: 'CACHE_STREAMS' value { string_value: 'true' } }",
        "backend: 'vllm' default_model_filename: 'a'",
        "backend: 'python' platform: 'mine'",
        "backend: 'tensorrt' platform: 'tensorrt_plan'",
        "platform: 'ensemble' input { name: 'I' data_type: TYPE_INT8 dims: 1 } "
        "output { name: 'O' data_type: TYPE_INT8 dims: 1 } ensemble_scheduling { step { model_name: 's' "
        "input_map { key: 'I' value: 'I' } output_map { key: 'O' value: 'O' } } }",
        "instance_group [ { kind: KIND_MODEL }, { kind: KIND_CPU } ]",
        f"instance_group {{ count: {INSTANCES_MAX} }}",
    ],
)
def test_valid(text):
    """These are all right."""
    _validate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        ("platform: 'ensemble'", "ensemble scheduling must be set for ensemble 'm' whose platform is ensemble"),
        (
            "backend: 'python' ensemble_scheduling {}",
            "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
        ),
        (
            "platform: 'ensemble' backend: 'python' ensemble_scheduling {}",
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (
            "platform: 'onnxruntime_onnx' backend: 'python'",
            "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python",
        ),
        ("platform: 'mine'", "unexpected platform type 'mine' for m"),
        ("backend: 'tensorflow'", "unexpected 'platform' and 'backend' pair, got:, tensorflow"),
        (
            "backend: 'python' default_model_filename: 'model.pt'",
            "Model name must end with '.py'. Model name is \"model.pt\".",
        ),
        (
            "default_model_filename: 'a.bin'",
            "must specify 'backend' for m: its configuration names none, and its default_model_filename 'a.bin' does "
            "not say which one it is",
        ),
        (
            "response_cache { enable: true } model_transaction_policy { decoupled: true }"
            "parameters { key: 'CACHE_STREAMS' value { string_value: 'yes' } }",
            "the parameter CACHE_STREAMS of model 'm' must be 'true' or 'false', and is 'yes'",
        ),
        (
            "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction policy. "
            "Please disable the response cache.",
        ),
        (
            "response_cache { enable: true } sequence_batching {}",
            "Response Cache does not currently support model m with sequence batching scheduler. "
            "Please disable the response cache.",
        ),
    ],
)
def test_rules_of_the_model(text, message):
    """Backend, platform, file name, batch size and cache."""
    assert _complaint(text) == message


def test_no_dims_are_a_scalar():
    """A tensor without dims is valid: `dims: [ ]` says the same as no dims at all, and is the only way to say it."""
    spec = model_spec(_validate(f"input {{ {INPUT} }} output {{ {INPUT} dims: [ ] }}"))
    assert spec.inputs["x"].shape == spec.outputs["x"].shape == ()


@pytest.mark.parametrize("noun", ["input", "output"])
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("dims: 1", "model {noun} must specify 'name'"),
        ("name: 'x' dims: 1", "model {noun} 'x' must specify 'data_type'"),
        ("name: 'x' data_type: 99 dims: 1", "model {noun} 'x' has an unknown 'data_type', 99"),
        (
            f"{INPUT} dims: [ 1, 0 ]",
            "model {noun} 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension, got 0",
        ),
        (
            f"{INPUT} dims: -2",
            "model {noun} 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension, got -2",
        ),
        (
            f"{INPUT} dims: 1 reshape {{ shape: 0 }}",
            "model {noun} 'x' reshape dimension must be integer >= 1, "
            "or -1 to indicate a variable-size dimension, got 0",
        ),
        (
            f"{INPUT} dims: 1 reshape {{}}",
            "model {noun} 'x' cannot have empty reshape for non-batching model as scalar tensors are not supported",
        ),
        (
            f"{INPUT} dims: [ -1, 4 ] reshape {{ shape: 4 }}",
            "model {noun} 'x' has different number of variable-size dimensions for dims and reshape",
        ),
        (f"{INPUT} dims: 4 reshape {{ shape: [ 2, 3 ] }}", "model {noun} 'x' has different size for dims and reshape"),
        (
            f"{INPUT} dims: [ 2, -1 ] reshape {{ shape: [ -1, 2 ] }}",
            "model {noun} 'x' has different size for dims and reshape",
        ),
    ],
)
def test_rules_of_tensors(noun, tensor, message):
    """Inputs and outputs have the same rules."""
    assert _complaint(f"{noun} {{ {tensor} }}") == message.format(noun=noun)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"input {{ {INPUT} dims: 1 is_shape_tensor: true }}", SHAPE_TENSOR),
        (f"output {{ {INPUT} dims: 1 is_shape_tensor: true }}", SHAPE_TENSOR),
        (f"input {{ {INPUT} dims: 1 is_non_linear_format_io: true }}", NON_LINEAR),
        (f"output {{ {INPUT} dims: 1 is_non_linear_format_io: true }}", NON_LINEAR),
        (
            "instance_group { profile: 'p' }",
            "instance group m_0 of model m and platform specifies profile field which is only supported for TensorRT "
            "models",
        ),
    ],
)
def test_what_only_engines_of_tensorrt_have(text, message):
    assert _complaint(text) == message
    _validate(f"{text} platform: 'tensorrt_plan'")


@pytest.mark.parametrize("dims", ["[ -1 ]", "[ 3, 4 ]", "[ 1, 3, 4, 4 ]"])
def test_an_image_has_three_dimensions_in_its_batch(dims):
    text = "input {{ name: 'x' data_type: TYPE_FP32 format: FORMAT_NCHW dims: {} }}"
    assert _complaint(text.format(dims)) == "model input NHWC/NCHW require 3 dims for m"
    _validate(text.format("[ 3, 4, 4 ]"))


def test_an_output_may_be_listed_twice_and_an_input_may_not():
    tensor = f"{{ {INPUT} dims: 1 }}"
    assert _complaint(f"input [ {tensor}, {tensor} ]") == "model 'm' has more than one input named 'x'"
    _validate(f"output [ {tensor}, {tensor} ]")


@pytest.mark.parametrize(
    ("batching", "message"),
    [
        ("preferred_batch_size: 0", "dynamic batching preferred size must be positive for m, got 0"),
        (
            "preferred_batch_size: [ 4, 5 ]",
            "dynamic batching preferred size must be <= max batch size for m, got 5 with max_batch_size 4",
        ),
        ("priority_levels: 2", "default priority level must be in range [1, 2] for m, got 0"),
        (
            "priority_levels: 2 default_priority_level: 3",
            "default priority level must be in range [1, 2] for m, got 3",
        ),
        (
            "priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 }",
            "priority queue policy must have priority level in range [1, 2] for m, got 3",
        ),
        (
            "preserve_ordering: true priority_levels: 2 default_priority_level: 1",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
    ],
)
def test_rules_of_dynamic_batching(batching, message):
    """Sizes fit into the largest batch, levels into their range, and order excludes priorities and delay."""
    assert _complaint(f"max_batch_size: 4 dynamic_batching {{ {batching} }}") == message


@pytest.mark.parametrize(
    ("group", "gpus", "message"),
    [
        (
            "kind: KIND_CPU gpus: 0",
            (0,),
            "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        ("kind: KIND_GPU", (), "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
        (
            "kind: KIND_MODEL gpus: 0",
            (0,),
            "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            "gpus: [ 0, 42 ]",
            (0, 1),
            "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        (
            "name: 'g' kind: KIND_GPU gpus: 42",
            (0, 1),
            "instance group g of model m specifies invalid or unsupported gpu id 42. GPUs with at least the minimum "
            "required CUDA compute compatibility of 6.000000 are: 0, 1",
        ),
        (
            "kind: KIND_GPU gpus: 0",
            (),
            "instance group m_0 of model m specifies invalid or unsupported gpu id 0. GPUs with at least the minimum "
            "required CUDA compute compatibility of 6.000000 are: ",
        ),
        ("kind: 9", (), "instance group m_0 of model m has an unknown kind, 9"),
        (
            f"count: {INSTANCES_MAX // 2 + 1}",
            (0, 1),
            f"model m has {INSTANCES_MAX + 2} instances, and at most {INSTANCES_MAX} are allowed",
        ),
        ("name: 'a;b'", (), "Invalid stub name: contains invalid characters"),
    ],
)
def test_rules_of_instance_groups(group, gpus, message):
    """Groups must name kinds, GPUs and numbers of instances that exist."""
    assert _complaint(f"instance_group {{ {group} }}", gpus=gpus) == message


def test_least_capability():
    """The message has the capability that the operator asks for."""
    config = parse_model_config("instance_group { kind: KIND_GPU gpus: 0 }", "config.pbtxt")
    config = normalize(config, directory_name="m", files=["model.py"], gpus=(1,))
    with pytest.raises(ConfigError, match=r"compatibility of 7\.500000 are: 1$"):
        validate_devices(config, (1,), 7.5)


@pytest.mark.parametrize("character", [*";|&$`<>()[]{}\\\"'*?~#!", "\n", "\0"])
def test_names_of_models(character):
    """Characters that a shell acts on, or that do not print, are in no name."""
    assert _complaint("", name=f"m{character}") == "Invalid stub name: contains invalid characters"


def test_instances_before_the_rest():
    """The instances can be checked while the model has yet to complete its inputs and batch size."""
    text = "input { name: 'x' } dynamic_batching { preferred_batch_size: 4 }"
    config = normalize(parse_model_config(text, "c"), directory_name="m", files=["model.py"], gpus=())
    validate_instances(config)
    config.instance_group[0].kind = 9
    with pytest.raises(ConfigError, match=r"^instance group m of model m has an unknown kind, 9$"):
        validate_instances(config)
    config.instance_group[0].kind = config.instance_group[0].KIND_CPU
    config.instance_group[0].count = 2**31 - 1
    with pytest.raises(LoadError, match=f"at most {INSTANCES_MAX} are allowed"):
        validate_instances(config)

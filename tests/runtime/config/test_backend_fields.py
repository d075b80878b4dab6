# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every field of a configuration for every backend: it is acted on, or the model is refused, or the log says so."""

import re
from pathlib import Path

import pytest

from pyruntime.runtime.config.backend_fields import BACKENDS, FRAMEWORKS, check_backend_fields, find_unused, is_ours
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.schema import CONFIG_DESCRIPTOR
from pyruntime.runtime.config.unsupported import unsupported_features
from pyruntime.runtime.config.validate import validate
from pyruntime.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CONFIG = "runtime/config/"

# The module that reads a field, or all fields below a path, where something acts on it; the longest path counts. A dict
# has the modules of backends.
ACTED_ON = {
    "name": CONFIG + "normalize.py",
    "platform": CONFIG + "backends.py",
    "backend": "runtime/repository/backends.py",
    "runtime": "runtime/repository/backends.py",
    "version_policy": "runtime/repository/versions.py",
    "max_batch_size": CONFIG + "build.py",
    "input": CONFIG + "build.py",
    "input.is_shape_tensor": {"tensorrt": "backends/tensorrt/options.py"},
    "output": CONFIG + "build.py",
    "output.is_shape_tensor": {"tensorrt": "backends/tensorrt/options.py"},
    # It has one value, which cannot be set.
    "batch_output.kind": CONFIG + "batch_tensors.py",
    "optimization.graph.level": {"onnxruntime": "backends/onnxruntime/options.py"},
    "optimization.execution_accelerators": {"onnxruntime": "backends/onnxruntime/options.py"},
    "optimization.input_pinned_memory": CONFIG + "normalize.py",
    "optimization.output_pinned_memory": CONFIG + "normalize.py",
    "dynamic_batching": CONFIG + "build.py",
    "sequence_batching": CONFIG + "sequences.py",
    "sequence_batching.iterative_sequence": CONFIG + "build.py",
    # Zeros are what there is without a file.
    "sequence_batching.state.initial_state.zero_data": "runtime/config/model_config.proto",
    "ensemble_scheduling": CONFIG + "ensembles.py",
    "instance_group": CONFIG + "build.py",
    "instance_group.rate_limiter.resources": CONFIG + "rate_limits.py",
    "default_model_filename": {
        **dict.fromkeys(FRAMEWORKS, "backends/toolkit/settings.py"),
        "python": "runtime/repository/backends.py",
        "custom": "backends/custom/configuration.py",
        # As in Triton it is filled in for backends in C++, which read it.
        "native": CONFIG + "backends.py",
    },
    "cc_model_filenames": {"custom": "backends/custom/configuration.py"},
    "metric_tags": CONFIG + "metrics.py",
    "parameters": CONFIG + "build.py",
    "model_warmup": CONFIG + "warmup.py",
    "model_operations": dict.fromkeys(FRAMEWORKS, "backends/toolkit/settings.py"),
    "model_transaction_policy": CONFIG + "build.py",
    "model_repository_agents": "runtime/repository/agents.py",
    "response_cache": CONFIG + "validate.py",
    "model_metrics": CONFIG + "metrics.py",
}


def leaves(message, *prefix):
    """The paths of all fields that are no messages; a map is one field."""
    for field in message.fields:
        path = (*prefix, field)
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            yield path
        else:
            yield from leaves(field.message_type, *path)


def text_of(path):
    """A field with a value that is not its default, in the form of config.pbtxt."""
    field = path[-1]
    values = {field.TYPE_STRING: "'x'", field.TYPE_BOOL: "true"}
    if field.message_type is not None:
        text = f"{field.name} {{ key: {values.get(field.message_type.fields_by_name['key'].type, 1)} }}"
    elif field.enum_type is not None:
        text = f"{field.name}: {field.enum_type.values[-1].name}"
    else:
        text = f"{field.name}: {values.get(field.type, 1)}"
    for outer in reversed(path[:-1]):
        text = f"{outer.name} {{ {text} }}"
    return text


LEAVES = {".".join(field.name for field in path): path for path in leaves(CONFIG_DESCRIPTOR)}


def is_said(config, backend, path):
    """Whether the log of a load names the field."""
    sentences = find_unused(config, backend)
    named = [name for sentence in sentences for name in re.split(r"[, ]+", sentence)]
    return path in named or bool(unsupported_features(config, is_native=backend == "native"))


def refusal(config, backend):
    """Why a model is refused for the field alone; None if it is not."""
    try:
        check_backend_fields(config, backend)
    except ConfigError as exc:
        return str(exc)
    return None


def module_for(path, backend):
    """The module that reads the field for a backend, "" for none."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        found = ACTED_ON.get(".".join(parts[:count]))
        if found is not None:
            return found.get(backend, "") if isinstance(found, dict) else found
    return ""


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("path", LEAVES)
def test_a_field_is_acted_on_or_refused_or_said(path, backend):
    config = parse_model_config(text_of(LEAVES[path]), "config.pbtxt")
    if is_said(config, backend, path) or refusal(config, backend):
        return
    module = module_for(path, backend)
    assert module, f"{path} is ignored by {backend}"
    assert re.search(rf"\b{path.rpartition('.')[2]}\b", (ROOT / module).read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input { is_shape_tensor: true }", "shape tensors are only supported for TensorRT platform for m"),
        ("output { is_shape_tensor: true }", "shape tensors are only supported for TensorRT platform for m"),
        (
            "output { is_non_linear_format_io: true }",
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
    ],
)
def test_ensembles_are_refused_as_other_models_are(text, message):
    text = re.sub(r"\{ ", "{ name: 'x' data_type: TYPE_FP32 dims: 1 ", text)
    config = parse_model_config(f"{text} platform: 'ensemble' ensemble_scheduling {{}}", "config.pbtxt")
    with pytest.raises(ConfigError) as caught:
        validate(normalize(config, directory_name="m", files=(), gpus=()), ())
    assert str(caught.value) == message


def test_a_sentence_names_all_fields_at_once():
    config = parse_model_config(
        "name: 'm' optimization { cuda { graphs: true } priority: PRIORITY_MAX } "
        "input [ { format: FORMAT_NCHW }, { format: FORMAT_NHWC } ] model_operations { op_library_filename: 'x' }",
        "config.pbtxt",
    )
    fields = "input.format, optimization.priority, optimization.cuda.graphs"
    assert find_unused(config, "onnxruntime") == [
        f"model 'm' sets {fields}, which has no effect on models of the backend 'onnxruntime'"
    ]
    fields += ", model_operations.op_library_filename"
    assert find_unused(config, "python") == [
        f"model 'm' sets {fields}, which has no effect unless its own code reads it"
    ]
    # A Python-based backend of a user is code of the user.
    assert find_unused(config, "mine") == find_unused(config, "python")


@pytest.mark.parametrize("backend", sorted(FRAMEWORKS))
def test_what_every_model_has_is_not_mentioned(backend):
    config = parse_model_config(f"backend: '{backend}'", "config.pbtxt")
    config = normalize(config, directory_name="m", files=(), gpus=())
    assert find_unused(config, backend) == []


@pytest.mark.parametrize("backend", ["vllm", "transformers", "mine"])
def test_a_file_that_is_filled_in_by_the_name_of_the_model_is_not_mentioned(backend):
    config = normalize(parse_model_config("", "config.pbtxt"), directory_name=f"x.{backend}", files=(), gpus=())
    assert (config.backend, config.default_model_filename) == (backend, f"model.{backend}")
    assert find_unused(config, backend) == []
    config.default_model_filename = "weights"
    if backend != "mine":
        assert "sets default_model_filename, which has no effect" in find_unused(config, backend)[0]


def test_a_framework_that_answers_once_refuses_a_decoupled_model():
    config = parse_model_config("name: 'm' model_transaction_policy { decoupled: true }", "config.pbtxt")
    with pytest.raises(ConfigError, match=r"^model 'm' is decoupled, which the backend 'onnxruntime' cannot be"):
        check_backend_fields(config, "onnxruntime")
    for backend in ("python", "native", "vllm", "transformers", "mine"):
        check_backend_fields(config, backend)


@pytest.mark.parametrize("field", ["state { input_name: 's' }", "control_input { name: 'c' }"])
def test_models_that_take_what_clients_send_refuse_what_the_server_adds(field):
    config = parse_model_config(f"name: 'm' sequence_batching {{ {field} }}", "config.pbtxt")
    for backend in ("sklearn", "transformers", "vllm"):
        with pytest.raises(
            ConfigError, match=rf"^model 'm' has states or control inputs .* '{backend}' take no inputs"
        ):
            check_backend_fields(config, backend)
    for backend in ("onnxruntime", "pytorch", "tensorflow", "openvino", "jax", "tensorrt", "python", "native", "mine"):
        check_backend_fields(config, backend)


def test_frameworks_and_ensembles_execute_no_code_of_the_user():
    assert {backend for backend in BACKENDS if is_ours(backend)} == {*FRAMEWORKS, "ensemble"}


def test_a_framework_without_gpus_says_that_it_executes_on_the_cpu():
    config = parse_model_config("name: 'm' instance_group { kind: KIND_GPU }", "config.pbtxt")
    assert find_unused(config, "sklearn") == [
        "model 'm' has instances of KIND_GPU, and models of the backend 'sklearn' are executed on the CPU: use KIND_CPU"
    ]
    assert find_unused(config, "onnxruntime") == []
    config = parse_model_config("name: 'm' instance_group { kind: KIND_CPU }", "config.pbtxt")
    assert find_unused(config, "sklearn") == []


def test_parameters_that_nothing_reads_are_said_beside_fields():
    config = parse_model_config("name: 'm' optimization { cuda {} } parameters { key: 'colour' }", "config.pbtxt")
    parameters, *_ = find_unused(config, "sklearn")
    assert "'colour'" in parameters

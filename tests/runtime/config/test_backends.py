# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of a model, inferred from its configuration, its files and its name. The cases are those of Triton."""

import pytest

from pyruntime.runtime.config.backends import fill_backend, has_format
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.utils.errors import ConfigError

GRAPHDEF = ("tensorflow", "tensorflow_graphdef", "model.graphdef")
SAVEDMODEL = ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")
PLAN = ("tensorrt", "tensorrt_plan", "model.plan")
ONNX = ("onnxruntime", "onnxruntime_onnx", "model.onnx")
XML = ("openvino", "", "model.xml")
JAX = ("jax", "", "model.jax")
PT = ("pytorch", "pytorch_libtorch", "model.pt")
PT2 = ("pytorch", "pytorch_libtorch", "model.pt2")
PYTHON = ("python", "", "model.py")


def _filled(text="", files=(), name="m"):
    config = parse_model_config(f"name: '{name}' {text}", "config.pbtxt")
    fill_backend(config, files)
    return config.backend, config.platform, config.default_model_filename


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["model.graphdef"], GRAPHDEF),
        (["model.savedmodel/"], SAVEDMODEL),
        (["model.plan"], PLAN),
        (["model.onnx"], ONNX),
        (["model.onnx/"], ONNX),
        (["model.pt2"], PT2),
        (["model.pt2", "model.pt", "model.py"], PT),
        (["model.xml"], XML),
        (["model.xml/"], XML),
        (["model.pt"], PT),
        (["model.jax"], JAX),
        (["model.py"], PYTHON),
        (["readme", "weights/", "model.onnx"], ONNX),
        (["model.py", "model.pt", "model.onnx", "model.plan"], PLAN),
        (["model.onnx", "model.savedmodel/", "model.graphdef"], GRAPHDEF),
        (["model.onnx", "model.savedmodel/"], SAVEDMODEL),
    ],
)
def test_of_files(files, expected):
    """A file of a version says what its backend is; the first one in Triton's order counts."""
    assert has_format(files)
    assert _filled(files=files) == expected


@pytest.mark.parametrize("name", ["model.graphdef/", "model.savedmodel", "model.plan/", "model.pt/", "model.py/"])
def test_of_the_wrong_kind(name):
    """A folder is no file of a model, nor the other way round, except for those that may be both."""
    assert not has_format([name])
    with pytest.raises(ConfigError):
        _filled(files=[name])


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("default_model_filename: 'model.onnx'", [], ONNX),
        ("default_model_filename: 'model.savedmodel'", [], SAVEDMODEL),
        ("default_model_filename: 'model.pt'", ["model.onnx"], PT),
        ("default_model_filename: 'model.pt2'", ["model.onnx"], PT2),
        ("backend: 'pytorch'", ["model.pt2"], PT2),
        ("default_model_filename: 'other.onnx'", ["model.onnx"], ("", "", "other.onnx")),
        ("backend: 'onnxruntime'", [], ONNX),
        ("backend: 'onnxruntime' default_model_filename: 'a.onnx'", [], ("onnxruntime", "onnxruntime_onnx", "a.onnx")),
        ("backend: 'pytorch'", ["model.onnx"], PT),
        ("backend: 'pytorch' runtime: 'model.py'", [], ("pytorch", "pytorch_libtorch", "")),
        ("backend: 'tensorrt'", [], PLAN),
        ("backend: 'openvino'", [], XML),
        ("backend: 'python'", [], PYTHON),
        ("backend: 'python' default_model_filename: 'a.py'", [], ("python", "", "a.py")),
        ("backend: 'tensorflow'", [], ("tensorflow", "", "")),
        ("backend: 'tensorflow'", ["model.savedmodel/"], SAVEDMODEL),
        ("backend: 'tensorflow'", ["model.graphdef"], GRAPHDEF),
        ("backend: 'tensorflow' default_model_filename: 'model.graphdef'", [], GRAPHDEF),
        ("platform: 'onnxruntime_onnx'", ["model.pt"], ONNX),
        ("platform: 'pytorch_libtorch'", [], PT),
        ("platform: 'tensorrt_plan'", [], PLAN),
        ("platform: 'tensorflow_savedmodel'", [], SAVEDMODEL),
        ("platform: 'tensorflow_graphdef'", [], GRAPHDEF),
        ("platform: 'openvino'", ["model.xml"], ("", "openvino", "")),
        ("platform: 'odd'", ["model.onnx"], ("", "odd", "")),
        ("backend: 'mine'", ["model.onnx"], ("mine", "", "")),
    ],
)
def test_of_the_configuration(text, files, expected):
    """What the configuration says counts more than files."""
    assert _filled(text, files) == expected


def test_of_the_name():
    """A model that says nothing else may have its backend in its name, from the first dot on."""
    assert _filled(name="digits.identity") == ("identity", "", "model.identity")
    assert _filled(name="digits.a.b", files=["weights"]) == ("a.b", "", "model.a.b")
    assert _filled(name="digits.identity", files=["model.onnx"]) == ONNX


def test_of_nothing():
    """The error says what was found, in a few names, and what was expected."""
    start = (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'. Its version has "
    )
    with pytest.raises(ConfigError) as caught:
        _filled(files=[])
    assert str(caught.value) == (
        f"{start}no files, and none of model.graphdef, model.savedmodel, model.plan, model.onnx, model.xml, model.pt, "
        "model.pt2, model.jax, model.py: set 'backend' in config.pbtxt, or rename the file"
    )
    with pytest.raises(ConfigError) as caught:
        _filled(files=["weights/", "model.bin"])
    assert str(caught.value).startswith(f"{start}model.bin, weights/, and none of model.graphdef, ")
    with pytest.raises(ConfigError) as caught:
        _filled(files=[f"{number}.bin" for number in range(9)])
    assert str(caught.value).startswith(f"{start}0.bin, 1.bin, 2.bin, 3.bin, 4.bin, ..., and none of ")

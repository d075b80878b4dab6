# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A backend whose framework is missing says which package to install, and where. No framework is needed."""

import sys
import zipfile

import pytest

from pyruntime.utils.errors import LoadError

TENSORS = (
    'input { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }\noutput { name: "B" data_type: TYPE_FP32 dims: [ 3 ] }\n'
)


@pytest.mark.parametrize("tensors", ["", TENSORS], ids=["completion", "loading"])
@pytest.mark.parametrize(
    ("backend", "filename", "module", "install"),
    [
        ("onnxruntime", "model.onnx", "onnxruntime", "pyruntime[onnxruntime], or pip install onnxruntime"),
        ("pytorch", "model.pt2", "torch", "pyruntime[pytorch], or pip install torch"),
        ("tensorflow", "model.savedmodel", "tensorflow", "pyruntime[tensorflow], or pip install tensorflow"),
        ("openvino", "model.xml", "openvino", "pyruntime[openvino], or pip install openvino"),
        ("jax", "model.jax", "jax", "pyruntime[jax], or pip install jax"),
        ("tensorrt", "model.plan", "tensorrt", "pyruntime[tensorrt], or pip install tensorrt"),
        ("sklearn", "model.skops", "skops", "pyruntime[sklearn], or pip install skops"),
        ("sklearn", "model.ubj", "xgboost", "pyruntime[xgboost], or pip install xgboost-cpu"),
        ("sklearn", "model.txt", "lightgbm", "pyruntime[lightgbm], or pip install lightgbm"),
        ("transformers", "config.json", "torch", "pyruntime[transformers], or pip install torch"),
        ("vllm", "model.json", "vllm", "pyruntime[vllm], or pip install vllm"),
    ],
)
def test_a_missing_framework(tmp_path, monkeypatch, load_model, backend, filename, module, install, tensors):
    """The message names the package, the environment, and the ways to give the model one that has it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    if backend in ("transformers", "vllm", "tensorrt"):  # they have tensors of their own, or load cuda-python first
        tensors = ""
    elif backend == "pytorch":  # only a real program is completed
        tensors = TENSORS
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    if filename.endswith(".skops"):  # what is no archive is refused before
        with zipfile.ZipFile(version / filename, "w") as archive:
            archive.writestr("schema.json", "{}")
    else:
        (version / filename).write_text("{}")
    platform = 'platform: "tensorflow_savedmodel"\n' if backend == "tensorflow" else ""
    config = f'backend: "{backend}"\n{platform}instance_group {{ kind: KIND_CPU }}\n{tensors}'
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    with pytest.raises(LoadError) as caught:
        load_model(tmp_path / "m")
    message = str(caught.value)
    assert f"which its environment does not have: {sys.prefix} (Python " in message
    assert f". Install it there (pip install {install}), or name an environment that has it in " in message

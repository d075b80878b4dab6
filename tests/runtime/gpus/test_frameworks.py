# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which frameworks can use GPUs, by what is installed."""

import importlib.metadata
import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.gpus.frameworks import prefers_cpu, torch_has_cuda


class Distribution:
    def __init__(self, name):
        self.metadata = {"Name": name}


@pytest.fixture
def installed(monkeypatch):
    """`installed(*names)`: only these distributions are."""
    return lambda *names: monkeypatch.setattr(importlib.metadata, "distributions", lambda: map(Distribution, names))


def config_of(backend, more=""):
    return parse_model_config(f"backend: '{backend}' {more}", "c")


@pytest.mark.parametrize(
    ("backend", "cpu", "cuda"),
    [
        ("onnxruntime", "onnxruntime", "onnxruntime_gpu"),
        ("jax", "jax", "jax-cuda12-plugin"),
    ],
)
def test_distributions(installed, backend, cpu, cuda):
    """The names of what is installed say it."""
    installed("numpy", None, cpu)
    assert prefers_cpu(config_of(backend))
    installed(cpu, cuda)
    assert not prefers_cpu(config_of(backend))


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (["nvidia_cudnn_cu12", "nvidia-cuda-nvcc-cu12"], True),
        (["nvidia-cudnn-cu12"], False),  # torch for the same CUDA brings it, and no compiler
        (["nvidia-cudnn-cu13", "nvidia-cuda-nvcc"], False),
        ([], False),
    ],
)
def test_tensorflow(installed, monkeypatch, packages, expected):
    """TensorFlow needs all packages of its extra: those that torch brings are not enough."""
    extra = "nvidia-{}-cu12<13.0,>=9.3; extra == 'and-cuda'"
    required = ["numpy>=1.26", "nvidia-x; extra == 'other'", *map(extra.format, ("cudnn", "cuda-nvcc"))]
    monkeypatch.setattr(importlib.metadata, "requires", {"tensorflow": required}.__getitem__)
    installed("tensorflow", "torch", *packages)
    assert prefers_cpu(config_of("tensorflow")) is not expected


def test_tensorflow_without_an_extra(installed, monkeypatch):
    """A build that has no packages for CUDA, or another name, is for CPUs."""
    installed("tensorflow", "nvidia-cudnn-cu12")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert prefers_cpu(config_of("tensorflow"))

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert prefers_cpu(config_of("tensorflow"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n", True),
        ("__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n", False),
        ("cuda = None", False),
        ("hip = None", True),
    ],
)
def test_torch(tmp_path, monkeypatch, text, expected):
    """Its own file says it; one that says nothing counts as able."""
    (tmp_path / "version.py").write_text(text)
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert [prefers_cpu(config_of(name)) for name in ("pytorch", "transformers")] == [not expected] * 2
    assert torch_has_cuda(None)
    assert torch_has_cuda(tmp_path / "missing.py")


def test_backends_without_gpus(installed):
    """OpenVINO and scikit-learn have no use for a GPU of CUDA's; all backends that are not ours say it themselves."""
    installed()
    for backend, expected in {"openvino": True, "sklearn": True, "python": False, "vllm": False, "mine": False}.items():
        assert prefers_cpu(config_of(backend)) is expected


def test_others(installed, tmp_path):
    """Neither a backend of the user's nor an environment of the model's is looked into."""
    installed()
    assert prefers_cpu(config_of("jax"), str(tmp_path))
    environment = "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: '/env.tar.gz' } }"
    assert not prefers_cpu(config_of("jax", environment))
    (tmp_path / "jax").mkdir()
    assert not prefers_cpu(config_of("jax"), str(tmp_path))


@pytest.mark.parametrize(
    ("group", "expected"),
    [("", "CPU"), ("instance_group { }", "CPU"), ("instance_group { gpus: 0 }", "GPU")],
)
def test_kinds(group, expected):
    """Only what the configuration leaves open is on the CPU."""
    config = parse_model_config(f"backend: 'sklearn' {group}", "c")
    config = normalize(config, directory_name="m", files=(), gpus=(0,), prefers_cpu=prefers_cpu)
    assert not config.parameters
    (group,) = config.instance_group
    assert group.Kind.Name(group.kind) == f"KIND_{expected}"

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the framework of a backend can use GPUs, as it is installed here. Nothing is imported for that.

A model whose configuration leaves the kind open is on GPUs if there are any. With a package for CPUs it could not be
loaded there, so such a model is on the CPU; one that asks for KIND_GPU is told what is missing. As in Triton, where the
backend of OpenVINO, for one, prefers the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.environments.forms import PARAMETER

# A requirement of TensorFlow's extra for GPUs, as in its metadata: nvidia-cudnn-cu12<10.0; extra == "and-cuda"
_CUDA_OF_TENSORFLOW = re.compile(r"""([\w.-]+).*;.*\bextra == ["']and-cuda["']""")
_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*=\s*(.+?)\s*$", re.MULTILINE)


def prefers_cpu(config: Config, backend_directory: str | None = None) -> bool:
    """Whether a model, normalised, has a backend of ours whose framework cannot use GPUs.

    Backends of users, in `backend_directory`, and packages in an environment of the model are not looked at.
    """
    name = config.backend
    is_ours = not (backend_directory and os.path.isdir(os.path.join(backend_directory, name)))
    # A look at a missing parameter would add it.
    has_environment = PARAMETER in config.parameters and bool(config.parameters[PARAMETER].string_value)
    return name in _CAN_USE_GPUS and is_ours and not has_environment and not _CAN_USE_GPUS[name]()


def torch_has_cuda(version_file: Path | None) -> bool:
    """Whether the file version.py of torch says that it was built for CUDA; True if it cannot be read."""
    try:
        found = _CUDA_OF_TORCH.search("" if version_file is None else version_file.read_text())
    except OSError:
        return True
    return found is None or found[1] != "None"


def _torch() -> bool:
    spec = importlib.util.find_spec("torch")
    return spec is None or spec.origin is None or torch_has_cuda(Path(spec.origin).with_name("version.py"))


def tensorflow_has_cuda(requirements: Iterable[str], installed: Collection[str]) -> bool:
    """Whether all packages that TensorFlow requires with its extra `and-cuda` are `installed`.

    One of them alone may be torch's, which may be for another version of CUDA and does not bring all.
    """
    needed = {_normalised(found[1]) for found in map(_CUDA_OF_TENSORFLOW.match, requirements) if found}
    return bool(needed) and needed <= set(installed)


def _tensorflow() -> bool:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return tensorflow_has_cuda(requires("tensorflow") or (), _names())
    except PackageNotFoundError:
        return False


def _installed(beginning: str) -> bool:
    """Whether a distribution with such a name is installed."""
    return any(name.startswith(beginning) for name in _names())


def _names() -> list[str]:
    """The names of all installed distributions."""
    from importlib.metadata import distributions  # few models need it

    return [_normalised(each.metadata["Name"] or "") for each in distributions()]


def _normalised(name: str) -> str:
    return name.lower().replace("_", "-")


def _never() -> bool:
    return False


_CAN_USE_GPUS: dict[str, Callable[[], bool]] = {
    "onnxruntime": lambda: _installed("onnxruntime-gpu"),
    "pytorch": _torch,
    "transformers": _torch,
    "tensorflow": _tensorflow,
    "jax": lambda: _installed("jax-cuda"),
    # Its GPUs are not CUDA's: TARGET_DEVICE names them.
    "openvino": _never,
    "sklearn": _never,
}

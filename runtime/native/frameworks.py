# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds libraries of frameworks in Python packages.

Triton's images have the library of each framework on the loader's search path. Here it is in the wheel of the
framework, where the loader does not search. The framework itself is not imported, because that takes seconds for some.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from pyruntime.runtime.native.elf import ElfError
from pyruntime.runtime.native.linker import read_library


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework with libraries in `folder` of the Python package `package`.

    `library` matches the names of its libraries, `symbol` those of its symbols. `distribution` is its name for pip.
    """

    distribution: str
    package: str
    folder: str
    library: str
    symbol: str


# To support another framework, add a line. Patterns match the beginning of names.
FRAMEWORKS = (
    Framework("onnxruntime", "onnxruntime", "capi", r"libonnxruntime\w*\.so", r"Ort"),
    Framework("openvino", "openvino", "libs", r"libopenvino\w*\.so", r"_ZN[A-Z]*2ov|ov_"),
    Framework("torch", "torch", "lib", r"lib(torch|torch_\w+|c10|c10_\w+)\.so", r"_ZN[A-Z]*(2at|3c10|5torch)\d"),
    Framework("tensorflow", "tensorflow", ".", r"libtensorflow_(cc|framework)\.so", r"TF_|_ZN[A-Z]*10tensorflow"),
    Framework("tensorrt", "tensorrt_libs", ".", r"libnv(infer|onnxparser)\w*\.so", r"createInfer"),
    Framework("nvidia-cuda-runtime-cu12", "nvidia", "cuda_runtime/lib", r"libcudart\.so\.12", r"cuda[A-Z]"),
    Framework("nvidia-cublas-cu12", "nvidia", "cublas/lib", r"libcublas(Lt)?\.so\.12", r"cublas"),
    Framework("nvidia-cudnn-cu12", "nvidia", "cudnn/lib", r"libcudnn\w*\.so\.9", r"cudnn"),
)


def framework_of_library(name: str) -> Framework | None:
    """The framework whose library has this name."""
    return next((framework for framework in FRAMEWORKS if re.match(framework.library, name)), None)


def framework_of_symbol(symbol: str) -> Framework | None:
    """The framework whose libraries export such a symbol."""
    return next((framework for framework in FRAMEWORKS if re.match(framework.symbol, symbol)), None)


def find_library(name: str) -> Path | None:
    """The file of a framework's library in the installed packages, None if there is none.

    A file in a wheel may have a longer name than the library, so the SONAME in the file decides.
    """
    framework = framework_of_library(name)
    for folder in folders_of(framework) if framework else ():
        if (folder / name).is_file():
            return folder / name
        for path in sorted(folder.glob(f"{name}.*")):
            if _soname(path) == name:
                return path
    return None


def folders_of(framework: Framework) -> list[Path]:
    """The folders of a framework's libraries; empty if it is not installed. Does not import it."""
    spec = importlib.util.find_spec(framework.package)
    locations = spec.submodule_search_locations if spec else None
    return [folder for place in locations or () if (folder := Path(place, framework.folder)).is_dir()]


def _soname(path: Path) -> str:
    try:
        return read_library(str(path))[0].soname
    except (OSError, ElfError):
        return ""

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Libraries of frameworks, in the Python packages that bring them along.

Triton's images have the library of each framework where the loader looks. Here it is in the wheel of the framework,
where nobody looks but the framework's own Python package, which is not imported for it: that takes seconds for some.
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
    """Whose libraries match `library` and whose symbols match `symbol`: they lie in `folder` of Python's `package`.

    `distribution` is what pip calls it.
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
    """Whose library has this name."""
    return next((framework for framework in FRAMEWORKS if re.match(framework.library, name)), None)


def framework_of_symbol(symbol: str) -> Framework | None:
    """Whose libraries export a symbol like this."""
    return next((framework for framework in FRAMEWORKS if re.match(framework.symbol, symbol)), None)


def find_library(name: str) -> Path | None:
    """The file of a framework's library, among the packages that are installed.

    Files in wheels may go by longer names than those by which they are needed: what counts is what a file says itself.
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
    """Where the libraries of a framework are; nowhere if it is not installed. Does not import it."""
    spec = importlib.util.find_spec(framework.package)
    locations = spec.submodule_search_locations if spec else None
    return [folder for place in locations or () if (folder := Path(place, framework.folder)).is_dir()]


def _soname(path: Path) -> str:
    try:
        return read_library(str(path))[0].soname
    except (OSError, ElfError):
        return ""

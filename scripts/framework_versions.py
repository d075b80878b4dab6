# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prints which frameworks the environment of this interpreter has: those with which tests ran, and those without."""

import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

# Packages in one line have the same framework.
FRAMEWORKS = (
    ("onnxruntime",),
    ("onnxruntime-extensions",),
    ("onnx",),
    ("torch",),
    ("safetensors",),
    ("scikit-learn",),
    ("skops",),
    ("xgboost-cpu", "xgboost"),
    ("lightgbm",),
    ("transformers",),
    ("openvino",),
    ("jax",),
    ("tensorflow-cpu", "tensorflow"),
)


def report(frameworks: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of the report."""
    yield f"Tested under Python {platform.python_version()} with:"
    for packages in frameworks:
        found = [f"  {name} {version(name)}" for name in packages if _is_installed(name)]
        yield from found or [f"  {packages[0]}: not installed, so that the tests which need it were skipped"]


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    print("", *report(FRAMEWORKS), sep="\n")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Imports a framework, and explains why it or a library of custom operations cannot be loaded."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Iterator, Optional

from pyruntime.backends.toolkit.looks import has_text
from pyruntime.utils.errors import LoadError
from pyruntime.utils.openmp import wait_passively

# How the dynamic loader names a symbol, or a version of symbols, that no loaded library has.
_SYMBOL = re.compile(r"undefined symbol: ([^\s,)]+)|version .(\S+?)' not found")
# The functions by which frameworks find custom operations in a library. torch and TensorFlow need none.
_ENTRY_POINTS = {b"RegisterCustomOps": "ONNX Runtime", b"create_extensions": "OpenVINO"}
# Frameworks by the names of their packages.
_NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch", "tensorflow": "TensorFlow"}
# How ONNX Runtime and OpenVINO report a library that lacks the function that they call.
_ENTRY_POINT = re.compile(r"(?:Failed to get symbol |dlSym cannot locate method ')(\w+)")


def environment() -> str:
    """The Python environment of this process, in words."""
    return f"{sys.prefix} (Python {sys.version.split()[0]})"


def import_framework(module: str, package: str, extra: str, model: str) -> Any:
    """Import a framework for a model. `package` is its name on PyPI, `extra` that of the extra of pyruntime.

    The extra is "" if none has the package. Threads of the framework sleep while they wait. Raises LoadError if the
    environment does not have it, or if its import fails.
    """
    wait_passively()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != module.partition(".")[0]:
            raise _broken(module, model, exc) from exc
        install = f"pip install pyruntime[{extra}], or pip install {package}" if extra else f"pip install {package}"
        raise LoadError(
            f"model '{model}' needs the package '{package}', which its environment does not have: {environment()}. "
            f"Install it there ({install}), or name an environment that has it in the parameter EXECUTION_ENV_PATH of "
            "the model"
        ) from exc
    except ImportError as exc:
        raise _broken(module, model, exc) from exc


def explain_library(model: str, path: str, framework: str, version: str, reason: BaseException) -> LoadError:
    """The error for a library of custom operations that does not load into `framework` of `version`.

    Names what the library needs and the framework does not have, if `reason` tells.
    """
    text = ": ".join(_messages(reason))
    entry = _ENTRY_POINT.search(text)
    if entry is not None:
        return LoadError(
            f"model '{model}': the library '{path}' has no function {entry.group(1)}, by which {framework} {version} "
            "registers custom operations"
        )
    maker = maker_of(path)
    if maker and maker != _NAMES.get(framework, framework):
        return LoadError(f"model '{model}': {of_another(path, maker, framework)}: {text}")
    found = _SYMBOL.search(text)
    if found is None:
        return LoadError(
            f"model '{model}': the library of custom operations '{path}' cannot be loaded into {framework} {version} "
            f"of the environment {environment()}: {text}"
        )
    lacking = f"the symbol '{found.group(1)}'" if found.group(1) else f"the symbol version '{found.group(2)}'"
    return LoadError(
        f"model '{model}': the library of custom operations '{path}' needs {lacking}, which {framework} {version} of "
        f"the environment {environment()} does not have. Build the library for {framework} {version}, or give the "
        f"model an environment with the version of {framework} that the library was built for (EXECUTION_ENV_PATH)"
    )


def maker_of(path: str) -> str:
    """The framework whose custom operations a library has, by the function that it exports for it; "" if none."""
    try:
        return next(
            (name for symbol, name in _ENTRY_POINTS.items() if has_text(Path(path), b"\0" + symbol + b"\0")), ""
        )
    except (OSError, ValueError):  # it is not there, or empty
        return ""


def of_another(path: str, maker: str, framework: str) -> str:
    """What to say of a library that has operations for another framework."""
    symbol = next(each for each, name in _ENTRY_POINTS.items() if name == maker).decode()
    return (
        f"the library '{path}' has custom operations for {maker}, by its function {symbol}, and the model is one of "
        f"{_NAMES.get(framework, framework)}: name a library that was built for that in model_operations"
    )


def _messages(exc: Optional[BaseException]) -> Iterator[str]:
    """The messages of an exception and of those that caused it: frameworks wrap that of the dynamic loader."""
    while exc is not None:
        yield str(exc)
        exc = exc.__cause__


def _broken(module: str, model: str, exc: ImportError) -> LoadError:
    return LoadError(f"model '{model}' needs {module}, whose import fails in the environment {environment()}: {exc}")

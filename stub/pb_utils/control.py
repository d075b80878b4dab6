# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Functions for models to load and unload models on the server, and to query models and the server."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

from pyruntime.stub.host import get_host
from pyruntime.stub.pb_utils.errors import TritonModelException

# Triton keeps versions in signed 64-bit integers, which have at most 19 digits.
_VERSION_MAX = 2**63 - 1
_VERSION_DIGITS_MAX = 19


def load_model(model_name: str, config: str = "", files: Optional[Dict[str, Union[bytes, str]]] = None) -> None:
    """Load or reload a model; returns when it is ready. Requires --model-control-mode=explicit.

    `config` is a configuration as JSON, which replaces that in the repository. `files` has contents by path, such as
    `{"file:1/model.py": b"..."}`, and replaces the whole folder. Raises TritonModelException if loading fails.
    """
    _require_str(model_name=model_name, config=config)
    _ask("Failed to load model: ", "load_model", [model_name, config, _checked_files(model_name, files)])


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Begin to unload a model; does not wait for the end. Requires --model-control-mode=explicit.

    With `unload_dependents` also unloads the models of an ensemble. Raises TritonModelException if the server refuses.
    """
    _require_str(model_name=model_name)
    _ask("Failed to unload model: ", "unload_model", [model_name, bool(unload_dependents)])


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a version of a model, or any version if it is "", is ready for inference.

    Raises TritonModelException for an invalid version.
    """
    _require_str(model_name=model_name, model_version=model_version)
    prefix = "Failed to check model readiness: "
    if model_version and not _is_version(model_version):
        raise TritonModelException(
            f"{prefix}failed to get model version from specified version string '{model_version[:40]}', "
            "version should be an integral value > 0"
        )
    return bool(_ask(prefix, "is_model_ready", [model_name, model_version]))


def get_model_dir() -> str:
    """The folder of this model's version in the repository, `<repository>/<model>/<version>`."""
    return get_host().model_dir


def _checked_files(model_name: str, files: Any) -> Dict[str, bytes]:
    if files is None:
        return {}
    error = TritonModelException(
        f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
    )
    if not isinstance(files, dict):
        raise error
    found = {}
    for path, contents in files.items():
        if not isinstance(path, str) or not isinstance(contents, (bytes, str)):
            raise error
        found[path] = contents.encode() if isinstance(contents, str) else contents
    return found


def _ask(prefix: str, method: str, arguments: List[Any]) -> Any:
    try:
        return get_host().ask(method, arguments)
    except TritonModelException as exc:
        raise TritonModelException(f"{prefix}{exc}") from exc


def _is_version(text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS_MAX
    return is_number and 0 < int(text) <= _VERSION_MAX


def _require_str(**arguments: Any) -> None:
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a str, found {type(value)}")

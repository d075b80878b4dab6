# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Functions for models to load and unload models on the server, and to query models and the server."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

from pyruntime.stub.host import get_host
from pyruntime.stub.pb_utils.arguments import as_bool, as_text
from pyruntime.stub.pb_utils.errors import TritonModelException

Text = Union[str, bytes]

# Triton keeps versions in signed 64-bit integers, which have at most 19 digits.
_VERSION_MAX = 2**63 - 1
_VERSION_DIGITS_MAX = 19


def load_model(model_name: Text, config: Text = "", files: Optional[Dict[str, Text]] = None) -> None:
    """Load or reload a model; returns when it is ready. Requires --model-control-mode=explicit.

    `config` is a configuration as JSON, which replaces that in the repository. `files` has contents by path, such as
    `{"file:1/model.py": b"..."}`, and replaces the whole folder. Raises TritonModelException if loading fails.
    """
    name, config = as_text(model_name, "model_name"), as_text(config, "config")
    _ask("Failed to load model: ", "load_model", [name, config, _checked_files(name, files)])


def unload_model(model_name: Text, unload_dependents: bool = False) -> None:
    """Begin to unload a model; does not wait for the end. Requires --model-control-mode=explicit.

    With `unload_dependents` also unloads the models of an ensemble. Raises TritonModelException if the server refuses.
    """
    arguments = [as_text(model_name, "model_name"), as_bool(unload_dependents, "unload_dependents")]
    _ask("Failed to unload model: ", "unload_model", arguments)


def is_model_ready(model_name: Text, model_version: Text = "") -> bool:
    """Whether a version of a model, or any version if it is "", is ready for inference.

    Raises TritonModelException for an invalid version.
    """
    name, version = as_text(model_name, "model_name"), as_text(model_version, "model_version")
    prefix = "Failed to check model readiness: "
    if version and not _is_version(version):
        raise TritonModelException(
            f"{prefix}failed to get model version from specified version string '{version[:40]}', "
            "version should be an integral value > 0"
        )
    return bool(_ask(prefix, "is_model_ready", [name, version]))


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
        if not isinstance(path, (str, bytes, bytearray)) or not isinstance(contents, (str, bytes, bytearray)):
            raise error
        found[as_text(path, "path")] = contents.encode() if isinstance(contents, str) else bytes(contents)
    return found


def _ask(prefix: str, method: str, arguments: List[Any]) -> Any:
    try:
        return get_host().ask(method, arguments)
    except TritonModelException as exc:
        raise TritonModelException(f"{prefix}{exc}") from exc


def _is_version(text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= _VERSION_DIGITS_MAX
    return is_number and 0 < int(text) <= _VERSION_MAX

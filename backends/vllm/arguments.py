# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a vLLM model: model.json with the engine's arguments, and multi_lora.json with its adapters."""

from __future__ import annotations

import json
import os
from typing import Any

from pyruntime.utils.errors import ConfigError, LoadError

ENGINE_ARGUMENTS = "model.json"
ADAPTERS = "multi_lora.json"


def read_engine_arguments(model: str, version_dir: str) -> dict[str, Any]:
    """The arguments of vllm.AsyncEngineArgs. `model` may be a folder in the version's folder. Raises LoadError."""
    arguments = _read_object(model, os.path.join(version_dir, ENGINE_ARGUMENTS), "the arguments of the vLLM engine")
    folder = os.path.join(version_dir, str(arguments.get("model", "")))
    if arguments.get("model") and os.path.isdir(folder):
        arguments["model"] = os.path.abspath(folder)
    return arguments


def read_adapters(model: str, version_dir: str, arguments: dict[str, Any]) -> dict[str, str] | None:
    """The folder of each LoRA adapter by its name; None if `enable_lora` is not true. Raises LoadError."""
    if str(arguments.get("enable_lora", "")).lower() != "true":
        return None
    arguments["enable_lora"] = True
    found = _read_object(model, os.path.join(version_dir, ADAPTERS), "the folders of LoRA adapters by their names")
    paths = {name: os.path.join(version_dir, str(path)) for name, path in found.items()}
    return {name: path if os.path.isdir(path) else str(found[name]) for name, path in paths.items()}


def choose_adapter(name: str | None, adapters: dict[str, str] | None) -> str | None:
    """The LoRA adapter of a request, None for the model itself. Raises ValueError with Triton's messages."""
    if name is None:
        return None
    if adapters is None:
        raise ValueError("LoRA feature is not enabled.")
    if name not in adapters:
        raise ValueError(f"LoRA {name} is not supported, we currently support {list(adapters)}")
    return name


def engine_arguments(model: str, of_class: Any, arguments: dict[str, Any]) -> Any:
    """An AsyncEngineArgs of this version of vLLM. Raises ConfigError."""
    given = dict(arguments)
    if "disable_log_requests" in given and not hasattr(of_class, "disable_log_requests"):
        # Most files for Triton have it. Newer versions of vLLM have its opposite.
        given["enable_log_requests"] = not given.pop("disable_log_requests")
    try:
        return of_class(**given)
    except (TypeError, ValueError) as exc:
        raise ConfigError(f"model '{model}': vLLM refuses its arguments in {ENGINE_ARGUMENTS}: {exc}") from exc


def visible_device(visible: str | None, device: int) -> str:
    """The GPU number `device` among those that CUDA_VISIBLE_DEVICES allows. Raises ConfigError."""
    if visible is None:
        return str(device)
    devices = [each.strip() for each in visible.split(",") if each.strip()]
    if device >= len(devices):
        raise ConfigError(f"the instance is configured for GPU {device}, but CUDA_VISIBLE_DEVICES is '{visible}'")
    return devices[device]


def _read_object(model: str, path: str, content: str) -> dict[str, Any]:
    try:
        with open(path) as file:
            found = json.load(file)
    except FileNotFoundError:
        raise LoadError(f"model '{model}' needs '{path}' with {content}, a JSON object") from None
    except ValueError as exc:
        raise LoadError(f"model '{model}': '{path}' is not valid JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise LoadError(f"model '{model}': '{path}' must be a JSON object with {content}")
    return found

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Collects the options of a backend, for the host and for stubs that run a Python-based backend or a library."""

from __future__ import annotations

import os
import re

import orjson

from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.instances.native.host import backend_config
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.settings import ServerSettings

# The model parameter with libraries to load before the backend's: paths, in the model's folder unless they are
# absolute, separated like those of LD_PRELOAD.
PRELOAD_PARAMETER = "PRELOAD_LIBRARIES"


def command_line(settings: ServerSettings, backend_directory: str, backend: str) -> bytes:
    """The JSON that TRITONBACKEND_BackendConfig returns: the options of the server, every value a text."""
    cmdline = {
        "auto-complete-config": str(settings.auto_complete_config).lower(),
        "backend-directory": backend_directory,
        "min-compute-capability": f"{settings.min_supported_compute_capability:f}",
        "default-max-batch-size": str(settings.python_backend.default_max_batch_size),
    }
    for name in ("", backend):
        cmdline |= settings.backend_config.get(name, {})
    return backend_config(cmdline)


def preloads(spec: ModelSpec, model_dir: str) -> list[str]:
    """The libraries to load before the backend of a model; those in its folder as absolute paths."""
    names = re.split("[:; ]+", spec.parameters.get(PRELOAD_PARAMETER, ""))
    return [path if os.path.isfile(path := os.path.join(model_dir, name)) else name for name in names if name]


def model_location(
    backend: Backend, spec: ModelSpec, model_dir: str, version: int, settings: ServerSettings, backend_directory: str
) -> dict[str, str]:
    """The location of a version of a Python model for a stub: see utils/messages.py."""
    location = {"model_dir": model_dir, "version": str(version), "file": backend.path}
    if backend.kind == "python_based":
        location["backend_dir"] = os.path.dirname(backend.path)
    return location | stub_location(backend, spec, model_dir, settings, backend_directory)


def stub_location(
    backend: Backend, spec: ModelSpec, model_dir: str, settings: ServerSettings, backend_directory: str
) -> dict[str, str]:
    """The additional entries of `location` for a stub of a Python-based backend: see backends/native/library.py."""
    if backend.kind != "python_based":
        return {}
    options = {"command_line": command_line(settings, backend_directory, backend.name).decode()}
    if not backend.library:
        return options
    return options | {
        "library": backend.library,
        "preload": orjson.dumps(preloads(spec, model_dir)).decode(),
        "log_verbose": str(settings.log_verbose),
        "memory_pools": orjson.dumps(
            [settings.pinned_memory_pool_bytes, sorted(settings.cuda_memory_pool_bytes.items())]
        ).decode(),
        "host_policies": orjson.dumps(settings.host_policies).decode(),
    }

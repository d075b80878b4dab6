# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of models of TensorRT, and the server's options for the backend, with Triton's names. (pure)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import ConfigError

STRATEGY = "execution_context_allocation_strategy"
# The names of TensorRT's ExecutionContextAllocationStrategy that Triton's backend takes.
STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class Options:
    """`strategy` is how a context allocates its memory, None as TensorRT does it by default.

    `plugins` are the libraries that all engines get. An engine with `version_compatible` may have code for the host,
    which is executed.
    """

    strategy: Optional[str]
    plugins: Tuple[str, ...]
    version_compatible: bool


def check_shape_tensors(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for shape tensors of a model that batches: the values of several requests would be joined."""
    tensors = [*config.get("input", ()), *config.get("output", ())]
    for tensor in tensors if config.get("max_batch_size", 0) else ():
        if tensor.get("is_shape_tensor"):
            raise ConfigError(
                f"model '{config.get('name', '')}' has the shape tensor '{tensor['name']}' and batches, which is not "
                "supported: shape tensors must be those of one request; set max_batch_size to 0"
            )


def read_options(settings: Settings, server: Mapping[str, str]) -> Options:
    """The options of a model; `server` are those of `--backend-config`. Raises ConfigError."""
    strategy = settings.parameters.get(STRATEGY)
    if strategy is not None and strategy not in STRATEGIES:
        raise settings.refused(STRATEGY, " or ".join(STRATEGIES))
    compatible = server.get("version-compatible", "false")
    if compatible.lower() not in _BOOLEANS:
        raise ConfigError(f"--backend-config=tensorrt,version-compatible is '{compatible}', expected true or false")
    plugins = tuple(path for path in server.get("plugins", "").split(";") if path)
    return Options(strategy, plugins, _BOOLEANS[compatible.lower()])

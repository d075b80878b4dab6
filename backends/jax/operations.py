# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Registers the custom calls of an exported function, from the libraries in `model_operations`.

An export names the targets of its custom calls, since it was made with a `DisabledSafetyCheck` for each. A library has
a handler for jax.ffi under the name of the target, or under the one that the parameter FFI_TARGETS gives it. A target
that no library has is left to jax, which has some of its own.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, List, Sequence

from pyruntime.backends.toolkit.frameworks import explain_library
from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import ConfigError, LoadError

PARAMETER = "FFI_TARGETS"


def register_operations(jax: Any, settings: Settings, exported: Any, libraries: Sequence[str], platform: str) -> None:
    """Load the libraries, and register what the function calls. The first library that has a handler counts.

    `platform` is that of the device. Raises LoadError for a library that does not load, or has nothing to register, and
    ConfigError for an invalid parameter.
    """
    handlers = handler_names(settings, custom_calls(exported))
    if libraries and not hasattr(jax, "ffi"):
        raise LoadError(
            f"model '{settings.name}' has libraries in model_operations, and jax {jax.__version__} has no jax.ffi to "
            "register them: use jax 0.5 or a newer version"
        )
    open_targets = dict(handlers)
    for path in libraries:
        try:
            library = ctypes.CDLL(path)
        except OSError as exc:
            raise explain_library(settings.name, path, "jax", jax.__version__, exc) from exc
        found = {target: name for target, name in handlers.items() if hasattr(library, name)}
        if not found:
            raise LoadError(
                f"model '{settings.name}': the library '{path}' has no function {' or '.join(handlers.values())}, by "
                f"which jax {jax.__version__} calls the custom operations of the model. The parameter {PARAMETER} "
                "names functions that are not called as their targets"
            )
        for target, name in found.items():
            if open_targets.pop(target, None) is not None:
                jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, name)), platform=platform)


def custom_calls(exported: Any) -> List[str]:
    """The targets of the custom calls that the function may have besides those that every jax has."""
    targets = (check.is_custom_call() for check in exported.disabled_safety_checks)
    return [target for target in targets if target]


def handler_names(settings: Settings, targets: Sequence[str]) -> Dict[str, str]:
    """The name of the function for each target. Raises ConfigError."""
    text = settings.parameters.get(PARAMETER, "{}")
    try:
        named = json.loads(text)
    except ValueError:
        named = None
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise settings.refused(PARAMETER, "a JSON object with the function for each target")
    unknown = [target for target in named if target not in targets]
    if unknown:
        raise ConfigError(
            f"model '{settings.name}' has the target '{unknown[0]}' in the parameter {PARAMETER}, and its file calls "
            f"{', '.join(targets) or 'none'}"
        )
    return {target: named.get(target, target) for target in targets}

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a function that jax.export saved, and describes its arguments and results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, List, Sequence

from pyruntime.backends.jax.naming import Path, input_names, output_names
from pyruntime.backends.toolkit.exported import describe_value
from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.backends.toolkit.settings import Settings, TensorSpec
from pyruntime.utils.errors import ConfigError, LoadError


@dataclass(frozen=True)
class Program:
    """An exported function. `inputs` and `outputs` are in the order of the arrays in its trees."""

    exported: Any
    inputs: List[TensorSpec]
    outputs: List[TensorSpec]


def import_jax(settings: Settings) -> Any:
    """The package, with arrays of 64 bits, which an exported function takes as it was exported. Raises LoadError."""
    jax = import_framework("jax", "jax", "jax", settings.name)
    import_framework("jax.export", "jax", "jax", settings.name)
    jax.config.update("jax_enable_x64", True)
    return jax


def load_program(jax: Any, settings: Settings, path: str) -> Program:
    """The function in a file. Raises LoadError. Compiles nothing, and starts no threads."""
    try:
        with open(path, "rb") as file:
            exported = jax.export.deserialize(bytearray(file.read()))
    except Exception as exc:
        raise LoadError(
            f"model '{settings.name}': '{path}' cannot be loaded by jax {jax.__version__}, which takes what "
            f"serialize() of jax.export returned: {type(exc).__name__}: {exc}"
        ) from exc
    if exported.nr_devices != 1:
        raise LoadError(
            f"model '{settings.name}' was exported for {exported.nr_devices} devices, and an instance has one"
        )
    inputs = input_names(_paths(jax, exported.in_tree))
    outputs = output_names(_paths(jax, exported.out_tree))
    return Program(
        exported,
        [describe_value(settings.name, *each) for each in zip(inputs, exported.in_avals)],
        [describe_value(settings.name, *each) for each in zip(outputs, exported.out_avals)],
    )


def use_threads(threads: int) -> None:
    """Limit the threads that compute on the CPU. They are started with the first array of this process."""
    os.environ["NPROC"] = str(threads)


def find_device(jax: Any, settings: Settings, exported: Any, kind: str, device_id: str) -> Any:
    """The device of an instance; the default one of jax for KIND_MODEL. Raises ConfigError."""
    if kind == "CPU":
        jax.config.update("jax_platforms", "cpu")  # so that no GPU is looked for
    # Each instance is a process, which would otherwise take most of the GPU's memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if kind == "GPU":
        jax.config.update("jax_cuda_visible_devices", device_id)  # it would have a context on each GPU that it sees
    try:
        devices = jax.devices("gpu" if kind == "GPU" else None)
    except RuntimeError as exc:
        raise ConfigError(
            f"model '{settings.name}' has an instance of kind KIND_{kind}, and jax {jax.__version__} finds no such "
            "device: install jax[cuda12] for GPUs, or use KIND_CPU"
        ) from exc
    device = devices[0]
    # The names that exports have: "gpu" is one of a device only.
    names = {"cpu": ("cpu",), "gpu": ("cuda", "rocm")}.get(device.platform, (device.platform,))
    if not any(name in exported.platforms for name in names):
        raise ConfigError(
            f"model '{settings.name}' was exported for {', '.join(exported.platforms)}, and its instance of kind "
            f"KIND_{kind} is on {device.platform}: export it with platforms=['{names[0]}']"
        )
    return device


def flat_function(jax: Any, exported: Any) -> Any:
    """The compiled function from the list of its arrays to the list of its results."""

    def call(arrays: Sequence[Any]) -> List[Any]:
        positional, named = jax.tree_util.tree_unflatten(exported.in_tree, arrays)
        results: List[Any] = jax.tree_util.tree_leaves(exported.call(*positional, **named))
        return results

    return jax.jit(call)


def _paths(jax: Any, tree: Any) -> List[Path]:
    with_places = jax.tree_util.tree_unflatten(tree, range(tree.num_leaves))
    return [[_key(each) for each in path] for path, _ in jax.tree_util.tree_flatten_with_path(with_places)[0]]


def _key(entry: Any) -> Any:
    """A step to an array: the key of a dict, the name of an attribute, or the place in a list."""
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            found = getattr(entry, attribute)
            return found if isinstance(found, int) else str(found)
    return str(entry)

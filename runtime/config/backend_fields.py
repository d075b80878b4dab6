# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the fields of a configuration that a model's backend does not act on. (pure)

The server acts on most fields itself, for every backend. Those that are left to backends are in RULES, each with the
backends that act on it. A model that sets one for another backend is refused, or the log of its load says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyruntime.runtime.config.backend_parameters import unread_parameters
from pyruntime.runtime.config.backends import filename_of
from pyruntime.runtime.config.schema import Config
from pyruntime.utils.errors import ConfigError

# Backends that execute a user's own code, which finds all fields in its configuration: a model.py, a Python-based
# backend, a backend in C++, a library of the old interface.
OWN_CODE = frozenset({"python", "native", "custom"})
# Ours, each for one framework.
FRAMEWORKS = frozenset(
    {"onnxruntime", "pytorch", "tensorflow", "openvino", "jax", "tensorrt", "sklearn", "transformers", "vllm"}
)
ENSEMBLE = "ensemble"
BACKENDS = OWN_CODE | FRAMEWORKS | {ENSEMBLE}


@dataclass(frozen=True, slots=True)
class Rule:
    """A field, or a message with all its fields. `actors` are the backends that act on it.

    A backend of OWN_CODE that is none of them may do so, which the log mentions. A model of any other backend is
    refused with `refusal`, if there is one; `{name}` and `{backend}` are the model's.
    """

    actors: frozenset[str] = frozenset()
    refusal: str = ""


_DECOUPLED = "model '{name}' is decoupled, which the backend '{backend}' cannot be: it answers a request once"
_NON_LINEAR = "model '{name}' has a tensor with is_non_linear_format_io, which the backend '{backend}' does not support"
_ADDED = (
    "model '{name}' has states or control inputs in sequence_batching, and models of the backend '{backend}' take no "
    "inputs besides those of their clients: remove them"
)
# Backends that execute a model on the CPU whatever the kind of its instances is.
_WITHOUT_GPUS = frozenset({"sklearn"})
_WITH_MODEL_FILE = FRAMEWORKS - {"transformers", "vllm"}

# By path. The longest path that a field's begins with counts; a map is one field.
RULES = {
    "runtime": Rule(OWN_CODE | FRAMEWORKS),
    "default_model_filename": Rule(OWN_CODE | _WITH_MODEL_FILE),
    "cc_model_filenames": Rule(frozenset({"custom"})),
    "model_operations": Rule(_WITH_MODEL_FILE - {"sklearn"}),
    "model_transaction_policy.decoupled": Rule(OWN_CODE | {"vllm", "transformers", ENSEMBLE}, _DECOUPLED),
    "input.format": Rule(),
    # `validate` refuses these for all but TensorRT, whose engine knows which inputs are shapes.
    "input.is_shape_tensor": Rule(frozenset({"tensorrt"})),
    "output.is_shape_tensor": Rule(frozenset({"tensorrt"})),
    "input.is_non_linear_format_io": Rule(refusal=_NON_LINEAR),
    "output.is_non_linear_format_io": Rule(refusal=_NON_LINEAR),
    "batch_input": Rule(),
    "batch_output": Rule(),
    "optimization": Rule(),
    "optimization.graph": Rule(frozenset({"onnxruntime"})),
    "optimization.execution_accelerators": Rule(frozenset({"onnxruntime"})),
    # Without pinned memory nothing happens that `false` forbids, and `true` is filled in.
    "optimization.input_pinned_memory": Rule(BACKENDS),
    "optimization.output_pinned_memory": Rule(BACKENDS),
    "instance_group.secondary_devices": Rule(),
    "instance_group.profile": Rule(),
    "sequence_batching.control_input": Rule(BACKENDS - {"sklearn", "transformers", "vllm"}, _ADDED),
    "sequence_batching.state": Rule(BACKENDS - {"sklearn", "transformers", "vllm"}, _ADDED),
    # For backends in C++ it is about memory of GPUs.
    "sequence_batching.state.use_growable_memory": Rule(BACKENDS - {"native"}),
    "ensemble_scheduling.step.model_namespace": Rule(),
}


def is_ours(backend: str) -> bool:
    """Whether a backend executes no code of the user, so that nothing else can act on a field."""
    return backend in FRAMEWORKS or backend == ENSEMBLE


def check_backend_fields(config: Config, backend: str) -> None:
    """Raise ConfigError for a field that a model of this backend must not have. For `backend` see find_unused."""
    for path in _unused(config, backend) if is_ours(backend) else ():
        if refusal := _rule(path).refusal:
            raise ConfigError(refusal.format(name=config.name, backend=backend))


def find_unused(config: Config, backend: str) -> list[str]:
    """Sentences for the log about what `config`, normalised and valid, sets in vain: fields and parameters.

    `backend` is one of BACKENDS; any other name is that of a user's own Python-based backend.
    """
    paths = ", ".join(_unused(config, backend))
    if not is_ours(backend):
        return (
            [f"model '{config.name}' sets {paths}, which has no effect unless its own code reads it"] if paths else []
        )
    sentences = unread_parameters(config, backend)
    if any(group.kind == group.KIND_GPU for group in config.instance_group) and backend in _WITHOUT_GPUS:
        sentences.append(
            f"model '{config.name}' has instances of KIND_GPU, and models of the backend '{backend}' are executed on "
            "the CPU: use KIND_CPU"
        )
    if paths:
        sentences.append(
            f"model '{config.name}' sets {paths}, which has no effect on models of the backend '{backend}'"
        )
    return sentences


def _unused(config: Config, backend: str) -> list[str]:
    """The paths of fields that `config` sets and a backend does not act on, each once."""
    backend = backend if backend in BACKENDS else "python"
    unused = [path for path in dict.fromkeys(_set_fields(config)) if backend not in _rule(path).actors]
    if config.default_model_filename == filename_of(config.backend):  # it may be filled in
        unused = [path for path in unused if path != "default_model_filename"]
    return unused


def _rule(path: str) -> Rule:
    """The rule of a field; without one the server acts on it."""
    parts = path.split(".")
    beginnings = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((RULES[each] for each in beginnings if each in RULES), Rule(BACKENDS))


def _set_fields(message: Any, prefix: str = "") -> Iterator[str]:
    """The paths of all fields with a value, but for messages, which have fields of their own."""
    for field, value in message.ListFields():
        path = prefix + field.name
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            yield path
            continue
        for each in value if field.is_repeated else [value]:
            yield from _set_fields(each, f"{path}.")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Fills in the defaults of a configuration, as Triton does. (pure)

It is idempotent, and accepts a configuration that still lacks inputs, outputs or a batch size, because a model's
auto_complete_config receives the normalised one. It does not check the result; `validate` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pyruntime.runtime.config.backends import fill_backend
from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.utils.errors import LoadError

ENSEMBLE_PLATFORM = "ensemble"
# The oldest kind of model brings a library of its own, which our Python-based backend "custom" runs. The runtime is set
# explicitly, so that a native backend of a user that is called "custom" too is not confused with it.
CUSTOM_PLATFORM = "custom"
CUSTOM_RUNTIME = "model.py"
CUSTOM_FILENAME = "libcustom.so"

# Backends with two instances for a group on the CPU that gives no count; all others have one. As in Triton: others do
# not perform well, or need much memory, with more than one.
_TWO_INSTANCES_ON_CPU = frozenset({"onnxruntime", "tensorflow"})

# A sequence ends if no request of it arrives for one second.
SEQUENCE_IDLE_US_DEFAULT = 1_000_000


def _never(config: Config) -> bool:
    return False


def normalize(
    config: Config,
    *,
    directory_name: str,
    files: Collection[str],
    gpus: Sequence[int],
    placed: Sequence[int] | None = None,
    prefers_cpu: Callable[[Config], bool] = _never,
) -> Config:
    """A copy of `config` with the defaults filled in; `gpus` are the ids of the GPUs of this host.

    `placed` are those for instance groups that name none, by default all of them. `prefers_cpu` says whether a group of
    KIND_AUTO that names none is on the CPU also where there are GPUs.

    `files` are the names in the folder of a version, those of folders with a slash: see `backends`.
    Raises LoadError if the configuration names another model than its directory, or if the backend is unknown.
    """
    normalized = new_model_config()
    normalized.CopyFrom(config)
    _fill_name(normalized, directory_name)
    _fill_backend(normalized, files)
    _fill_version_policy(normalized.version_policy)
    _fill_schedulers(normalized)
    if normalized.platform != ENSEMBLE_PLATFORM:
        _fill_optimization(normalized.optimization)
        _fill_instance_groups(normalized, gpus, gpus if placed is None else placed, prefers_cpu)
    return normalized


def default_instance_count(backend: str, group: Config) -> int:
    """The number of instances of a group whose kind is known, if the group gives none."""
    return 2 if backend in _TWO_INSTANCES_ON_CPU and group.kind == group.KIND_CPU else 1


def _fill_name(config: Config, directory_name: str) -> None:
    config.name = config.name or directory_name
    if config.name != directory_name:
        raise LoadError(
            f"unexpected directory name '{directory_name}' for model '{config.name}', "
            "directory name must equal model name"
        )


def _fill_backend(config: Config, files: Collection[str]) -> None:
    if not config.platform and not config.backend and config.HasField("ensemble_scheduling"):
        config.platform = ENSEMBLE_PLATFORM
    if config.platform == CUSTOM_PLATFORM:
        _fill_custom(config)
    if config.platform != ENSEMBLE_PLATFORM:
        fill_backend(config, files)


def _fill_custom(config: Config) -> None:
    if not config.backend:
        config.backend = CUSTOM_PLATFORM
        config.runtime = config.runtime or CUSTOM_RUNTIME
    if config.backend == CUSTOM_PLATFORM:
        config.default_model_filename = config.default_model_filename or CUSTOM_FILENAME


def _fill_version_policy(policy: Config) -> None:
    choice = policy.WhichOneof("policy_choice")
    if choice is None or (choice == "latest" and policy.latest.num_versions == 0):
        policy.latest.num_versions = 1


def _fill_schedulers(config: Config) -> None:
    if config.HasField("dynamic_batching"):
        _fill_preferred_size(config.dynamic_batching, config.max_batch_size)
    if config.HasField("sequence_batching"):
        batching = config.sequence_batching
        if batching.max_sequence_idle_microseconds == 0:
            batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_US_DEFAULT
        if batching.HasField("oldest"):
            _fill_preferred_size(batching.oldest, config.max_batch_size)


def _fill_preferred_size(batching: Config, max_batch_size: int) -> None:
    if not batching.preferred_batch_size and max_batch_size > 0:
        batching.preferred_batch_size.append(max_batch_size)


def _fill_optimization(optimization: Config) -> None:
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True


def _fill_instance_groups(
    config: Config, gpus: Sequence[int], placed: Sequence[int], prefers_cpu: Callable[[Config], bool]
) -> None:
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == group.KIND_AUTO:
            # As in Triton, a group that lists a GPU which is not there is for the CPU: `validate` then refuses it.
            is_on_gpus = gpus and set(group.gpus).issubset(gpus) and (group.gpus or not prefers_cpu(config))
            group.kind = group.KIND_GPU if is_on_gpus else group.KIND_CPU
        if group.kind == group.KIND_GPU and not group.gpus:
            group.gpus.extend(placed)
        if group.count < 1:
            group.count = default_instance_count(config.backend, group)

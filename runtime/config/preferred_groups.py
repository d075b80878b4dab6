# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Exchanges the instance groups of configurations, and applies those that a C++ backend prefers. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from pyruntime.runtime.config.normalize import default_instance_count
from pyruntime.runtime.config.schema import Config, new_model_config

_GPU = 2
# TRITONSERVER_InstanceGroupKind, whose numbers differ from those of the enum in a configuration.
_KINDS = {0: "KIND_AUTO", 1: "KIND_CPU", _GPU: "KIND_GPU", 3: "KIND_MODEL"}


def with_groups_of(config: Config, other: Config) -> Config:
    """A copy of `config` with the instance groups of another configuration."""
    changed = new_model_config()
    changed.CopyFrom(config)
    changed.ClearField("instance_group")
    changed.instance_group.extend(other.instance_group)
    return changed


def with_preferred_groups(
    config: Config,
    groups: Sequence[tuple[int, int, Sequence[int]]],
    gpus: Sequence[int],
    placed: Sequence[int] | None = None,
) -> Config:
    """A copy of `config`, normalised, with the first of a backend's preferred `groups` that this host can satisfy.

    A group is a tuple of its kind, its number of instances (0: the default) and its GPUs (empty: those of `placed`, by
    default all).
    """
    chosen = next(
        (each for each in groups if each[0] != _GPU or (gpus and set(each[2]).issubset(gpus))),
        None,
    )
    if chosen is None:
        return config
    kind, count, devices = chosen
    changed = new_model_config()
    changed.CopyFrom(config)
    (group,) = changed.instance_group
    group.kind = group.Kind.Value(_KINDS.get(kind, "KIND_CPU"))
    if group.kind == group.KIND_AUTO:
        group.kind = group.KIND_GPU if gpus else group.KIND_CPU
    group.count = count or default_instance_count(config.backend, group)
    del group.gpus[:]
    if group.kind == group.KIND_GPU:
        group.gpus.extend(devices or (gpus if placed is None else placed))
    return changed

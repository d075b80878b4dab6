# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a model from its folder: the versions to load, and the configuration before the model has completed it.

For a model that is debugged only one process is loaded, because only one can use the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyruntime.runtime.config.autocomplete import minimal_config
from pyruntime.runtime.config.backends import has_format
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.config.validate import validate, validate_instances
from pyruntime.runtime.gpus.available import NO_GPUS, AvailableGpus
from pyruntime.runtime.gpus.frameworks import prefers_cpu
from pyruntime.runtime.gpus.placement import NO_PLACEMENT, Placement, place
from pyruntime.runtime.repository.execution_timeout import execution_timeout_ms
from pyruntime.runtime.repository.instance_mode import InstanceProcess, instance_processes
from pyruntime.runtime.repository.scan import ModelFolder
from pyruntime.runtime.repository.versions import VersionPolicy, select_versions
from pyruntime.runtime.settings import ServerSettings, SettingsError
from pyruntime.utils.errors import LoadError
from pyruntime.utils.paths import authors_path

# The most names in a hint.
NAMES_MAX = 20


@dataclass(frozen=True, slots=True)
class Draft:
    """A model as its folder describes it, before its own code has completed the configuration."""

    folder: ModelFolder
    config: Config
    identity: ModelSpec
    processes: tuple[InstanceProcess, ...]
    versions: tuple[int, ...]
    missing: dict[int, str]
    # The configuration sets no instances, so a backend may choose their number.
    default_instances: bool = False
    # The GPUs that the configuration was checked against, and the choice among them for groups that name none. It has a
    # reason if there are such groups.
    gpus: AvailableGpus = NO_GPUS
    placement: Placement = NO_PLACEMENT

    @property
    def newest(self) -> int:
        """The version whose auto_complete_config holds for all."""
        return self.versions[-1]


def read_draft(
    folder: ModelFolder,
    settings: ServerSettings,
    config: Config,
    gpus: AvailableGpus = NO_GPUS,
    kept_gpus: Sequence[int] = (),
) -> Draft:
    """Normalise a model's configuration, and find the versions to load. Raises LoadError.

    `kept_gpus` are those that the model has instances on already.
    """
    if folder.problem:
        raise LoadError(folder.problem)
    selection = select_versions(VersionPolicy.from_config(config), map(str, folder.version_dirs), folder.name)
    if selection.problem:
        raise LoadError(selection.problem)
    default_instances = not config.instance_group
    placement = place(folder.name, gpus, kept_gpus)
    named = [bool(group.gpus) for group in config.instance_group] or [False]
    config = normalize(
        config,
        directory_name=folder.name,
        files=_version_files(folder),
        gpus=gpus.numbers,
        placed=placement.numbers,
        prefers_cpu=lambda normalized: prefers_cpu(normalized, settings.backend_directory),
    )
    kinds = [group.kind == group.KIND_GPU for group in config.instance_group]
    if not any(is_on_gpus and not is_named for is_on_gpus, is_named in zip(kinds, named, strict=False)):
        placement = placement._replace(reason="")
    if config.HasField("ensemble_scheduling"):
        validate(config, gpus.numbers, gpus.capability_min)  # nothing completes it
    else:
        validate_instances(config)
    identity = type(config)()
    identity.CopyFrom(config)
    identity.ClearField("input")
    identity.ClearField("output")
    identity.ClearField("model_warmup")  # checked with the versions
    spec = model_spec(identity)
    processes, versions = instance_processes(spec), selection.versions
    execution_timeout_ms(spec)
    if folder.name == settings.debug_model:
        processes, versions = only_process(processes), only_version(versions)
    return Draft(folder, config, spec, processes, versions, selection.missing, default_instances, gpus, placement)


def read_config(folder: ModelFolder, settings: ServerSettings) -> Config:
    """A model's configuration from its folder, not normalised. Raises LoadError."""
    if folder.problem:
        raise LoadError(folder.problem)
    if folder.config_path is None:
        if not settings.auto_complete_config:
            raise LoadError(f"model '{folder.name}' has no config.pbtxt, and auto-complete is disabled")
        return minimal_config(folder.name)
    name = _authors_config(folder.config_path)
    try:
        return parse_model_config(Path(folder.config_path).read_bytes(), name)
    except OSError as exc:
        raise LoadError(f"'{name}' cannot be read: {exc.strerror}") from exc


def _authors_config(path: str) -> str:
    """The path by which its author knows a configuration: `pyruntime serve model.py` makes a link to it.

    Links of mounted configurations are relative, and what they name means nothing.
    """
    path = authors_path(path)
    try:
        target = os.readlink(path)
    except OSError:  # it is no link
        return path
    is_same = os.path.isabs(target) and os.path.basename(target) == os.path.basename(path)
    return target if is_same else path


def _version_files(folder: ModelFolder) -> list[str]:
    """The names in the folder of the version that says what the backend is, those of folders with a slash.

    As in Triton, versions are in the order of their names as text. If none says it, these are the files of the first.
    """
    files = [_names(Path(folder.path, name)) for name in sorted(map(str, folder.version_dirs))]
    return next(filter(has_format, files), files[0] if files else [])


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries]
    except OSError:
        return []  # the load reports what it cannot read


def check_debug_model(name: str, found: Collection[str]) -> None:
    """Raise SettingsError if `name`, unless it is "", is not among the models of the repositories."""
    if name and name not in found:
        names = ", ".join(sorted(found)[:NAMES_MAX]) or "none"
        raise SettingsError(f"--debug: there is no model '{name}' in the repositories; there are: {names}")


def only_version(versions: Sequence[int]) -> tuple[int, ...]:
    """The version to debug. `versions` are in ascending order."""
    return tuple(versions[-1:])


def only_process(processes: Sequence[InstanceProcess]) -> tuple[InstanceProcess, ...]:
    """The first process that accepts requests, or else the first one, with one batch at a time."""
    active = [process for process in processes if not process.instance.passive]
    return tuple(InstanceProcess(process.instance) for process in (active or processes)[:1])

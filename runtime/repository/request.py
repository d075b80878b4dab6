# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a model from disk for one load request, with the configuration and the files of that request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyruntime.runtime.config.ensembles import EnsembleError
from pyruntime.runtime.config.positions import line_of
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.gpus.available import NO_GPUS, AvailableGpus
from pyruntime.runtime.repository.draft import Draft, read_config, read_draft
from pyruntime.runtime.repository.fingerprint import Fingerprint, config_stamp, fingerprints
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.runtime.repository.scan import ModelFolder, find_model, read_folder
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import InferenceError


@dataclass(slots=True, eq=False)
class LoadRequest:
    """A request to load a model as it is in the repository, or with the request's own configuration and files."""

    config: Config | None = None
    files: Mapping[str, bytes | memoryview] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Override:
    """A configuration that holds until the model's own file changes: `stamp` is the stamp of that file."""

    config: Config
    stamp: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Sight:
    """A model on disk. After it is loaded, later load requests use `override` too."""

    folder: ModelFolder
    config: Config
    override: Override | None

    @property
    def has_agents(self) -> bool:
        """Whether repository agents must run before it is loaded."""
        return bool(self.config.model_repository_agents.agents)

    def relocated(self, location: str) -> Sight:
        """The same model with its files in another folder, and the same configuration."""
        found = read_folder(Path(location).absolute(), None)
        folder = replace(self.folder, path=found.path, version_dirs=found.version_dirs, problem=found.problem)
        return replace(self, folder=folder)


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The file that a configuration comes from."""

    name: str
    text: str

    def located(self, error: EnsembleError) -> EnsembleError:
        """The same error, with the line in this file."""
        line = line_of(self.text, error.place)
        return EnsembleError(f"{error} ({self.name}:{line})", error.place) if line else error


@dataclass(frozen=True, slots=True)
class Found:
    """A model with everything that its load needs. `source` is known for ensembles from the repository."""

    draft: Draft
    fingerprints: dict[int, Fingerprint]
    source: ConfigSource | None = None

    def of_load(self, number: int) -> Found:
        """The same, with fingerprints unique to one load, so that every version is loaded again."""
        fingerprints = {
            version: replace(found, own=b"%s %d" % (found.own, number)) for version, found in self.fingerprints.items()
        }
        return replace(self, fingerprints=fingerprints)


def look(
    name: str, request: LoadRequest, standing: Override | None, files: OverrideFolder | None, settings: ServerSettings
) -> Sight:
    """Read a model on disk. `files` are those of the request, if it has any.

    Raises InferenceError if the model does not exist, LoadError if it or its configuration cannot be read.
    """
    folder: ModelFolder | None
    if files is not None:
        folder = files.read()
    else:
        folder = find_model(settings.model_repositories, name, settings.model_config_name or None)
    if folder is None:
        raise unknown(name)
    stamp = config_stamp(folder)
    override = None
    if request.config is not None:
        override = Override(request.config, stamp)
    elif standing is not None and standing.stamp == stamp:
        override = standing
    config = override.config if override else read_config(folder, settings)
    # Files are valid only together with the configuration of the same request.
    return Sight(folder, config, None if files is not None else override)


def read(sight: Sight, settings: ServerSettings, gpus: AvailableGpus = NO_GPUS, kept_gpus: Sequence[int] = ()) -> Found:
    """The model as it is to be loaded. For `gpus` see read_draft. Raises LoadError if it is invalid."""
    source = _source_of(sight)
    try:
        draft = read_draft(sight.folder, settings, sight.config, gpus, kept_gpus)
    except EnsembleError as exc:
        raise exc if source is None else source.located(exc) from exc
    loaded_from = {}
    if settings.model_control_mode != "none":  # in mode "none" nothing is ever loaded again
        loaded_from = fingerprints(
            sight.folder, draft.config, draft.versions, default_instances=draft.default_instances
        )
    return Found(draft, loaded_from, source)


def _source_of(sight: Sight) -> ConfigSource | None:
    path = sight.folder.config_path
    if path is None or sight.override is not None or not sight.config.HasField("ensemble_scheduling"):
        return None
    try:
        return ConfigSource(Path(path).name, Path(path).read_text())
    except (OSError, UnicodeDecodeError):  # it was there a moment ago
        return None


def unknown(name: str) -> InferenceError:
    """The error for a model that is in no repository. Triton uses it for broken models too."""
    return InferenceError(f"failed to load '{name}', failed to poll from model repository")

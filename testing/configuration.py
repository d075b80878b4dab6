# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads, completes and validates the configuration of a model under test, by the rules of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyruntime.runtime.config.autocomplete import complete as merge
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.config.validate import validate
from pyruntime.runtime.gpus.machine import MachineGpus
from pyruntime.runtime.loaders.model_files import with_initial_states
from pyruntime.runtime.loaders.native_options import model_location
from pyruntime.runtime.repository.backends import OUR_BACKENDS, find_backend
from pyruntime.runtime.repository.draft import Draft, read_config, read_draft
from pyruntime.runtime.repository.override import parse_override
from pyruntime.runtime.repository.scan import read_folder
from pyruntime.runtime.settings import ServerSettings
from pyruntime.stub.pb_utils import ModelConfig
from pyruntime.testing.states import with_states
from pyruntime.utils.errors import InferenceError, LoadError


def read_model(folder: Path, config: Mapping[str, Any] | str | None) -> Draft:
    """Read a model's folder. `config` replaces its configuration: a dict, or the text of a config.pbtxt.

    Raises LoadError.
    """
    if not folder.is_dir():
        raise LoadError(f"there is no folder of a model at '{folder}'")
    found, settings = read_folder(folder.absolute(), None), ServerSettings(())
    gpus = MachineGpus(settings).read()
    return read_draft(found, settings, _override(config) or read_config(found, settings), gpus)


def _override(config: Mapping[str, Any] | str | None) -> Config | None:
    if config is None or isinstance(config, str):
        return None if config is None else parse_model_config(config, "config")
    try:
        return parse_override(json.dumps(config))
    except InferenceError as exc:
        raise LoadError(exc.message) from exc


def choose_version(draft: Draft, version: int | None) -> int:
    """The version to load: `version`, or the newest one that would be served. Raises LoadError."""
    if version is None:
        return draft.newest
    if version not in draft.versions:
        served = ", ".join(map(str, draft.versions))
        raise LoadError(f"version {version} of model '{draft.folder.name}' would not be served, only: {served}")
    return version


def locate(draft: Draft, version: int, backend_directories: Sequence[str]) -> dict[str, str]:
    """The location of a version's code, for `load_class`. Raises LoadError."""
    backend = find_backend(draft.identity, draft.folder.path, version, [*backend_directories, OUR_BACKENDS])
    if backend.kind == "ensemble":
        raise LoadError(
            f"'{draft.folder.name}' is an ensemble, which has no code of its own: test the models of its steps"
        )
    directory = backend_directories[0] if backend_directories else OUR_BACKENDS
    return model_location(backend, draft.identity, draft.folder.path, version, ServerSettings(()), directory)


def import_folders(location: dict[str, str]) -> list[str]:
    """The folders that `load_class` adds to sys.path."""
    backend = location.get("backend_dir")
    model_dir = location["model_dir"]
    return [backend] if backend else [str(Path(model_dir, location["version"])), model_dir]


def complete(draft: Draft, model_class: Any) -> ModelSpec:
    """The configuration after the model's `auto_complete_config`. Raises LoadError, and any exception of the model."""
    config = draft.config
    function = getattr(model_class, "auto_complete_config", None)
    if function is not None:
        completed = function(ModelConfig(render(config).decode()))
        if not isinstance(completed, ModelConfig):
            raise LoadError(
                f"auto_complete_config function in model '{draft.folder.name}' must return a valid pb.ModelConfig "
                "object."
            )
        config = merge(config, json.loads(json.dumps(completed.as_dict())))
    validate(config, draft.gpus.numbers, draft.gpus.capability_min)
    return with_states(with_initial_states(model_spec(config), draft.folder.path))


def initialize_args(draft: Draft, spec: ModelSpec, version: int) -> dict[str, str]:
    """The arguments of `initialize` for the first instance."""
    instance = spec.instances[0]
    return {
        "model_config": spec.json.decode(),
        "model_instance_kind": instance.kind,
        "model_instance_name": instance.name,
        "model_instance_device_id": str(instance.device_id),
        "model_repository": draft.folder.path,
        "model_version": str(version),
        "model_name": spec.name,
    }

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What models the repositories hold, seen from their folders alone.

Reads folders, and no file: whether a configuration is right is for whoever loads the model. A model that cannot be
served is in the answer all the same, with its `problem`, so that it shows up where people look for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyruntime.runtime.repository.versions import version_numbers
from pyruntime.utils.errors import LoadError


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model's folder. `path` is absolute; `config_path` is None where no configuration is written down.

    `version_dirs` are all its versions, ascending. `problem` says why the model cannot be served, or is None.
    """

    name: str
    path: str
    config_path: str | None = None
    version_dirs: tuple[int, ...] = ()
    problem: str | None = None


def scan(repositories: Sequence[str], config_name: str | None = None) -> list[ModelFolder]:
    """Every model of the repositories, in order of name. `config_name` X prefers `configs/X.pbtxt` to `config.pbtxt`.

    A name found in several repositories is there as often, each time with a problem. Symbolic links are followed.
    Raises LoadError if a repository itself cannot be read.
    """
    folders: list[ModelFolder] = []
    for repository in dict.fromkeys(repositories):
        for path in _model_paths(repository):
            folders.append(read_folder(path, config_name))
    by_name: dict[str, list[ModelFolder]] = {}
    for folder in folders:
        by_name.setdefault(folder.name, []).append(folder)
    return [found for name in sorted(by_name) for found in _without_rivals(by_name[name])]


def find_model(repositories: Sequence[str], name: str, config_name: str | None = None) -> ModelFolder | None:
    """What `scan` would say of one model, of the first place that it is in; None if it is nowhere."""
    if not _is_meant(name):
        return None
    paths = [Path(repository).absolute() / name for repository in dict.fromkeys(repositories)]
    folders = [read_folder(path, config_name) for path in paths if os.path.isdir(path)]
    return _without_rivals(folders)[0] if folders else None


def _model_paths(repository: str) -> list[Path]:
    """The folders in a repository that are meant as models, existing or not: links that lead nowhere are none."""
    root = Path(repository).absolute()
    try:
        names = os.listdir(root)
    except OSError as error:
        raise LoadError(f"model repository '{repository}' cannot be read: {error.strerror}") from error
    return [path for path in (root / name for name in names if _is_meant(name)) if os.path.isdir(path)]


def _is_meant(name: str) -> bool:
    """Whether a folder of this name is a model: Python leaves __pycache__ wherever somebody imports a file beside."""
    return not name.startswith(".") and name != "__pycache__"


def read_folder(path: Path, config_name: str | None) -> ModelFolder:
    """One model's folder, wherever it is. See `scan`."""
    folder = ModelFolder(path.name, os.fspath(path))
    if not path.name.isprintable() or path.name != path.name.strip() or "\\" in path.name:
        problem = f"{path.name!r} is no name for a model: it has invalid characters"
        return replace(folder, problem=problem)
    try:
        with os.scandir(path) as entries:
            versions = version_numbers(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        return replace(folder, problem=f"folder '{path}' of model '{path.name}' cannot be read: {error.strerror}")
    return replace(folder, config_path=_config_path(path, config_name), version_dirs=versions)


def _config_path(path: Path, config_name: str | None) -> str | None:
    candidates = [path / "config.pbtxt"]
    if config_name is not None:
        candidates.insert(0, path / "configs" / f"{config_name}.pbtxt")
    return next((os.fspath(candidate) for candidate in candidates if candidate.is_file()), None)


def _without_rivals(folders: list[ModelFolder]) -> list[ModelFolder]:
    if len(folders) == 1:
        return folders
    paths = ", ".join(f"'{folder.path}'" for folder in folders)
    problem = f"model '{folders[0].name}' is in more than one place, so that none of them is served: {paths}"
    return [replace(folder, problem=problem) for folder in folders]

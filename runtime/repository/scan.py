# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the models in repositories by their folders.

Reads folders but no files; the load of a model validates its configuration. The result includes models that cannot be
served, with their `problem`, so that the repository index can show them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyruntime.runtime.repository.versions import version_numbers
from pyruntime.utils.errors import LoadError

# A hidden file in a model's folder: only modules and packages of its versions count as a change. The version of a model
# that is one file is its user's folder, with anything else in it.
MODULES_ONLY = ".modules_only"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model's folder. `path` is absolute; `config_path` is None if there is no configuration file.

    `version_dirs` are all its versions, ascending. `problem` says why the model cannot be served, or is None.
    """

    name: str
    path: str
    config_path: str | None = None
    version_dirs: tuple[int, ...] = ()
    problem: str | None = None


def scan(repositories: Sequence[str], config_name: str | None = None) -> list[ModelFolder]:
    """All models of the repositories, sorted by name. `config_name` X prefers `configs/X.pbtxt` to `config.pbtxt`.

    A name in several repositories appears once for each, with a problem. Follows symbolic links. Raises LoadError if a
    repository itself cannot be read.
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
    """One model of the result of `scan`, from the first repository that has it; None if there is none."""
    if not _is_meant(name):
        return None
    paths = [Path(repository).absolute() / name for repository in dict.fromkeys(repositories)]
    folders = [read_folder(path, config_name) for path in paths if os.path.isdir(path)]
    return _without_rivals(folders)[0] if folders else None


def layout_warning(repository: str) -> str | None:
    """A sentence for the owner of a repository that has no models, or is itself the folder of a model; or None.

    Raises LoadError if it cannot be read.
    """
    root = Path(repository).absolute()
    names = [path.name for path in _model_paths(repository)]
    if not names:
        return (
            f"model repository '{repository}' has no models; each folder in it is one, such as "
            f"'{root / 'my_model' / '1' / 'model.py'}'"
        )
    if (root / "config.pbtxt").is_file() or len(version_numbers(names)) == len(names):
        return (
            f"model repository '{repository}' looks like the folder of one model; its repository is the folder above, "
            f"'{root.parent}'"
        )
    return None


def _model_paths(repository: str) -> list[Path]:
    """The folders in a repository that are models. Ignores links to missing targets."""
    root = Path(repository).absolute()
    try:
        names = os.listdir(root)
    except OSError as error:
        raise LoadError(f"model repository '{repository}' cannot be read: {error.strerror}") from error
    return [path for path in (root / name for name in names if _is_meant(name)) if os.path.isdir(path)]


def _is_meant(name: str) -> bool:
    """Whether a folder of this name is a model. Python creates __pycache__ beside imported files."""
    return not name.startswith(".") and name != "__pycache__"


def read_folder(path: Path, config_name: str | None) -> ModelFolder:
    """One model's folder at any path. See `scan`."""
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

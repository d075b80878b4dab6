# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds out what a server would know of a file of a framework: its backend, its tensors, its operations.

The tensors come from the backend's own `auto_complete_config`, in a process of its own, so that the command imports no
framework. A file that lies in the folder of a model is read with the options in the config.pbtxt of that model.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyruntime.backends.toolkit.contents import Contents
from pyruntime.runtime.cli.commands.client import CommandError, WrongUsage
from pyruntime.runtime.cli.model_files import MEMBERS, WHOLE_VERSIONS, fault_of, pipeline_of
from pyruntime.runtime.config.autocomplete import minimal_config
from pyruntime.runtime.config.backends import FORMATS, PYTHON_RUNTIME
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.descriptors import raise_limit
from pyruntime.runtime.environments.forms import PARAMETER
from pyruntime.runtime.instances.stub.launch import close_launcher, start_launcher
from pyruntime.runtime.loaders.completion import complete_alone
from pyruntime.runtime.repository.backends import OUR_BACKENDS
from pyruntime.runtime.repository.draft import Draft, read_config, read_draft
from pyruntime.runtime.repository.scan import ModelFolder, read_folder
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError

# Backends by the suffix of a file: those of the formats that the server finds by itself, and those of files with names
# that it does not take for a model.
BY_SUFFIX = {
    **{Path(name).suffix: each.backend for each in FORMATS for name in (each.filename, *each.others)},
    ".py": "pytorch",
    ".safetensors": "pytorch",
    **dict.fromkeys((".skops", ".ubj", ".json", ".txt", ".pkl", ".joblib"), "sklearn"),
}
# Folders that may have any name, by a file that they have.
BY_MEMBER = {member: backend for backend, member in MEMBERS.items()}
# The parameter of a model of transformers that has its task.
PIPELINE = "pipeline"
# What auto_complete_config fills in. The file is to tell it, and not a config.pbtxt.
_COMPLETED = ("input", "output", "max_batch_size", "dynamic_batching", "sequence_batching")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to inspect, and what the file does not say: its backend, libraries of operations, an environment."""

    path: str
    backend: str = ""
    libraries: tuple[str, ...] = ()
    environment: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result. `config` lacks tensors if there is a `problem`. `contents` is None if no reader knows the file."""

    path: Path
    config: Config
    contents: Contents | None
    problem: str


def inspect(wanted: Wanted) -> Inspection:
    """Inspect a file. Raises CommandError if it or a library is missing, or if nothing says which backend it has."""
    path = Path(os.path.abspath(wanted.path))
    if not path.exists():
        raise CommandError(f"there is no file '{wanted.path}'")
    for library in wanted.libraries:
        if not os.path.isfile(library):
            raise CommandError(f"there is no library '{library}'")
    with ExitStack() as resources:
        try:
            folder, version = _model_folder(_version_folder(path, wanted.backend), path.stem, resources)
            options = _options(folder, path, wanted)
            problem = fault_of(path, options.backend)
            if problem:
                return Inspection(path, options, None, problem)
            draft = read_draft(folder, ServerSettings(()), options)
        except (LoadError, OSError) as exc:
            excerpt = exc.excerpt if isinstance(exc, LoadError) else ""
            raise CommandError(f"{exc}\n{excerpt}" if excerpt else str(exc)) from exc
        config = draft.config
        try:
            config = asyncio.run(_complete(draft, version))
        except LoadError as exc:
            problem = str(exc).replace(
                os.path.join(folder.path, str(version)), os.fspath(_version_folder(path, wanted.backend))
            )
        return Inspection(path, config, _read_contents(config.backend, path), problem)


def _version_folder(path: Path, backend: str) -> Path:
    """The folder that is the version's for the model in `path`; `backend` is "" if only the path tells it."""
    is_whole = path.is_dir() and (backend or _backend_of(path)) in WHOLE_VERSIONS
    return path if is_whole else path.parent


def _model_folder(version_folder: Path, name: str, resources: ExitStack) -> tuple[ModelFolder, int]:
    """The model that a version's folder belongs to, or one that is made around it, and the version. Raises OSError."""
    if version_folder.name.isdigit():
        return read_folder(version_folder.parent, None), int(version_folder.name)
    root = Path(resources.enter_context(TemporaryDirectory(prefix="pyruntime-")))
    folder = root / name
    folder.mkdir()
    (folder / "1").symlink_to(version_folder)
    return read_folder(folder, None), 1


def _options(folder: ModelFolder, path: Path, wanted: Wanted) -> Config:
    """The configuration to complete: only options, and no tensors. Raises LoadError and WrongUsage."""
    config = read_config(folder, ServerSettings(())) if folder.config_path else minimal_config(folder.name)
    for name in _COMPLETED:
        config.ClearField(name)
    config.backend = wanted.backend or config.backend or _backend_of(path)
    if not config.backend:
        raise WrongUsage(_without_backend(path))
    if path.is_dir() and config.backend == "transformers" and PIPELINE not in config.parameters:
        task = pipeline_of(path)
        if task:
            config.parameters[PIPELINE].string_value = task
    if path.is_dir() and not config.platform:  # which its name need not say
        names = (each.platform for each in FORMATS if each.backend == config.backend and each.is_folder)
        config.platform = next(names, "")
    if _version_folder(path, config.backend) != path:
        config.default_model_filename = path.name
    if config.runtime != PYTHON_RUNTIME:
        config.ClearField("runtime")
    config.model_operations.op_library_filename.extend(map(os.path.abspath, wanted.libraries))
    if wanted.environment:
        config.parameters[PARAMETER].string_value = os.path.abspath(wanted.environment)
    return config


def _backend_of(path: Path) -> str:
    """The backend of a file by its suffix, or of a folder by what it has. "" if neither says.

    Raises WrongUsage for a file that is only known in its folder.
    """
    if path.is_file() and path.name in BY_MEMBER:
        raise WrongUsage(f"'{path.name}' is a part of a model: name its folder, '{path.parent}'")
    if path.suffix in BY_SUFFIX:
        return BY_SUFFIX[path.suffix]
    return next((backend for member, backend in BY_MEMBER.items() if (path / member).is_file()), "")


def _without_backend(path: Path) -> str:
    """The message for a path that does not tell its backend."""
    if path.is_dir():
        return (
            f"'{path.name}' is a folder without {' or '.join(BY_MEMBER)}, so that nothing says which backend serves "
            "it: name the model's file in it, or a backend with --backend"
        )
    return (
        f"the suffix of '{path.name}' does not say which backend serves it: name one with --backend; known suffixes "
        f"are {', '.join(sorted(BY_SUFFIX))}"
    )


async def _complete(draft: Draft, version: int) -> Config:
    start_launcher(raise_limit())
    try:
        return await complete_alone(draft, version, [OUR_BACKENDS], ServerSettings(()))
    finally:
        await close_launcher()


def _read_contents(backend: str, path: Path) -> Contents | None:
    """The contents of a file, by the backend's reader. None if it has none, or if the file is broken."""
    if not os.path.isfile(os.path.join(OUR_BACKENDS, backend, "contents.py")):
        return None
    reader = importlib.import_module(f"pyruntime.backends.{backend}.contents")
    try:
        found: Contents = reader.read_contents(os.fspath(path))
    except Exception:  # the backend has said what is wrong with it
        return None
    return found

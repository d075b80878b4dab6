# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime new`: writes a working model or backend from a template."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from pyruntime.runtime.cli.commands.client import CommandError, WrongUsage
from pyruntime.runtime.cli.skeleton import SUFFIX, NameProblem, Names

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def run_new_model(name: str, directory: str) -> int:
    """Write the folder of a model into `directory`, which may be a model repository. Raises CommandError."""
    try:
        names = Names.of_model(name)
    except NameProblem as problem:
        raise WrongUsage(str(problem)) from problem
    show_next_steps(_write("model", names, directory))
    return 0


def run_new_backend(name: str, directory: str, in_cpp: bool) -> int:
    """Write a project with a backend, in C++ or Python, and a model that uses it. Raises CommandError."""
    try:
        names = Names.of_backend(name)
    except NameProblem as problem:
        raise WrongUsage(str(problem)) from problem
    folder = _write("backend_cpp" if in_cpp else "backend_python", names, directory)
    print(f"\n{_installation()}cd {_quoted(folder)} && pytest\n{_quoted(folder / 'README.md')} says how to go on.")
    return 0


def _write(kind: str, names: Names, directory: str) -> Path:
    """Write a template to a new folder, print the paths of its files, and return the folder."""
    with new_folder(names.name, directory) as folder:
        for template, text in _templates(kind):
            write_file(folder / names.target(template), names.fill(text))
    return folder


@contextmanager
def new_folder(name: str, directory: str) -> Iterator[Path]:
    """Make a folder that must not exist, and have it written to. Raises CommandError if that fails."""
    folder = Path(directory) / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        yield folder
    except FileExistsError as error:
        raise CommandError(f"'{error.filename}' is there already, and was left as it is") from error
    except OSError as error:
        raise CommandError(f"'{error.filename or folder}' cannot be written: {error.strerror}") from error


def write_file(target: Path, text: str) -> None:
    """Write a file, and print its path. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(target)


def _templates(kind: str) -> Iterator[tuple[PurePosixPath, str]]:
    """The files of a template, as relative path and text, sorted."""
    root = _TEMPLATES / kind
    for path in sorted(root.rglob(f"*{SUFFIX}")):
        yield PurePosixPath(path.relative_to(root).as_posix()), path.read_text(encoding="utf-8")


def show_next_steps(folder: Path, has_test: bool = True) -> None:
    """Print the commands that test and serve the model in `folder`."""
    print(f"\n{_installation()}pytest {_quoted(folder)}" if has_test else "")
    print(f"pyruntime serve --model-repository={_quoted(folder.parent)}")


def _installation() -> str:
    """The line of the command that tests need first: pytest is no part of an installation."""
    return "" if find_spec("pytest") else "pip install pytest\n"


def _quoted(path: Path) -> str:
    return shlex.quote(os.fspath(path))

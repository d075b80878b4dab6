# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prepares the environment that a model's EXECUTION_ENV_PATH names, so that its stubs can start in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from pyruntime.runtime.environments.activate import activated
from pyruntime.runtime.environments.archives import unpack_archive
from pyruntime.runtime.environments.build import build_from_requirements, build_from_script
from pyruntime.runtime.environments.cache import cache_root
from pyruntime.runtime.environments.environment import Environment, Place
from pyruntime.runtime.environments.forms import ACCEPTED, PARAMETER, Form, expand, form_of, is_anchored
from pyruntime.runtime.environments.interpreters import examine, require_fit
from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.environments")


async def prepare(path: str, model_dir: str) -> Environment:
    """Prepare the environment that `path`, the value of a model's EXECUTION_ENV_PATH, names.

    `model_dir` is the model's folder. What is not in it may be in the server's working directory, as in Triton. The
    first time it takes as long as unpacking or installing.
    Raises LoadError. Cancelling ends all programs that it started and removes unfinished folders.
    """
    try:
        return await _prepare(_meant(path, model_dir))
    except LoadError as exc:
        raise LoadError(f"{PARAMETER} is '{path}': {exc}") from exc


async def _prepare(path: str) -> Environment:
    form = _form(path)
    if form is Form.INTERPRETER:
        return await _environment(_of_interpreter(path), form)
    return await _environment(_in_folder(await _folder(form, path), path), form)


async def _environment(place: Place, form: Form) -> Environment:
    """The environment at a place. Raises LoadError if stubs cannot start in it."""
    variables: Mapping[str, str] = place.variables(os.environ)
    if place.root and not place.is_virtual:
        variables = await activated(place.root, variables)
    examined = await examine(place.interpreter, variables)
    require_fit(examined, place.interpreter, _REMEDIES.get(form) or f"run `{place.interpreter} -m pip install numpy`")
    _LOG.debug("%s has sys.path %s", place.interpreter, examined.path)
    description = f"Python {examined.version_text} with numpy {examined.numpy}, {place.interpreter}"
    return Environment(place.interpreter, description, variables)


# How to install numpy in environments that must not be changed after they are made.
_REMEDIES = {
    Form.ARCHIVE: "install it into the environment before packing it",
    Form.REQUIREMENTS: "name it in the requirements",
    Form.SCRIPT: "name it in the dependencies",
}


async def _folder(form: Form, path: str) -> str:
    """The folder of an environment, unpacked or built if needed. Raises LoadError."""
    match form:
        case Form.ARCHIVE:

            async def check(folder: str) -> None:
                await _environment(_in_folder(_only_folder(folder), path), form)

            return _only_folder(await unpack_archive(cache_root(os.environ), path, check))
        case Form.REQUIREMENTS:
            return await build_from_requirements(cache_root(os.environ), path)
        case Form.SCRIPT:
            return await build_from_script(cache_root(os.environ), path)
        case _:
            return path


def _meant(path: str, model_dir: str) -> str:
    """The place that `path` names. Raises LoadError if nothing is there."""
    meant = expand(path, os.path.abspath(model_dir))
    elsewhere = os.path.abspath(path)
    if os.path.lexists(meant) or is_anchored(path):
        return meant
    if not os.path.lexists(elsewhere):
        raise LoadError(
            f"there is nothing at '{meant}', nor in the server's working directory, at '{elsewhere}'; it should be "
            f"{ACCEPTED}"
        )
    _LOG.info("%s '%s' is not in the model's folder: '%s' of the working directory is used", PARAMETER, path, elsewhere)
    return elsewhere


def _form(path: str) -> Form:
    """The form of what `path` names. Raises LoadError if it does not exist."""
    if os.path.isdir(path):
        return Form.FOLDER
    if os.path.isfile(path):
        return form_of(path)
    found = "a link to nothing" if os.path.islink(path) else "no file" if os.path.exists(path) else "nothing"
    raise LoadError(f"there is {found} at '{path}'; it should be {ACCEPTED}")


def _only_folder(folder: str) -> str:
    """`folder`, or the only folder in it: some archives contain the environment's folder and not its entries."""
    entries = os.listdir(folder)
    return os.path.join(folder, entries[0]) if len(entries) == 1 and entries != ["bin"] else folder


def _in_folder(folder: str, path: str) -> Place:
    """The place of the environment in `folder`, made from `path`. Raises LoadError if it has no interpreter."""
    candidates = [os.path.join(folder, "bin", name) for name in ("python", "python3")]
    for interpreter in candidates:
        if os.path.isfile(interpreter):
            _require_executable(interpreter)
            return Place(interpreter, folder, os.path.isfile(os.path.join(folder, "pyvenv.cfg")))
    for interpreter in candidates:
        if os.path.islink(interpreter):
            raise LoadError(
                f"'{interpreter}' is a link to '{os.readlink(interpreter)}', which is not there: install that Python,"
                " or make the environment anew"
            )
    raise LoadError(f"there is no bin/python in '{path}', and so no interpreter; it should be {ACCEPTED}")


def _of_interpreter(path: str) -> Place:
    """The place of an interpreter, with the root of its environment if it has one. Raises LoadError."""
    _require_executable(path)
    root = os.path.dirname(os.path.dirname(path))
    if os.path.isfile(os.path.join(root, "pyvenv.cfg")):
        return Place(path, root, is_virtual=True)
    return Place(path, root if os.path.isdir(os.path.join(root, "conda-meta")) else "")


def _require_executable(path: str) -> None:
    if not os.access(path, os.X_OK):
        raise LoadError(f"'{path}' cannot be executed, and so is no interpreter; it should be {ACCEPTED}")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds a virtual environment from a requirements file or from the metadata of a script: once per content.

It uses uv if it finds it, which takes seconds, else `venv` and `pip` of the Python that the environment is for.
"""

from __future__ import annotations

import os
import sys

from pyruntime.runtime.environments.cache import cached
from pyruntime.runtime.environments.commands import run
from pyruntime.runtime.environments.environment import Place
from pyruntime.runtime.environments.interpreters import find, find_uv
from pyruntime.runtime.environments.metadata import parse_script
from pyruntime.runtime.environments.recipe import Recipe, effective_lines, included_file
from pyruntime.utils.errors import LoadError

# The time limit of each step, in seconds: it may download gigabytes.
STEP_S = 1800.0
# The number of requirements files that may include each other; more are a mistake or an attack.
FILES_MAX = 100
FILE_BYTES_MAX = 4 << 20


async def build_from_requirements(root: str, path: str) -> str:
    """Build an environment with the packages of a requirements file, for the server's version of Python.

    Returns its folder. Raises LoadError. Cancelling ends the build and removes the unfinished folder.
    """
    requirements, constraints = read_requirements(path)
    recipe = await _recipe("", requirements, constraints, path)
    return await _build(root, recipe, ["-r", path], path)


async def build_from_script(root: str, path: str) -> str:
    """Build an environment with the dependencies that a Python file declares. Otherwise like the function above."""
    metadata = parse_script(_read(path), path)
    recipe = await _recipe(metadata.requires_python, metadata.dependencies, (), path)
    return await _build(root, recipe, list(metadata.dependencies), path)


def read_requirements(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requirements and the constraints of a file and of all files that it includes. Raises LoadError."""
    found: dict[bool, list[str]] = {False: [], True: []}
    waiting = [(path, False)]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        file, constrains = waiting.pop(0)
        if (os.path.realpath(file), constrains) in seen:
            continue
        seen.add((os.path.realpath(file), constrains))
        if len(seen) > FILES_MAX:
            raise LoadError(f"'{path}' includes more than {FILES_MAX} files")
        for line in effective_lines(_read(file)):
            included = included_file(line)
            if included is None:
                found[constrains].append(line)
            else:
                waiting.append((os.path.join(os.path.dirname(file), included[0]), constrains or included[1]))
    return tuple(found[False]), tuple(found[True])


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise LoadError(f"'{path}' is larger than {FILE_BYTES_MAX} bytes, and should say what a model needs")
        return data.decode("utf-8-sig")
    except OSError as exc:
        raise LoadError(f"'{path}', which says what a model needs, cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise LoadError(f"'{path}', which says what a model needs, is not text in UTF-8") from exc


async def _recipe(requires: str, requirements: tuple[str, ...], constraints: tuple[str, ...], path: str) -> Recipe:
    found = await find(requires)
    folder = os.path.dirname(path)
    if found is not None:
        return Recipe(found.interpreter, found.tag, requirements, constraints, folder)
    if find_uv() is None:
        raise LoadError(
            f"'{path}' requires Python {requires}, and there is none on PATH (the server's own is"
            f" {sys.version.split()[0]}): install one, or uv, which fetches it"
        )
    return Recipe(requires, requires, requirements, constraints, folder)


async def _build(root: str, recipe: Recipe, wanted: list[str], path: str) -> str:
    label = f"the environment of '{path}'"
    variables = Place("/").variables(os.environ)
    uv = find_uv()

    async def step(what: str, command: list[str], lock: int) -> None:
        await run(command, f"{what} {label}", STEP_S, variables, recipe.folder, [lock])

    async def make(folder: str, lock: int) -> None:
        python = f"{folder}/bin/python"
        packages = [*wanted, "numpy"] if recipe.needs_numpy else wanted
        if uv:
            await step("making", [uv, "venv", "--no-project", "--python", recipe.python, folder], lock)
            if packages:
                await step("filling", [uv, "pip", "install", "--python", python, *packages], lock)
        else:
            await step("making", [recipe.python, "-m", "venv", folder], lock)
            install = [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
            if packages:
                await step("filling", [*install, *packages], lock)

    return await cached(root, recipe.key, label, make)

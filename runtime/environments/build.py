# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds a virtual environment of a requirements file, or of what a script says it needs: once for each content.

With uv where there is one, which takes seconds, else with the `venv` and `pip` of the Python that it is for.
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

# Each step may take this long, in seconds: gigabytes may have to be downloaded.
STEP_S = 1800.0
# Of requirements files that include each other; more are a mistake, or meant badly.
FILES_MAX = 100
FILE_BYTES_MAX = 4 << 20


async def build_from_requirements(root: str, path: str) -> str:
    """The folder of an environment with what a requirements file names, for our own version of Python.

    Raises LoadError. Cancelling it ends the build and removes what there is of it.
    """
    requirements, constraints = read_requirements(path)
    recipe = await _recipe("", requirements, constraints, path)
    return await _build(root, recipe, ["-r", path], path)


async def build_from_script(root: str, path: str) -> str:
    """The folder of an environment with what a Python file says it needs. Raises and cancels like the other."""
    metadata = parse_script(_read(path), path)
    recipe = await _recipe(metadata.requires_python, metadata.dependencies, (), path)
    return await _build(root, recipe, list(metadata.dependencies), path)


def read_requirements(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All requirements of a file, and all constraints, with those of the files that it includes. Raises LoadError."""
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

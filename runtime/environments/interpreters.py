# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds Python interpreters, and runs them to get their version and numpy."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from pyruntime.runtime.environments.commands import run
from pyruntime.runtime.environments.environment import Place
from pyruntime.runtime.environments.specifiers import Version, admits
from pyruntime.utils.errors import LoadError

# The oldest Python that a stub runs under.
OLDEST: Version = (3, 8)
# The newest minor version that is searched for by name; `python3` finds newer ones.
NEWEST_MINOR = 20
# The time limit to start a Python and import numpy, in seconds: from a network drive it is slow.
EXAMINE_S = 120.0

_NO_NUMPY = ("ModuleNotFoundError: No module named 'numpy'", "ImportError: No module named numpy")
_MARK = "pyruntime examines "
# Valid in any version of Python, so that an old one can report its version.
_EXAMINE = f"""
import json, sys
found = {{"version": list(sys.version_info[:3]), "numpy": "", "problem": "", "path": sys.path}}
try:
    import numpy
    found["numpy"] = numpy.__version__
except BaseException:
    found["problem"] = "%s: %s" % (sys.exc_info()[0].__name__, sys.exc_info()[1])
sys.stdout.write("\\n{_MARK}" + json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Examined:
    """The properties of a Python. `problem` says why importing numpy failed, "" if not. `path` is its sys.path."""

    version: Version
    numpy: str
    problem: str
    path: tuple[str, ...]

    @property
    def version_text(self) -> str:
        """The version with dots."""
        return ".".join(map(str, self.version))


async def examine(interpreter: str, variables: Mapping[str, str]) -> Examined:
    """Run a Python and return its properties. Raises LoadError if it cannot be run or is not a Python."""
    # In the root folder, so that it imports no module from the server's current folder.
    output = await run([interpreter, "-c", _EXAMINE], f"starting '{interpreter}'", EXAMINE_S, variables, "/")
    try:
        # Handlers that run when the interpreter exits may write more after it.
        found, _ = json.JSONDecoder().raw_decode(output.rpartition(_MARK)[2])
        return Examined(tuple(found["version"]), found["numpy"], found["problem"], tuple(found["path"]))
    except (ValueError, KeyError, TypeError) as exc:
        raise LoadError(f"'{interpreter}' is no Python: it was asked what it is, and said {output[-200:]!r}") from exc


def require_fit(examined: Examined, interpreter: str, remedy: str) -> None:
    """Raise LoadError if a stub cannot run under this Python; `remedy` says how to install numpy in it."""
    if examined.version < OLDEST:
        raise LoadError(
            f"'{interpreter}' is Python {examined.version_text}, and models run under Python"
            f" {'.'.join(map(str, OLDEST))} or newer"
        )
    if not examined.numpy and examined.problem.startswith(_NO_NUMPY):
        raise LoadError(f"'{interpreter}' has no numpy, without which no model can run: {remedy}")
    if not examined.numpy:
        raise LoadError(f"'{interpreter}' has a numpy that cannot be imported: {examined.problem}")


@dataclass(frozen=True, slots=True)
class Found:
    """A Python to build environments with. `tag` is its exact version and platform."""

    interpreter: str
    tag: str


async def find(requires: str) -> Found | None:
    """A Python that the specifier `requires` admits: the server's, else the newest on PATH, else None.

    Raises LoadError for an invalid specifier.
    """
    if admits(requires, sys.version_info[:3]):
        return Found(sys.executable, _tag(sys.version_info[:3]))
    async for found, version in _on_path():
        if version >= OLDEST and admits(requires, version):
            return found
    return None


async def _on_path() -> AsyncIterator[tuple[Found, Version]]:
    names = [f"python3.{minor}" for minor in range(NEWEST_MINOR, OLDEST[1] - 1, -1)]
    for name in [*names, "python3"]:
        interpreter = shutil.which(name)
        if interpreter is None:
            continue
        try:
            examined = await examine(interpreter, Place(interpreter).variables(os.environ))
        except LoadError:
            continue  # for example a version manager's shim for a version that is not selected
        yield Found(interpreter, _tag(examined.version)), examined.version


def _tag(version: Version) -> str:
    libc = "-".join(platform.libc_ver())
    return f"{'.'.join(map(str, version))} {sys.platform} {platform.machine()} {libc}"


def find_uv() -> str | None:
    """The path of the program uv, if it is on PATH or beside the server's Python."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("uv", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")

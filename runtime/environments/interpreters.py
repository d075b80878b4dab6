# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds Pythons, and finds out what they are by running them."""

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
# The newest one that is looked for by name; `python3` finds newer ones.
NEWEST_MINOR = 20
# How long a Python may take to start and import numpy, in seconds: from a network drive it takes its time.
EXAMINE_S = 120.0

_NO_NUMPY = ("ModuleNotFoundError: No module named 'numpy'", "ImportError: No module named numpy")
_MARK = "pyruntime examines "
# In the language of any Python, since the very old ones are to say how old they are.
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
    """What a Python said of itself. `problem` is why it has no numpy, "" if it has. `path` is its sys.path."""

    version: Version
    numpy: str
    problem: str
    path: tuple[str, ...]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))


async def examine(interpreter: str, variables: Mapping[str, str]) -> Examined:
    """Run a Python and ask what it is. Raises LoadError if it cannot be run, or is none."""
    # In the root folder, so that no module of ours is taken for one of its own.
    output = await run([interpreter, "-c", _EXAMINE], f"starting '{interpreter}'", EXAMINE_S, variables, "/")
    try:
        # What ends with the process may still write something after it.
        found, _ = json.JSONDecoder().raw_decode(output.rpartition(_MARK)[2])
        return Examined(tuple(found["version"]), found["numpy"], found["problem"], tuple(found["path"]))
    except (ValueError, KeyError, TypeError) as exc:
        raise LoadError(f"'{interpreter}' is no Python: it was asked what it is, and said {output[-200:]!r}") from exc


def require_fit(examined: Examined, interpreter: str, remedy: str) -> None:
    """Raise LoadError if a stub cannot run under this Python; `remedy` is how to get numpy into it."""
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
    """A Python to build environments with. `tag` says which it is, exactly, and for what kind of machine."""

    interpreter: str
    tag: str


async def find(requires: str) -> Found | None:
    """A Python that `requires`, a specifier, admits: our own, else the newest on PATH, else None. Raises LoadError."""
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
            continue  # a shim of a version manager, say, of a version that is not chosen
        yield Found(interpreter, _tag(examined.version)), examined.version


def _tag(version: Version) -> str:
    libc = "-".join(platform.libc_ver())
    return f"{'.'.join(map(str, version))} {sys.platform} {platform.machine()} {libc}"


def find_uv() -> str | None:
    """The program uv, if it is on PATH or beside our own Python."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("uv", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")

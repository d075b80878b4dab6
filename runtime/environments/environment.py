# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a stub is started with: an environment that is ready for use, or the server's own Python. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Variables that point Python to the packages of a certain environment. If the server runs in an environment, these are
# set for that one, and would lead stubs of another environment to the wrong packages.
FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")


@dataclass(frozen=True, slots=True)
class Environment:
    """The interpreter and the variables of a stub. `variables` is complete: a stub inherits none from the server.

    `at_terminal` says that a user debugs the model: the stub then shares the server's terminal and has no time limits.
    """

    interpreter: str
    description: str
    variables: Mapping[str, str] = field(repr=False)
    at_terminal: bool = False


@dataclass(frozen=True, slots=True)
class Preloaded:
    """The server's own Python, with a module that is imported once for all stubs that need it, and then forked."""

    module: str


# What a stub is started with; None is the server's own Python.
StubPython = Environment | Preloaded | None


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an interpreter. `root` is the folder of its environment, "" for a system-wide one."""

    interpreter: str
    root: str = ""
    is_virtual: bool = False

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables of a process of this environment, made of `inherited`, as if a user had activated it."""
        variables = {name: value for name, value in inherited.items() if name not in FOREIGN}
        bin_dir = self.interpreter.rpartition("/")[0]
        path = variables.get("PATH", "")
        if self.root or bin_dir not in path.split(":"):
            variables["PATH"] = _prefixed(bin_dir, path)
        if self.root:
            variables["VIRTUAL_ENV" if self.is_virtual else "CONDA_PREFIX"] = self.root
        if self.root and not self.is_virtual:
            # A virtual environment uses the system's libraries; a conda environment brings its own, such as libstdc++.
            variables["LD_LIBRARY_PATH"] = _prefixed(f"{self.root}/lib", variables.get("LD_LIBRARY_PATH", ""))
        return variables


def _prefixed(folder: str, path: str) -> str:
    # An empty part of either variable means the current folder, from which nothing must be loaded.
    return f"{folder}:{path}" if path else folder

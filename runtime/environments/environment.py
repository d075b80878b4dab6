# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An environment that is ready to be used, and the process environment that belongs to it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# What points a Python at another one's packages. Whoever starts the server in an environment has these set, and they
# are about that environment.
FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")


@dataclass(frozen=True, slots=True)
class Environment:
    """What a stub is started with. `variables` is the whole environment of its process, not an addition to ours.

    `at_terminal` if somebody debugs the model: then it shares the terminal of the server, and has no time limits.
    """

    interpreter: str
    description: str
    variables: Mapping[str, str] = field(repr=False)
    at_terminal: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where an interpreter lives. `root` is the folder of its environment, "" for one that is installed system-wide."""

    interpreter: str
    root: str = ""
    is_virtual: bool = False

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process of this place, made of that of ours: as if it had been activated."""
        variables = {name: value for name, value in inherited.items() if name not in FOREIGN}
        bin_dir = self.interpreter.rpartition("/")[0]
        path = variables.get("PATH", "")
        if self.root or bin_dir not in path.split(":"):
            variables["PATH"] = _prefixed(bin_dir, path)
        if self.root:
            variables["VIRTUAL_ENV" if self.is_virtual else "CONDA_PREFIX"] = self.root
        if self.root and not self.is_virtual:
            # A virtual environment has no libraries besides Python's own; one of conda brings its own libstdc++.
            variables["LD_LIBRARY_PATH"] = _prefixed(f"{self.root}/lib", variables.get("LD_LIBRARY_PATH", ""))
        return variables


def _prefixed(folder: str, path: str) -> str:
    # An empty part of either variable means the current folder, which nobody asked for.
    return f"{folder}:{path}" if path else folder

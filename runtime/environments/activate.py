# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the scripts by which packages of conda set up the processes that use them.

A package that needs environment variables puts a script into `etc/conda/activate.d`; activating an environment runs all
of them. Whoever activated it by hand for Triton had their effect, and so do stubs.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Mapping

from pyruntime.runtime.environments.commands import run

# How long the scripts may take together, in seconds. Most set a variable or two.
ACTIVATE_S = 60.0
_MARK = "pyruntime reads the environment"
_SCRIPT = f'for script; do . "$script"; done; printf "\\n%s\\n" "{_MARK}"; exec env -0'
# The shell's own.
_NOT_THEIRS = {"_", "SHLVL", "PWD", "OLDPWD"}


async def activated(root: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a process after the scripts of the environment at `root` have run. Raises LoadError."""
    scripts = sorted(glob.glob(f"{glob.escape(root)}/etc/conda/activate.d/*.sh"))
    if not scripts:
        return variables
    shell = shutil.which("bash") or "sh"  # many of the scripts are written for bash
    command = [shell, "-c", _SCRIPT, shell, *scripts]
    output = await run(command, f"activating '{root}'", ACTIVATE_S, variables, root)
    entries = output.rpartition(f"{_MARK}\n")[2].split("\0")
    after = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {name: value for name, value in after.items() if name not in _NOT_THEIRS or name in variables}

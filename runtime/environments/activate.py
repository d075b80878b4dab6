# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the activation scripts of a conda environment.

A package that needs environment variables installs a script in `etc/conda/activate.d`; activating the environment runs
all of them. Users who activate an environment before they start Triton get these variables, so stubs get them too.
"""

from __future__ import annotations

import glob
import shutil
from collections.abc import Mapping

from pyruntime.runtime.environments.commands import run

# The time limit for all scripts together, in seconds. Most set one or two variables.
ACTIVATE_S = 60.0
_MARK = "pyruntime reads the environment"
_SCRIPT = f'for script; do . "$script"; done; printf "\\n%s\\n" "{_MARK}"; exec env -0'
# Variables that the shell itself sets.
_NOT_THEIRS = {"_", "SHLVL", "PWD", "OLDPWD"}


async def activated(root: str, variables: Mapping[str, str]) -> Mapping[str, str]:
    """`variables` after the activation scripts of the environment at `root` have run. Raises LoadError."""
    scripts = sorted(glob.glob(f"{glob.escape(root)}/etc/conda/activate.d/*.sh"))
    if not scripts:
        return variables
    shell = shutil.which("bash") or "sh"  # many scripts need bash
    command = [shell, "-c", _SCRIPT, shell, *scripts]
    output = await run(command, f"activating '{root}'", ACTIVATE_S, variables, root)
    entries = output.rpartition(f"{_MARK}\n")[2].split("\0")
    after = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {name: value for name, value in after.items() if name not in _NOT_THEIRS or name in variables}

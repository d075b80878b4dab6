# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What of a model runs while somebody debugs it: one process can have the terminal, and so there is just one. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyruntime.runtime.repository.instance_mode import InstanceProcess
from pyruntime.runtime.settings import SettingsError

# As many names as still read as a hint.
NAMES_MAX = 20


def check_debug_model(name: str, found: Collection[str]) -> None:
    """Raise SettingsError if `name`, "" for none, is not among the models of the repositories."""
    if name and name not in found:
        names = ", ".join(sorted(found)[:NAMES_MAX]) or "none"
        raise SettingsError(f"--debug: there is no model '{name}' in the repositories; there are: {names}")


def only_version(versions: Sequence[int]) -> tuple[int, ...]:
    """Of the versions, oldest first, the one to debug."""
    return tuple(versions[-1:])


def only_process(processes: Sequence[InstanceProcess]) -> tuple[InstanceProcess, ...]:
    """The first process that takes requests, or else the first, executing one batch at a time."""
    active = [process for process in processes if not process.instance.passive]
    return tuple(InstanceProcess(process.instance) for process in (active or processes)[:1])

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime serve`: options and configuration file -> settings -> the server.

Nothing here imports typer, rich, yaml or numpy before it is needed; see `cli/__init__.py`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from pyruntime.runtime.cli.parse import Values, merge, parse_arguments
from pyruntime.runtime.cli.resolve import resolve
from pyruntime.runtime.cli.terminal import NO_TERMINAL, has_terminal, terminal_kept
from pyruntime.runtime.observe.logging import set_up_logging
from pyruntime.runtime.settings import ServerSettings, SettingsError

log = logging.getLogger("pyruntime.runtime.cli")


def run_serve(arguments: Sequence[str], program: str = "pyruntime serve") -> int:
    """Serve until told to stop. Returns the exit status: 1, after one sentence on standard error, for a bad option.

    `program` is what the help calls the command.
    """
    try:
        values, warnings = parse_arguments(arguments)
        if "help" in values:
            return _show_help(program)
        settings, warnings = _settings(values, warnings)
        set_up_logging(settings)
    except SettingsError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    for warning in warnings:
        log.warning("%s", warning)
    # First of all: it imports numpy in another process while this one imports the server.
    from pyruntime.runtime.instances.stub.launch import start_forkserver

    start_forkserver()
    from pyruntime.runtime.app.server import serve
    from pyruntime.runtime.frontends.listeners import Listeners

    with terminal_kept() if settings.debug_model else nullcontext():
        return serve(settings, Listeners)


def _settings(values: Values, warnings: list[str]) -> tuple[ServerSettings, list[str]]:
    """The settings, and every warning once: an option may stand in the file and on the command line."""
    path = values.pop("config", None)
    if path is not None:
        from pyruntime.runtime.cli.config_file import read_config_file

        file_values, file_warnings = read_config_file(str(path))
        values = merge(file_values, values)
        warnings = file_warnings + warnings
    settings, further = resolve(values)
    if settings.debug_model and not has_terminal():
        further.append(NO_TERMINAL)
    return settings, list(dict.fromkeys(warnings + further))


def _show_help(program: str) -> int:
    from pyruntime.runtime.cli.serve_help import show_serve_help

    show_serve_help(program)
    return 0

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime serve`: reads options and a configuration file, and runs the server.

It imports typer, rich, yaml and numpy only if needed, to start fast; see `cli/__init__.py`.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from pyruntime.runtime.cli.parse import Values, merge, parse_arguments
from pyruntime.runtime.cli.resolve import resolve
from pyruntime.runtime.cli.single_file import replace_files
from pyruntime.runtime.cli.terminal import NO_TERMINAL, has_terminal, terminal_kept
from pyruntime.runtime.descriptors import raise_limit
from pyruntime.runtime.observe.logging import set_up_logging
from pyruntime.runtime.settings import ServerSettings, SettingsError
from pyruntime.utils import fast_path

log = logging.getLogger("pyruntime.runtime.cli")


def run_serve(arguments: Sequence[str], program: str = "pyruntime serve") -> int:
    """Serve until a signal ends the server, and return the exit status.

    It is 1 for an invalid option, after one sentence on standard error. `program` is the command's name in the help.
    """
    try:
        values, warnings = parse_arguments(arguments)
        if "help" in values:
            return _show_help(program)
        settings, warnings = _settings(values, warnings)
        set_up_logging(settings)
    except SettingsError as error:
        return _refuse(error)
    for warning in warnings:
        log.warning("%s", warning)
    with ExitStack() as resources:
        try:
            repositories = replace_files(settings.model_repositories, resources)
        except SettingsError as error:
            return _refuse(error)
        return _serve(replace(settings, model_repositories=repositories))


def _refuse(error: SettingsError) -> int:
    print(f"Error: {error}", file=sys.stderr)
    return 1


def _check_temporary_folder() -> None:
    """Warn if no folder for temporary files can be written to, as with a read-only root. Packages that look for one
    when they are imported would fail then.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = "/tmp"
        log.warning(
            "no folder for temporary files can be written to, so no model can be loaded with files; TMPDIR can name one"
        )


def _serve(settings: ServerSettings) -> int:
    _check_temporary_folder()
    if not settings.fast_path:
        fast_path.switch_off()
        log.info("Python reads and writes all requests, which is slower (--no-fast-path)")
    # Before the import of the server: the launcher imports numpy on another core meanwhile.
    from pyruntime.runtime.instances.stub.launch import start_launcher

    # With CUDA's own default the fastest GPU is number 0, and the order of the others is undefined.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    start_launcher(raise_limit())
    from pyruntime.runtime.app.server import serve
    from pyruntime.runtime.frontends.listeners import Listeners

    with terminal_kept() if settings.debug_model else nullcontext():
        return serve(settings, Listeners)


def _settings(values: Values, warnings: list[str]) -> tuple[ServerSettings, list[str]]:
    """The settings, and the warnings without duplicates: an option may be in the file and on the command line."""
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

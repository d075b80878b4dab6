# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The command line.

This module imports almost nothing, and `serve` (also called `tritonserver`) starts the server without typer and rich,
because they would delay its start. All other commands use typer (`app.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Two names of one command, so that existing command lines of tritonserver work.
SERVE = ("serve", "tritonserver")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `argv` excludes the program's name; None means sys.argv."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments and arguments[0] in SERVE:
        from pyruntime.runtime.cli.serve import run_serve

        return run_serve(arguments[1:], f"pyruntime {arguments[0]}")
    from pyruntime.runtime.cli.app import run

    return run(arguments)


def tritonserver() -> int:
    """The command `tritonserver`: the same as `pyruntime serve`."""
    from pyruntime.runtime.cli.serve import run_serve

    return run_serve(sys.argv[1:], "tritonserver")

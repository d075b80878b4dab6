# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The command line.

Importing this costs next to nothing, and `serve` (also called `tritonserver`) starts the server without typer or rich:
how soon a server is ready is part of the product. The rest of the commands are typer's (`app.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Both are the same command: whoever has command lines of tritonserver need not learn a word.
SERVE = ("serve", "tritonserver")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: `argv` without the program's name, None for the process's own. Returns the exit status."""
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

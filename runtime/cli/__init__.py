# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The command line.

Importing this costs next to nothing, and `serve` starts the server without typer or rich: how soon a server is ready
is part of the product. The rest of the commands, and every help page, are typer's (`app.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: `argv` without the program's name, None for the process's own. Returns the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["serve"]:
        from pyruntime.runtime.cli.serve import run_serve

        return run_serve(arguments[1:])
    from pyruntime.runtime.cli.app import run

    return run(arguments)

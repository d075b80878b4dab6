# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sets up the terminal of a stub: in debug mode it shares the server's, else it has none."""

from __future__ import annotations

import os
import sys
from typing import Any


def use_terminal() -> None:
    """Make stdin and stdout of the server's terminal usable for pdb."""
    import pdb

    # Line-buffered even if stdout is a pipe, such as to `tee`.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # The server handles Ctrl-C. After `continue`, pdb would handle it too, and stop at the current line, in our code,
    # while the server waits for this process to end.
    pdb.Pdb.sigint_handler = _stay  # type: ignore[method-assign]


def refuse_breakpoints() -> None:
    """Make breakpoint() explain what it needs, instead of failing on a closed stdin. PYTHONBREAKPOINT has priority."""
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _no_terminal


def _stay(self: Any, signum: int, frame: Any) -> None:
    pass


def _no_terminal(*args: Any, **options: Any) -> None:
    raise RuntimeError("breakpoint() needs a terminal: start the server with --debug and the name of this model")

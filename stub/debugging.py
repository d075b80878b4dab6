# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a stub does with its terminal: it shares that of the server when somebody debugs its model, or has none."""

from __future__ import annotations

import os
import sys
from typing import Any


def use_terminal() -> None:
    """Read and write where the server was started, besides its log."""
    import pdb

    # By the line also where somebody reads along, such as `tee`.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Ctrl-C is for the server to handle. To pdb, once it was left by `continue`, it means to stop wherever the process
    # is; and that would be in our code, and while the server waits for the process to end.
    pdb.Pdb.sigint_handler = _stay  # type: ignore[method-assign]


def refuse_breakpoints() -> None:
    """Have breakpoint() say how it works, rather than find its terminal at its end. PYTHONBREAKPOINT still counts."""
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _no_terminal


def _stay(self: Any, signum: int, frame: Any) -> None:
    pass


def _no_terminal(*args: Any, **options: Any) -> None:
    raise RuntimeError("breakpoint() needs a terminal: start the server with --debug and the name of this model")

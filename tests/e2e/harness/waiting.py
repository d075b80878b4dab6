# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Patience: nothing here waits for time to pass, but for a condition, and gives up loudly."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Patience, not a measure: what takes longer hangs, also where ten processes want each core.
LIMIT_S = 120
POLL_S = 0.01


def wait_until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Poll `condition` until it is true, and return its value; AssertionError after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {limit_s:g} s: {condition}"
        time.sleep(POLL_S)
    return found


def open_gate(gate: Path) -> None:
    """Let a model go on that waits by reading a named pipe. The pipe is gone afterwards: it may make another one."""
    with gate.open("w"):  # waits until the model has come to read it
        gate.unlink()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Whether native code does what is plain of requests and responses, or Python all of it: `--no-fast-path`.

Python is the reference of what native code does. Without the fast path a fault is not native code's. It is decided once
for a server and all of its processes, hence in the environment, and before the modules are imported that choose one of
the two: no request pays for the choice. Those modules are utils/frames.py, stub/plain.py and runtime/native/plain.py.
"""

from __future__ import annotations

import os

VARIABLE = "PYRUNTIME_NO_FAST_PATH"


def is_off() -> bool:
    """Whether Python does all that it can."""
    return bool(os.environ.get(VARIABLE))


def switch_off() -> None:
    """Leave all to Python, in this process and in those that it starts from now on."""
    os.environ[VARIABLE] = "1"


def require() -> None:
    """Raise ImportError if native code is not wanted, as its import does where it cannot be loaded."""
    if is_off():
        raise ImportError(f"{VARIABLE} is set")

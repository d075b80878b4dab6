# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a process does for itself before the first native backend runs in it: see native/triton/process.h."""

from __future__ import annotations

import signal
import sys
from types import ModuleType

# What these Pythons write of a crash says itself where native code was.
_TRACES_NATIVE_CODE = (3, 14)
_THEIR_OWN = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, None)


def prepare_process(native: ModuleType) -> None:
    """Have crashes tell where native code was, and let what backends fork be ended by who ends it.

    A process that is forked, and executes no other program, has our handlers: it would heed no signal, and might even
    tell us of it as of one of our own. Those of somebody who only uses us are left alone.
    """
    if sys.version_info < _TRACES_NATIVE_CODE:
        native.trace_crashes()
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) not in _THEIR_OWN:
            native.reset_at_fork(signum)

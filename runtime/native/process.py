# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prepares a process for native backends: crash traces, and signals in forked children. See native/triton/process.h."""

from __future__ import annotations

import signal
import sys
from types import ModuleType

from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX

# From this version on, Python's own crash report contains the C stack.
_TRACES_NATIVE_CODE = (3, 14)
_THEIR_OWN = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, None)


def prepare_process(native: ModuleType) -> None:
    """Set the response window of backends, make crashes report the C stack, and reset our signal handlers at forks.

    A forked process inherits our handlers until it executes another program. It would ignore SIGINT and SIGTERM, or
    even report them to this process as its own. Handlers that are not ours are left alone.
    """
    native.set_response_window(RESPONSES_AHEAD_MAX, BYTES_AHEAD_MAX)
    if sys.version_info < _TRACES_NATIVE_CODE:
        native.trace_crashes()
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) not in _THEIR_OWN:
            native.reset_at_fork(signum)

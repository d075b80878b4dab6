# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a process does for itself before the first native backend runs in it: see native/triton/process.h."""

from __future__ import annotations

import signal
import sys
from types import ModuleType

from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX

# What these Pythons write of a crash says itself where native code was.
_TRACES_NATIVE_CODE = (3, 14)
_THEIR_OWN = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler, None)


def prepare_process(native: ModuleType) -> None:
    """Set how far backends may be ahead of clients, and what crashes and forks of native code do.

    Crashes tell where native code was, and what backends fork can be ended by who ends it.

    A process that is forked, and executes no other program, has our handlers: it would heed no signal, and might even
    tell us of it as of one of our own. Those of somebody who only uses us are left alone.
    """
    native.set_response_window(RESPONSES_AHEAD_MAX, BYTES_AHEAD_MAX)
    if sys.version_info < _TRACES_NATIVE_CODE:
        native.trace_crashes()
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) not in _THEIR_OWN:
            native.reset_at_fork(signum)

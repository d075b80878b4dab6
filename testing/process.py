# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The process that all models under test share: finds the server of a model, and sets up the log.

A model's functions find its server by their thread, which is the model's or has its context; or else by the code that
calls them.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextvars import ContextVar
from types import FrameType

from pyruntime.stub.host import Host, set_finder
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils import TritonModelException
from pyruntime.testing.modules import OwnModules

_serving: dict[Host, OwnModules] = {}
_lock = threading.Lock()
_server_here: ContextVar[Host | None] = ContextVar("pyruntime server", default=None)


def begin(server: Host, modules: OwnModules) -> None:
    """Set the server of a model, and of everything that runs in this context. See `end`."""
    with _lock:
        _serving[server] = modules
        set_finder(_find)
        # In a stub it is outside the hierarchy; here pytest and other handlers of the root logger need its records.
        LOGGER.parent = logging.getLogger()
    _server_here.set(server)


def end(server: Host) -> None:
    """Remove a model's server."""
    with _lock:
        _serving.pop(server, None)
        if not _serving:
            set_finder(None)
            LOGGER.parent = None


def _find() -> Host | None:
    server = _server_here.get()
    if server is None:
        server = _server_of_caller()
    if server in _serving:
        return server
    if threading.current_thread() is threading.main_thread():
        return None  # a test, and no model
    serving = list(_serving)
    if len(serving) > 1:
        raise TritonModelException(
            "several models are loaded, and it cannot be told which of them this thread belongs to: call this function "
            "from the model's own code, or from a thread that asyncio.to_thread runs it in"
        )
    return serving[0] if serving else None


def _server_of_caller() -> Host | None:
    """The server of the innermost model on the call stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        for server, modules in _serving.copy().items():  # one step: other threads load models
            if modules.has_globals(frame.f_globals):
                return server
        frame = frame.f_back
    return None

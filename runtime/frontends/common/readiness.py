# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Checks whether a model version, or the server, is ready. Some models must be asked, so the answer may come later."""

from __future__ import annotations

from collections.abc import Callable

from pyruntime.runtime.app.state import ServerState
from pyruntime.utils.errors import Code, InferenceError

# Called once, on the event loop's thread, at once or later. It must not raise.
Answer = Callable[[bool], None]


def check_model_ready(state: ServerState, name: str, version: int, done: Answer) -> None:
    """Ask whether a version of a model is ready. Raises InferenceError NOT_FOUND if it does not exist."""
    try:
        model = state.resolve(name, version)
    except InferenceError as exc:
        if exc.code is Code.NOT_FOUND and not state.why_down(name, version):
            raise
        done(False)
        return
    model.check_ready(done)


def check_server_ready(state: ServerState, done: Answer) -> None:
    """Ask whether the server is ready. With --strict-readiness it is ready when all its models say that they are."""
    models = state.models() if state.settings.strict_readiness else []
    if not state.is_ready() or not models:
        done(state.is_ready())
        return
    waiting = len(models)
    all_ready = True

    def heard(ready: bool) -> None:
        nonlocal waiting, all_ready
        waiting -= 1
        all_ready = all_ready and ready
        if not waiting:
            done(all_ready)

    for model in models:
        model.check_ready(heard)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the server: its state, its metadata, and its settings of traces and logs.

All raise InferenceError.
"""

from __future__ import annotations

from pyruntime.runtime.app.documents import EXTENSIONS
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.readiness import check_server_ready
from pyruntime.runtime.frontends.grpc.method import Reply
from pyruntime.runtime.frontends.grpc.schema import (
    LogSettingsResponse,
    Message,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
    TraceSettingResponse,
)
from pyruntime.utils.errors import Code, InferenceError


def server_live(state: ServerState, request: Message) -> Message:
    """A server that answers is alive."""
    return ServerLiveResponse(live=True)


def server_ready(state: ServerState, request: Message, reply: Reply) -> None:
    """Reply whether the server is ready. Raises InferenceError UNAVAILABLE once it exits."""
    if state.exiting:
        raise InferenceError("Server exiting", Code.UNAVAILABLE)
    check_server_ready(state, lambda ready: reply(ServerReadyResponse(ready=ready)))


def server_metadata(state: ServerState, request: Message) -> Message:
    """The metadata, with the same contents as over HTTP."""
    return ServerMetadataResponse(name=state.settings.server_id, version=state.version, extensions=EXTENSIONS)


def trace_setting(state: ServerState, request: Message) -> Message:
    """Change and return the settings of one model, or of all without a name. A setting without values is cleared."""
    if request.settings:
        values = {name: list(setting.value) or None for name, setting in request.settings.items()}
        state.tracer.update(request.model_name, values)
    response = TraceSettingResponse()
    for name, value in state.tracer.settings(request.model_name).items():
        response.settings[name].value.extend([value] if isinstance(value, str) else value)
    return response


def log_settings(state: ServerState, request: Message) -> Message:
    """Change and return the settings of the whole server."""
    if request.settings:
        state.log_settings.update({name: _log_value(setting) for name, setting in request.settings.items()})
    response = LogSettingsResponse()
    for name, value in state.log_settings.current().items():
        setting = response.settings[name]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        else:
            setting.string_param = value
    return response


def _log_value(setting: Message) -> object:
    kind = setting.WhichOneof("parameter_choice")
    return None if kind is None else getattr(setting, kind)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures that change how requests are traced and what is logged, and say how it is then.

Both raise InferenceError: what those do whose settings they are.
"""

from __future__ import annotations

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc.schema import LogSettingsResponse, Message, TraceSettingResponse


def trace_setting(state: ServerState, request: Message) -> Message:
    """Of one model, or of all without a name. A setting without values is cleared."""
    if request.settings:
        values = {name: list(setting.value) or None for name, setting in request.settings.items()}
        state.tracer.update(request.model_name, values)
    response = TraceSettingResponse()
    for name, value in state.tracer.settings(request.model_name).items():
        response.settings[name].value.extend([value] if isinstance(value, str) else value)
    return response


def log_settings(state: ServerState, request: Message) -> Message:
    """Of the whole server."""
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

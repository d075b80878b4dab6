# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the server: whether it is there, whether it is ready, what it is."""

from __future__ import annotations

from pyruntime.runtime.app.documents import EXTENSIONS
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.readiness import check_server_ready
from pyruntime.runtime.frontends.grpc.method import Reply
from pyruntime.runtime.frontends.grpc.schema import (
    Message,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
)
from pyruntime.utils.errors import Code, InferenceError


def server_live(state: ServerState, request: Message) -> Message:
    """Whoever answers is alive."""
    return ServerLiveResponse(live=True)


def server_ready(state: ServerState, request: Message, reply: Reply) -> None:
    """Raises InferenceError UNAVAILABLE once the server exits."""
    if state.exiting:
        raise InferenceError("Server exiting", Code.UNAVAILABLE)
    check_server_ready(state, lambda ready: reply(ServerReadyResponse(ready=ready)))


def server_metadata(state: ServerState, request: Message) -> Message:
    """What HTTP says as well."""
    return ServerMetadataResponse(name=state.settings.server_id, version=state.version, extensions=EXTENSIONS)

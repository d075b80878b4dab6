# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""gRPC's own health checking: reports whether the server is ready, once or at each change."""

from __future__ import annotations

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.readiness import check_server_ready
from pyruntime.runtime.frontends.common.readiness_watch import unwatch_ready, watch_ready
from pyruntime.runtime.frontends.grpc.method import End, Reply, Send
from pyruntime.runtime.frontends.grpc.schema import INFERENCE, HealthCheckResponse, Message
from pyruntime.utils.errors import Code, InferenceError

# The names of the server as a whole.
_SERVER = ("", INFERENCE.full_name)


def check(state: ServerState, request: Message, reply: Reply) -> None:
    """Reply with the health of the server. As in Triton, the name of the service is ignored."""
    check_server_ready(state, lambda ready: reply(_response(ready)))


class Watch:
    """Reports the health of the server at once and at each change, until the client ends the call.

    For an unknown service it says so and waits, because the protocol allows the service to appear later.
    """

    def __init__(self, state: ServerState, send: Send, end: End) -> None:
        self._state = state
        self._send = send
        self._end = end
        self._asked = False

    def message(self, request: Message) -> None:
        """See Stream."""
        if self._asked:
            self._end(InferenceError("a call of one request has a second message", Code.INTERNAL))
            return
        self._asked = True
        if request.service in _SERVER:
            watch_ready(self._state, self._heard)
        else:
            self._send(HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN))

    def client_ended(self) -> None:
        """See Stream."""
        if not self._asked:
            self._end(InferenceError("a call of one request has no message", Code.INTERNAL))

    def cancelled(self) -> None:
        """See Stream."""
        unwatch_ready(self._state, self._heard)

    def _heard(self, ready: bool) -> None:
        self._send(_response(ready))


def _response(ready: bool) -> Message:
    return HealthCheckResponse(status=HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING)

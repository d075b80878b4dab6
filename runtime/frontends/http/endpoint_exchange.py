# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of everything but inference. Most of it is answered at once, readiness perhaps later."""

from __future__ import annotations

from pyruntime.runtime.frontends.common.readiness import check_model_ready, check_server_ready
from pyruntime.runtime.frontends.http.endpoints import ANSWERS
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.kserve_response import encode_error
from pyruntime.runtime.frontends.http.routes import Endpoint

_NOT_READY = encode_error("Model version not ready")
_EXITING = encode_error("Server exiting")


class EndpointExchange(Exchange):
    """See the module."""

    def _act(self) -> None:
        route = self.head.route
        if route.endpoint is Endpoint.MODEL_READY:
            check_model_ready(self._state, route.model, route.version, self._model_checked)
        elif route.endpoint is Endpoint.SERVER_READY:
            if self._state.exiting:
                self._respond(503, _EXITING)
            else:
                check_server_ready(self._state, self._server_checked)
        else:
            self._respond(200, ANSWERS[route.endpoint](self._state, route, bytes(self._body)))

    def _model_checked(self, ready: bool) -> None:
        self._respond(*((200, b"") if ready else (400, _NOT_READY)))

    def _server_checked(self, ready: bool) -> None:
        self._respond(200 if ready else 400, b"")

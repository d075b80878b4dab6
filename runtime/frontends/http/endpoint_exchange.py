# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchanges of all endpoints except inference and the page.

Most requests are answered at once. Checks of readiness, loading, unloading, and registering memory on a GPU, or
unregistering it, may be answered later.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from functools import partial

import orjson

from pyruntime.runtime.app.slices import in_slices
from pyruntime.runtime.frontends.common.readiness import check_model_ready, check_server_ready
from pyruntime.runtime.frontends.http import memory_endpoints
from pyruntime.runtime.frontends.http.endpoints import ANSWERS
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.kserve_response import encode_error
from pyruntime.runtime.frontends.http.repository_request import decode_load, decode_unload
from pyruntime.runtime.frontends.http.response_head import METRICS_TEXT
from pyruntime.runtime.frontends.http.routes import Endpoint
from pyruntime.runtime.inference.threads import PARSED_AT_ONCE_MAX
from pyruntime.utils.errors import InferenceError

_NOT_READY = "Model version not ready"
_EXITING = encode_error("Server exiting")


class EndpointExchange(Exchange):
    """Answers requests to the endpoints of endpoints.py, and checks of readiness."""

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
        if ready:
            self._respond(200, b"")
            return
        reason = self._state.why_down(self.head.route.model, self.head.route.version)
        self._respond(400, encode_error(f"{_NOT_READY}: {reason}" if reason else _NOT_READY))

    def _server_checked(self, ready: bool) -> None:
        self._respond(200 if ready else 400, b"")


class MetricsExchange(Exchange):
    """Answers with the metrics, as plain text."""

    def _act(self) -> None:
        state = self._state
        in_slices(lambda: state.tasks, state.metrics.parts(), self._made, "make the metrics page")

    def _made(self, parts: list[str] | InferenceError) -> None:
        if isinstance(parts, InferenceError):
            self.reject(parts)
        else:
            self._respond(200, "".join(parts).encode(), METRICS_TEXT)


class StatisticsExchange(Exchange):
    """Answers with the statistics of one model, or of all of them."""

    def _act(self) -> None:
        route, state = self.head.route, self._state
        entries = map(orjson.dumps, state.statistics_parts(route.model, route.version))
        in_slices(lambda: state.tasks, entries, self._made, "read the statistics")

    def _made(self, entries: list[bytes] | InferenceError) -> None:
        if isinstance(entries, InferenceError):
            self.reject(entries)
        else:
            self._respond(200, b'{"model_stats":[%b]}' % b",".join(entries))


class UnregisterSystemExchange(Exchange):
    """Unregisters shared memory of a client: answered once it is closed."""

    def _act(self) -> None:
        state = self._state
        in_slices(
            lambda: state.tasks, state.client_memory.unregister(self.head.route.region), self._closed, "close memory"
        )

    def _closed(self, parts: list[None] | InferenceError) -> None:
        if isinstance(parts, InferenceError):
            self.reject(parts)
        else:
            self._respond(200, b"")


class _WorkExchange(Exchange):
    """Answers when work is done, which goes on if the client hangs up."""

    def _begin(self, work: Coroutine[object, object, None], name: str) -> None:
        # The body may hold whole files, and they stay in the heap. The next large request need not wait for the work.
        self._body = b""
        self._end_turn()
        self._state.tasks.create_task(self._answer_after(work), name=name)

    async def _answer_after(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except InferenceError as exc:
            self.reject(exc)
        else:
            self._respond(200, b"")


class RegisterCudaExchange(_WorkExchange):
    """Registers memory of a client on a GPU: answered once it is open."""

    def _act(self) -> None:
        route = self.head.route
        work = memory_endpoints.register_cuda(self._state, route, bytes(self._body))
        self._begin(work, f"register region '{route.region}'")


class UnregisterCudaExchange(_WorkExchange):
    """Unregisters memory of a client on a GPU: answered once it is closed."""

    def _act(self) -> None:
        route = self.head.route
        work = memory_endpoints.unregister_cuda(self._state, route, bytes(self._body))
        self._begin(work, f"unregister region '{route.region}'")


class _ControlExchange(_WorkExchange):
    """Loads or unloads a model."""

    def check_head(self) -> bool:
        """See Exchange. Nothing is read of the body if models are not controlled by requests."""
        if self._refusal is None:
            try:
                self._state.control.check_explicit()
            except InferenceError as exc:
                self._refusal = exc
        return self._refusal is None

    def _decompress(self) -> None:
        self._state.control.check_explicit()
        super()._decompress()


class LoadExchange(_ControlExchange):
    """`load`: answered once the model is ready."""

    body_bytes_max = sys.maxsize  # it may hold whole files

    def _act(self) -> None:
        self._state.control.check_explicit()
        if len(self._body) > PARSED_AT_ONCE_MAX:
            self._run(partial(decode_load, self._body), self._load, "parse a request")
        else:
            self._load(decode_load(self._body))

    def _load(self, request: tuple[str, dict[str, bytes | memoryview]]) -> None:
        config, files = request
        model = self.head.route.model
        self._begin(self._state.control.load(model, config, files), f"load '{model}'")


class UnloadExchange(_ControlExchange):
    """`unload`: answered once the model accepts no more requests."""

    def _act(self) -> None:
        self._state.control.check_explicit()
        with_dependents = decode_unload(bytes(self._body))
        model = self.head.route.model
        self._begin(self._state.control.unload(model, with_dependents), f"unload '{model}'")


class RefusedExchange(Exchange):
    """Refuses a request to an unknown or forbidden endpoint. The body is discarded."""

    def check_head(self) -> bool:
        """See Exchange."""
        return False

    def take(self, data: bytes) -> None:
        """See Exchange."""
        self._connection.discarded(len(data))

    def finish(self, body: bytes) -> None:
        """See Exchange. The size and the encoding of the body are not checked."""
        self._counted = True
        self._state.in_flight += 1
        self._act()

    def _act(self) -> None:
        route = self.head.route
        allow = b"Allow: %b\r\n" % route.allow.encode() if route.allow else b""
        self._respond(route.status, encode_error(route.error) if route.error else b"", more=allow)

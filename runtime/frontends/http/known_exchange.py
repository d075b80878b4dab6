# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of a known request: an inference that differs from an earlier one only in the contents of its tensors.

Where the model's instances are threads of this process, native code handles such requests: it recognises the body and
encodes the response. Python only passes bytes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.execution.executor import ClientSocket, KnownRequestExecutor
from pyruntime.runtime.frontends.http.exchange import JOINED_BYTES_MAX, Connection, Exchange
from pyruntime.runtime.frontends.http.kserve_request import ALL_BINARY
from pyruntime.runtime.frontends.http.kserve_response import encode_binary
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import CLOSE, infer_head
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.request_plans import RequestPlan
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError

# The longest body of a known request, in bytes. It is faster to read a longer one into shared memory as it arrives.
KNOWN_BYTES_MAX = 16 << 10


def know(state: ServerState, model: ModelVersion, head: Head, document: bytes, size: int, plan: RequestPlan) -> None:
    """From now on recognise requests with this head and this document, if possible. `plan` is that of one of them.

    The body has `size` bytes.
    """
    if plan.known is None:
        plan.known = False
        if plan.options is ALL_BINARY:
            plan.known = model.know(document, size, plan.pattern()) or False
    if plan.known and _is_plain(head):
        model.plans.remember_known(head, plan)
        state.knows_requests = True


def _is_plain(head: Head) -> bool:
    """Whether requests repeat this head. With tracing, each request has a different head."""
    return (
        head.content_length <= KNOWN_BYTES_MAX
        and head.keep_alive
        and not (head.chunked or head.encoding or head.expects_continue or head.response_encoding or head.traceparent)
        and not head.load_format
    )


def _find(state: ServerState, head: Head) -> tuple[ModelVersion, RequestPlan] | None:
    """The model and the plan of requests with this head, if they may be known."""
    try:
        model = state.resolve(head.route.model, head.route.version)
    except InferenceError:
        return None  # another exchange reports it
    plan = model.plans.find_known(head)
    return None if plan is None else (model, plan)


def _is_watched(state: ServerState) -> bool:
    """Whether requests are traced or logged, so that each must pass through Python."""
    return state.tracer.active or state.log_settings.verbose


def may_be_known(state: ServerState, head: Head) -> bool:
    """Whether the request with this head may be known once its body is complete. Such a body is short."""
    return _find(state, head) is not None


class KnownConnection(Connection, Protocol):
    """A connection that native threads can answer over."""

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """The socket for a native thread, which `make` creates from a descriptor; None while others are due."""

    def sent(self) -> None:
        """A native thread has sent the response of the only exchange that was due."""


def find_lendable(state: ServerState, head: Head) -> tuple[RequestPlan, KnownRequestExecutor] | None:
    """The plan of requests with this head, and the executor that may read the connection; None without one."""
    found = None if _is_watched(state) else _find(state, head)
    if found is None:
        return None
    model, plan = found
    instance = model.scheduler.lone_instance()
    reader = None if instance is None else instance.known
    return None if reader is None or not reader.may_read else (plan, reader)


def begin_known(
    state: ServerState, connection: KnownConnection, head: Head, data: bytes, at: int
) -> KnownExchange | None:
    """Give the request whose body begins at `at` in `data` to an instance, and return its exchange, if it is known.

    Returns None for unknown requests, watched ones, and those that would wait in a queue.
    """
    found = None if _is_watched(state) else _find(state, head)
    if found is None:
        return None
    model, plan = found
    instance = model.scheduler.free_instance()
    if instance is None or instance.known is None:
        return None
    exchange = KnownExchange(state, connection, plan)
    if not instance.known.execute_known(plan.known, exchange, data[: at + head.content_length], at):
        return None
    state.in_flight += 1
    return exchange


class KnownExchange(Exchange):
    """See the module. Instances use it as a job: execution.job.Job describes those attributes."""

    _counted = True
    _may_be_sent = False
    # Attributes of a job. Most have the values of an ordinary one.
    instance: Any  # the executor of native code, which has more methods than a job needs
    serial: int
    id = ""
    client = None
    states = None
    regions = ()
    is_padding = False
    cancelled = False

    _connection: KnownConnection

    def __init__(self, state: ServerState, connection: KnownConnection, plan: RequestPlan) -> None:
        self._state = state
        self._connection = connection
        self._plan = plan
        self.rows = plan.rows
        self.arrived_ns = time.monotonic_ns()

    def begin_sent(self, arrived_ns: int) -> None:
        """Note that the instance has begun with the request, and may send the response itself."""
        self.arrived_ns = arrived_ns
        self._may_be_sent = True

    def _act(self) -> None:
        """Do nothing: the instance has the request already."""

    def take_back(self) -> None:
        """See Exchange. A response that was sent already is reported at once."""
        if self._may_be_sent and not self.instance.claim(self):
            self._state.settle()
        self._may_be_sent = False

    def cancel(self) -> None:
        """See Exchange. Its body is there."""
        if self.parts is None:
            self.instance.cancel(self)

    # Methods of a job.

    def free(self) -> None:
        """Do nothing: the instance owns the memory."""

    def respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """Answer with a response of a new form, and have native code remember the form if possible."""
        assert outcome is not None  # models that answer with nothing, or more than once, are not known
        if isinstance(outcome, InferenceError):
            self.reject(outcome)
            return
        if self.abandoned:
            outcome.release()
            return
        is_kept = self.keep_alive and not outcome.parameters
        outputs = [(output.name, output.datatype, output.shape, len(output.data)) for output in outcome.outputs]
        document, parts, self.length = encode_binary(outcome)
        head = infer_head(len(document) if parts else 0, self.length, b"" if self.keep_alive else CLOSE)
        self.parts = [head, document, *parts]
        self.release = outcome.release
        self._connection.answered()
        if is_kept and self.length <= JOINED_BYTES_MAX:
            self._plan.known.remember(b"".join((head, document)), outputs)

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """The socket over which the instance may send the response, or None: see KnownConnection."""
        client = self._connection.client_socket(make)
        self._may_be_sent = client is not None
        return client

    def sent(self, rest: bytes | None) -> None:
        """The instance has sent the response, except for `rest`; None if all was sent."""
        if self.abandoned:
            return
        if rest is None:
            self._connection.sent()
        else:
            self.parts = [rest]
            self._connection.answered()

    def encoded(self, response: bytes) -> None:
        """The instance has answered with the whole response, as bytes."""
        if self.abandoned:
            return
        if not self.keep_alive:
            response = response.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
        self.parts = [response]
        self._connection.answered()

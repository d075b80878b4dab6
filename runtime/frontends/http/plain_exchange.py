# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchange of a plain request: an inference that native code reads, and answers.

Where the model's instances are threads of this process, native code reads the body, checks it and encodes the response.
Python only passes bytes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.execution.executor import ClientSocket
from pyruntime.runtime.frontends.http.exchange import Connection, Exchange
from pyruntime.runtime.frontends.http.kserve_response import encode_binary
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import CLOSE, infer_head
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError

# The longest body of a plain request, in bytes (kPlainBodyMax). It is faster to read a longer one into shared memory as
# it arrives.
PLAIN_BYTES_MAX = 16 << 10


def find_plain(state: ServerState, head: Head) -> ModelVersion | None:
    """The model of an inference, if native code may read its body, which is short then; None for any other one.

    Requests that are traced or logged pass through Python, each of them.
    """
    model = state.table.serving.get((head.route.model, head.route.version))
    if model is None or not model.reads_plain or not _is_plain(head) or state.exiting:
        return None
    if state.tracer.active or state.log_settings.verbose or state.settings.http_max_input_size < PLAIN_BYTES_MAX:
        return None
    return model


def _is_plain(head: Head) -> bool:
    """Whether nothing in this head makes a difference to how its request is answered, apart from the lengths."""
    return (
        head.content_length <= PLAIN_BYTES_MAX
        and (head.header_length or 0) > 0
        and head.keep_alive
        and not (head.chunked or head.encoding or head.expects_continue or head.response_encoding)
        and not (head.load_format or head.forwarded)
    )


class PlainConnection(Connection, Protocol):
    """A connection that native threads can answer over."""

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """The socket for a native thread, which `make` creates from a descriptor; None while others are due."""

    def sent(self) -> None:
        """A native thread has sent the response of the only exchange that was due."""


def begin_plain(
    state: ServerState, connection: PlainConnection, model: ModelVersion, head: Head, data: bytes, at: int
) -> PlainExchange | None:
    """Give the request whose body begins at `at` in `data` to an instance, and return its exchange, if it is plain.

    Its model is from `find_plain`. Returns None for requests that are not plain, and for those that would wait in a
    queue.
    """
    instance = model.scheduler.free_instance()
    if instance is None or instance.plain is None:
        return None
    exchange = PlainExchange(state, connection)
    lead = head.header_length
    assert lead is not None  # see `_is_plain`
    if not instance.plain.execute_plain(exchange, data[: at + head.content_length], at, lead):
        return None
    state.in_flight += 1
    return exchange


class PlainExchange(Exchange):
    """See the module. Instances use it as a job: execution.job.Job describes those attributes."""

    _counted = True
    _may_be_sent = False
    # Attributes of a job. Most have the values of an ordinary one.
    instance: Any  # the executor of native code, which has more methods than a job needs
    serial: int
    id: str
    rows: int
    client = None
    states = None
    regions = ()
    is_padding = False
    cancelled = False

    _connection: PlainConnection

    def __init__(self, state: ServerState, connection: PlainConnection) -> None:
        self._state = state
        self._connection = connection
        self.arrived_ns = time.monotonic_ns()

    def begin_sent(self, arrived_ns: int, id: str, rows: int) -> None:
        """Note that the instance has begun with the request, and may send the response itself."""
        self.arrived_ns, self.id, self.rows = arrived_ns, id, rows
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
        """Answer with a response that is not plain, or an error."""
        assert outcome is not None  # the requests of models that answer with nothing, or more than once, are not plain
        if isinstance(outcome, InferenceError):
            self.reject(outcome)
            return
        if self.abandoned:
            outcome.release()
            return
        document, parts, self.length = encode_binary(outcome)
        head = infer_head(len(document) if parts else 0, self.length, b"" if self.keep_alive else CLOSE)
        self.parts = [head, document, *parts]
        self.release = outcome.release
        self._connection.answered()

    def client_socket(self, make: Callable[[int], ClientSocket]) -> ClientSocket | None:
        """The socket over which the instance may send the response, or None: see PlainConnection."""
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

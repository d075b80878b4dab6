# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of any number of messages either way, except inference. methods.py lists their methods."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc.call import Call, Connection
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.method import REQUEST_BYTES_MAX, StreamMethod
from pyruntime.runtime.frontends.grpc.schema import Message
from pyruntime.runtime.frontends.grpc.status import OK_TRAILERS, STATUS_OF, Status
from pyruntime.utils.errors import InferenceError


class StreamCall(Call):
    """See the module."""

    is_prompt = False

    def __init__(
        self, state: ServerState, connection: Connection, stream: int, head: CallHead, method: StreamMethod
    ) -> None:
        super().__init__(state, connection, stream, head)
        self._method = method
        self._message_bytes_max = REQUEST_BYTES_MAX
        connection.session.limit(stream, REQUEST_BYTES_MAX)
        self._handler = method.factory(state, self._send, self._end)

    def message(self, message: bytes, ended: bool) -> None:
        """See Call."""
        if len(message) > self._message_bytes_max:  # it came with the head, before the limit was known
            self.fail_too_large(len(message))
            return
        if not self._client_reads():
            return
        try:
            request = self._method.request.FromString(message)
        except DecodeError:
            self.fail(Status.INTERNAL, f"the message is no {self._method.request.DESCRIPTOR.name}: it cannot be parsed")
            return
        self._handler.message(request)
        if ended and not self._over:
            self._handler.client_ended()

    def ended(self) -> None:
        """See Call."""
        self._handler.client_ended()

    @property
    def is_idle(self) -> bool:
        """See Call."""
        return True

    def drain(self) -> None:
        """See Call."""
        self._end_idle()

    def _send(self, message: Message) -> None:
        if self._over:
            return
        if self._write_document(message.SerializeToString()):
            self._connection.said()

    def _end(self, failure: InferenceError | None) -> None:
        if self._over:
            return
        if failure is not None:
            self.fail(STATUS_OF[failure.code], failure.message)
            return
        self._begin()
        self._leave()
        self._connection.session.end(self._stream, OK_TRAILERS)
        self._connection.said()
        self._cancel()

    def _cancel(self) -> None:
        self._handler.cancelled()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of one request and one response, except inference. methods.py lists their methods."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc.call import Call, Connection
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.method import Method
from pyruntime.runtime.frontends.grpc.schema import Message
from pyruntime.runtime.frontends.grpc.status import HEAD, OK_TRAILERS, STATUS_OF, Status
from pyruntime.utils.errors import InferenceError


class UnaryCall(Call):
    """See the module."""

    _counted = False
    _asked = False

    def __init__(self, state: ServerState, connection: Connection, stream: int, head: CallHead, method: Method) -> None:
        super().__init__(state, connection, stream, head)
        self._method = method

    @property
    def waits_for_client(self) -> bool:
        """See Call."""
        return not self._asked

    def message(self, message: bytes, ended: bool) -> None:
        """See Call."""
        if self._asked:
            self.fail(Status.INTERNAL, "a call of one request has a second message")
            return
        self._asked = True
        try:
            request = self._method.request.FromString(message)
        except DecodeError:
            self.fail(Status.INTERNAL, f"the message is no {self._method.request.DESCRIPTOR.name}: it cannot be parsed")
            return
        self._counted = True
        self._state.in_flight += 1
        try:
            self._method.act(self._state, request, self._reply)
        except InferenceError as exc:
            self._reply(exc)

    def ended(self) -> None:
        """See Call."""
        if not self._asked:
            self.fail(Status.INTERNAL, "a call of one request has no message")

    def _reply(self, outcome: Message | InferenceError) -> None:
        if self._over:
            return
        if isinstance(outcome, InferenceError):
            self.fail(STATUS_OF[outcome.code], outcome.message)
            return
        self._connection.session.respond(self._stream, HEAD, [outcome.SerializeToString()], OK_TRAILERS)
        self._leave()
        self._cancel()
        self._connection.said()

    def _cancel(self) -> None:
        if self._counted:
            self._counted = False
            self._state.end_request()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of one request and one response, except inference. methods.py lists their methods.

A long request counts twice among the pending bytes until its method has begun: protobuf copies what is in the message,
and the method copies it once more, when the message is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.common.compression import DECOMPRESSED_BYTES_MAX
from pyruntime.runtime.frontends.common.decompression import Decompression
from pyruntime.runtime.frontends.grpc.call import UNKNOWN_ENCODING, Call, Connection
from pyruntime.runtime.frontends.grpc.head import CallHead
from pyruntime.runtime.frontends.grpc.method import HEALTH_API, REQUEST_BYTES_MAX, Method
from pyruntime.runtime.frontends.grpc.schema import Message
from pyruntime.runtime.frontends.grpc.status import HEAD, OK_TRAILERS, STATUS_OF, Status
from pyruntime.runtime.inference.pending_bytes import Claim, PendingBytesError
from pyruntime.runtime.inference.threads import at_once, in_thread
from pyruntime.runtime.inference.turns import Turn
from pyruntime.utils.errors import InferenceError


class UnaryCall(Call):
    """See the module. A long request is decompressed and parsed in threads."""

    _counted = False
    _asked = False
    # What the request takes of the pending bytes, unless it is short; and its decompression.
    _claim: Claim | None = None
    _decompression: Decompression | None = None
    _turn: Turn | None = None
    # The bytes of the claim that are free once the method has begun.
    _copied = 0

    def __init__(self, state: ServerState, connection: Connection, stream: int, head: CallHead, method: Method) -> None:
        super().__init__(state, connection, stream, head)
        self._method = method
        self._message_bytes_max = method.request_bytes_max
        self.is_prompt = method.api == HEALTH_API
        connection.session.limit(stream, method.request_bytes_max)

    @property
    def waits_for_client(self) -> bool:
        """See Call."""
        return not self._asked

    def compressed(self, message: bytes, ended: bool) -> None:
        """See Call."""
        if self._message_bytes_max <= REQUEST_BYTES_MAX:
            super().compressed(message, ended)
        elif self._head.encoding == "identity":
            self.fail(Status.INTERNAL, UNKNOWN_ENCODING)
        elif self._begin_request(len(message)):
            assert self._claim is not None  # as the request may be long
            self._decompression = Decompression(
                self._state.tasks,
                self._claim,
                self._take_turn,
                message,
                self._head.encoding,
                DECOMPRESSED_BYTES_MAX,
                self._decompressed,
            )
            self._decompression.begin()

    def message(self, message: bytes, ended: bool) -> None:
        """See Call."""
        if len(message) > self._message_bytes_max:  # it came with the head, before the limit was known
            self.fail_too_large(len(message))
        elif self._begin_request(len(message)):
            self._parse(message)

    def _begin_request(self, size: int) -> bool:
        """Begin with the request, whose message has `size` bytes. Returns False if the call fails."""
        if self._asked:
            self.fail(Status.INTERNAL, "a call of one request has a second message")
            return False
        self._asked = True
        if not self.is_prompt and not self._client_reads():
            return False
        if self._message_bytes_max > REQUEST_BYTES_MAX:
            self._claim = self._connection.share.claim()
            try:
                self._claim.take(size)
            except PendingBytesError as exc:
                self.fail(Status.RESOURCE_EXHAUSTED, exc.message)
                return False
        self._counted = True
        self._state.in_flight += 1
        return True

    def _decompressed(self, data: bytearray | InferenceError) -> None:
        self._decompression = None
        if isinstance(data, InferenceError):
            self.fail(Status.RESOURCE_EXHAUSTED, data.message)
        else:
            self._parse(bytes(data))

    def _parse(self, message: bytes) -> None:
        if len(message) <= REQUEST_BYTES_MAX:
            at_once(partial(_parsed, self._method, message), self._act)
            return
        assert self._claim is not None  # as the request is long
        held = [message]
        try:
            if self._claim.take_or_wait(len(message), partial(self._counted_twice, held)):
                self._counted_twice(held)
        except PendingBytesError as exc:
            self.fail(Status.RESOURCE_EXHAUSTED, exc.message)

    def _counted_twice(self, held: list[bytes], failure: PendingBytesError | None = None) -> None:
        if failure is not None:
            self.fail(Status.RESOURCE_EXHAUSTED, failure.message)
        elif self._take_turn(partial(self._begin_parse, held)):
            self._begin_parse(held)

    def _begin_parse(self, held: list[bytes]) -> None:
        """Parse what is in `held`, which is empty afterwards."""
        self._copied = len(held[0])
        in_thread(self._state.tasks, partial(_parsed_long, self._method, held), self._act, "parse a request")

    def _take_turn(self, then: Callable[[], None]) -> bool:
        """See Turn.take."""
        if self._turn is None:
            self._turn = self._state.turns.turn()
        assert self._claim is not None  # as the request is long
        return self._turn.take(self._claim, then)

    def _act(self, request: Message | InferenceError) -> None:
        if self._turn is not None:
            self._turn.end()
        if self._over:
            return
        if isinstance(request, InferenceError):
            self._reply(request)
            return
        try:
            self._method.act(self._state, request, self._reply)
        except InferenceError as exc:
            self._reply(exc)
        if self._claim is not None:
            self._claim.give_back(self._copied)

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
        message, session = outcome.SerializeToString(), self._connection.session
        if self.is_prompt:
            session.respond(self._stream, HEAD, [message], OK_TRAILERS)
        elif self._write_document(message):
            session.end(self._stream, OK_TRAILERS)
        else:
            return
        self._leave()
        self._cancel()
        self._connection.said()

    def _end_claim(self) -> None:
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.end()
        if self._turn is not None:
            self._turn.end()

    def _cancel(self) -> None:
        if self._decompression is not None:
            self._decompression.end()
        self._end_claim()
        if self._counted:
            self._counted = False
            self._state.end_request()


def _parsed_long(method: Method, held: list[bytes]) -> Message:
    """As `_parsed`: nothing holds the message any longer then."""
    return _parsed(method, held.pop())


def _parsed(method: Method, message: bytes) -> Message:
    try:
        return method.parse(message)
    except DecodeError:
        name = method.request.DESCRIPTOR.name
        raise InferenceError(f"the message is no {name}: it cannot be parsed") from None

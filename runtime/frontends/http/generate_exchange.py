# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The exchanges of the generate extension: JSON whose members are inputs, answered by one response or a stream of them.

Decoupled models are available here over HTTP. The client paces a stream: a response is released when the transport has
sent it, and a model has a limited number of unreleased responses.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import deque
from functools import partial

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.http.exchange import Connection, Piece, note_sending, nothing_to_release
from pyruntime.runtime.frontends.http.generate_request import decode_generate, parsed_bytes
from pyruntime.runtime.frontends.http.generate_response import encode_generate, event, event_pieces, large_generate
from pyruntime.runtime.frontends.http.json_pieces import LARGE_BYTES
from pyruntime.runtime.frontends.http.kserve_response import encode_failure
from pyruntime.runtime.frontends.http.large_answer import Body, LargeAnswer
from pyruntime.runtime.frontends.http.large_exchange import LargeExchange
from pyruntime.runtime.frontends.http.long_strings import LongStrings
from pyruntime.runtime.frontends.http.request_head import Head
from pyruntime.runtime.frontends.http.response_head import (
    JSON,
    LAST_CHUNK,
    STATUS_OF,
    chunk,
    event_stream_head,
    with_line,
)
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.threads import PARSED_AT_ONCE_MAX, in_thread
from pyruntime.runtime.requests.types import InferRequest, InferResponse
from pyruntime.utils.errors import Code, InferenceError

# Events that may wait for the client. A model has far fewer unreleased responses, but any number of errors.
EVENTS_WAITING_MAX = 1024

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class _GeneratingExchange(LargeExchange[None]):
    """The base of both: decodes the request."""

    options = None
    body_bytes_max = sys.maxsize  # there may be whole files in it
    _takes_decoupled = True
    # Further responses of the model are dropped.
    _over = False
    # The request, if a thread has decoded it.
    _request: InferRequest | None = None

    def _act(self) -> None:
        model = self._model
        if model is None or model.is_gone:  # it may have been replaced while the body came in
            model = self._find_model()
        if len(self._body) > PARSED_AT_ONCE_MAX:
            self._run(partial(LongStrings, self._body), self._read, "read a request")
            return
        plain = None if self.head.forwarded else model.plain.read_generate(self._body, model.memory.allocate)
        if plain is None:
            self._state.intake.submit(self, model)
        else:
            self._state.intake.submit_plain(self, model, plain, None)
        if self._claim is not None:
            self._end_claim()

    def _read(self, strings: LongStrings) -> None:
        """Have a thread look how much memory a large request may take."""
        self._run(partial(parsed_bytes, strings), partial(self._parse, strings), "read a request")

    def _parse(self, strings: LongStrings, nbytes: int) -> None:
        """Have a thread decode a large request."""
        assert self._model is not None  # it is known before anything is read
        if self._claim is None:
            self._claim = self._connection.claim()
        self._claim.take(nbytes)
        self._run(partial(decode_generate, strings, self._model.spec), self._decoded, "parse a request")

    def _decoded(self, request: InferRequest) -> None:
        """Submit a large request, which a thread has decoded."""
        assert self._model is not None  # it has the specification
        slot = self._model.memory.place(request)
        if slot is not None:
            request.slots = [self._count_slot(slot)]
        self._request = request
        self._submit(self._model)

    def decode(self, model: ModelVersion) -> tuple[InferRequest, None]:
        """See IncomingRequest."""
        request, self._request = self._request, None
        return request or decode_generate(LongStrings(self._body), model.spec), None

    def respond(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        if final:
            self.job = None  # it refers to us
        if not self._over and not self.abandoned:
            self._take_response(outcome, final)
        elif isinstance(outcome, InferResponse):
            outcome.release()

    @abstractmethod
    def _take_response(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """Handle a response or an error of the model."""

    def _stop(self) -> None:
        self._over = True
        self.cancel()


class GenerateExchange(_GeneratingExchange):
    """`generate`: the model must produce exactly one response, however it does so."""

    # The one response: its document, or itself if that is large. It is sent when the model has said that it is the one.
    _document = b""
    _large_response: InferResponse | None = None

    def _take_response(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        failure = None
        if isinstance(outcome, InferenceError):
            failure = outcome
        elif outcome is not None:
            if self._document or self._large_response is not None:
                failure = InferenceError(_NOT_ONE)
                outcome.release()
            elif sum(len(output.data) for output in outcome.outputs) > LARGE_BYTES:
                self._large_response = outcome
            else:
                failure = self._encode(outcome)
        if failure is None and final and not self._document and self._large_response is None:
            failure = InferenceError(_NOT_ONE)
        if failure is not None:
            self._stop()
            self._drop()
            self.reject(failure)
        elif final and self._large_response is not None:
            response, self._large_response = self._large_response, None
            self._answer_in_pieces(response, partial(large_generate, response))
        elif final:
            lines = JSON + self._load_report_line() if self.head.load_format else JSON
            self._respond(200, self._document, lines)

    def _encode(self, response: InferResponse) -> InferenceError | None:
        try:
            self._document = encode_generate(response)
        except InferenceError as exc:
            return exc
        finally:
            response.release()
        return None

    def _drop(self) -> None:
        response, self._large_response = self._large_response, None
        if response is not None:
            response.release()

    def abandon(self) -> None:
        """See Exchange."""
        super().abandon()
        self._drop()


class GenerateStreamExchange(_GeneratingExchange):
    """`generate_stream`: each response of the model is an event, and so is each error."""

    _begun = False
    # A large event is being written, and whether it is the last one.
    _is_writing = _is_last = False

    def __init__(self, state: ServerState, connection: Connection, head: Head) -> None:
        super().__init__(state, connection, head)
        # The outcomes of the model, and whether each is the last one. They are encoded when they are sent.
        self._waiting: deque[tuple[InferResponse | InferenceError | None, bool]] = deque()

    def _take_response(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        if len(self._waiting) >= EVENTS_WAITING_MAX and not final:
            if isinstance(outcome, InferResponse):
                outcome.release()
            outcome = InferenceError(f"more than {EVENTS_WAITING_MAX} events wait for the client", Code.UNAVAILABLE)
            final = True
            self._stop()
        self._waiting.append((outcome, final))
        self._connection.answered()

    def next_piece(self) -> Piece | None:
        """The next event, or a piece of a large one, behind the head if it is the first."""
        if self._is_writing:
            return self._next_of_large()
        if not self._waiting:
            return None
        outcome, final = self._waiting.popleft()
        if isinstance(outcome, InferResponse) and sum(len(output.data) for output in outcome.outputs) > LARGE_BYTES:
            self._begin_large(outcome, final)
            return None
        data, status, release = b"", 200, nothing_to_release
        if isinstance(outcome, InferResponse):
            release = outcome.release
            try:
                data = event(encode_generate(outcome))
            except InferenceError as exc:
                outcome = exc
        if isinstance(outcome, InferenceError):
            status = STATUS_OF[outcome.code]
            data = event(encode_failure(outcome))
        self.ended = final
        if self.head.takes_chunks:
            data = (chunk(data) if data else b"") + (LAST_CHUNK if final else b"")
        return self._traced(Piece(self._head_once(status) + data, release))

    def _head_once(self, status: int) -> bytes:
        """The head, the first time. The first response decides the status; later ones are only events."""
        if self._begun:
            return b""
        self._begun = True
        head = event_stream_head(status, self.head.takes_chunks, self.keep_alive)
        if self.head.load_format and status == 200:
            head = with_line(head, self._load_report_line())
        return head

    def _traced(self, piece: Piece) -> Piece:
        if self.trace is None:
            return piece
        piece = Piece(piece.data, note_sending(self.trace, piece.release, is_last=self.ended))
        if self.ended:
            self.trace = None
        return piece

    # Large events: see large_answer.py.

    def _begin_large(self, response: InferResponse, final: bool) -> None:
        """Have a thread write a large event; until it is sent, the others wait."""
        self._is_writing = True
        begin = partial(large_generate, response, lambda: self.abandoned)
        in_thread(self._state.tasks, begin, partial(self._send_large, response, final), "begin a large event")

    def _send_large(self, response: InferResponse, final: bool, body: Body | InferenceError) -> None:
        if self.abandoned:
            response.release()
            return
        if isinstance(body, InferenceError):
            response.release()
            self._is_writing = False
            self._waiting.appendleft((body, final))
            self._connection.answered()
            return
        data, state = event_pieces(body.pieces), self._state
        claim, ready, chunked = self._connection.claim(), self._connection.answered, self.head.takes_chunks
        self._is_last = final
        self._large = LargeAnswer(
            lambda: state.tasks, data, self._head_once(200), chunked, claim, ready, response.release, is_part=not final
        )
        self._large.begin()

    def _next_of_large(self) -> Piece | None:
        large = self._large
        piece = None if large is None else large.next_piece()
        if piece is None or large is None:
            return None
        if large.ended:
            self._large, self._is_writing = None, False
            self.ended = self._is_last
        if large.failed:
            self.keep_alive, self.ended = False, True
            self._stop()
        return self._traced(piece)

    def abandon(self) -> None:
        """See Exchange."""
        super().abandon()
        for outcome, _ in self._waiting:
            if isinstance(outcome, InferResponse):
                outcome.release()
        self._waiting.clear()

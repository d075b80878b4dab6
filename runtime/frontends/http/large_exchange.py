# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The base of exchanges whose answer may be large JSON, which is sent piece by piece: see large_answer.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyruntime.runtime.frontends.http.exchange import Piece, note_sending
from pyruntime.runtime.frontends.http.large_answer import Body, LargeAnswer
from pyruntime.runtime.frontends.http.model_exchange import ModelExchange
from pyruntime.runtime.frontends.http.response_head import large_infer_head, with_line
from pyruntime.runtime.inference.threads import in_thread
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError

O = TypeVar("O")  # noqa: E741 - the options of the response


class LargeExchange(ModelExchange[O]):
    """See the module."""

    _large: LargeAnswer | None = None

    def _answer_in_pieces(
        self, response: InferResponse, begin: Callable[[Callable[[], bool]], Body], encoding: str = ""
    ) -> None:
        """Answer with the body that `begin` returns in a thread, which is told how to find that the client is gone.

        The response is released when nothing reads it any more. If `begin` raises InferenceError, it is the answer.
        """
        work = partial(begin, lambda: self.abandoned)
        in_thread(self._state.tasks, work, partial(self._send_body, response, encoding), "begin a large response")

    def _send_body(self, response: InferResponse, encoding: str, body: Body | InferenceError) -> None:
        if isinstance(body, InferenceError) or self.abandoned:
            response.release()
            if isinstance(body, InferenceError):
                self.reject(body)
            return
        chunked = body.length is None and self.head.takes_chunks
        if body.length is None and not chunked:
            self.keep_alive = False  # the end of the connection is that of the answer
        head = large_infer_head(body.document_length, body.length, chunked, self.keep_alive, encoding)
        head = self._persistent(head)
        if self.head.load_format:
            head = with_line(head, self._load_report_line())
        claim, ready = self._connection.claim(), self._connection.answered
        state = self._state
        self._large = LargeAnswer(lambda: state.tasks, body.pieces, head, chunked, claim, ready, response.release)
        self._large.begin()

    def next_piece(self) -> Piece | None:
        """See Exchange: the next one of a large answer."""
        large = self._large
        piece = None if large is None else large.next_piece()
        if piece is None or large is None:
            return None
        if large.failed:
            self.keep_alive = False
        self.ended = large.ended
        if self.trace is not None:
            piece = Piece(piece.data, note_sending(self.trace, piece.release, is_last=self.ended))
            if self.ended:
                self.trace = None
        return piece

    def abandon(self) -> None:
        """See Exchange."""
        super().abandon()
        if self._large is not None:
            self._large.end()

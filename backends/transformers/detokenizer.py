# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Turns tokens into text as they come, and finds the texts that end a completion. (pure)

A token may be a part of a character: bytes of UTF-8. Such text waits until the character is complete. The text of a
token may also depend on the tokens before it, for example its leading space, so each token is decoded with a context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# The tokens of the prompt with which the first new tokens are decoded.
CONTEXT_TOKENS = 5
# A character has up to four bytes, each maybe a token. More tokens without a character are invalid bytes.
HELD_TOKENS_MAX = 8
# The text of bytes that are no character, or not yet.
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one completion. `text` only grows, and holds back what may become a stop text."""

    def __init__(
        self, decode: Callable[[list[int]], str], prompt: Sequence[int], stops: Sequence[str], keeps_stop: bool
    ) -> None:
        """`decode` decodes tokens; `keeps_stop` leaves the stop text in `text`."""
        self.text = ""
        self._decode = decode
        self._stops = list(stops)
        self._keeps_stop = keeps_stop
        self._held_back = max(map(len, stops), default=1) - 1
        self._all = ""
        # The last tokens: the context, whose text is known, and then those whose text is not complete.
        self._tokens = list(prompt[-CONTEXT_TOKENS:])
        self._known = len(self._tokens)

    def push(self, token: int) -> bool:
        """Add a token. True if its text completes a stop text, which ends the completion."""
        self._tokens.append(token)
        text = self._new_text()
        if (not text or text.endswith(_REPLACEMENT)) and len(self._tokens) - self._known <= HELD_TOKENS_MAX:
            return False
        self._tokens = self._tokens[self._known :]
        self._known = len(self._tokens)
        return self._add(text)

    def finish(self) -> None:
        """The completion has no more tokens: show all text, also that of incomplete characters."""
        if not self._add(self._new_text()):
            self.text = self._all

    def _new_text(self) -> str:
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._known])) :]

    def _add(self, text: str) -> bool:
        start = max(0, len(self._all) - self._held_back)
        self._all += text
        found = [(index, stop) for stop in self._stops if (index := self._all.find(stop, start)) >= 0]
        if found:
            index, stop = min(found)
            self.text = self._all[: index + len(stop) * self._keeps_stop]
            return True
        self.text = self._all[: len(self._all) - self._held_back]
        return False

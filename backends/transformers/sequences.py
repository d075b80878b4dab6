# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One request for text while it is generated: its tokens, its text, and why it ends. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyruntime.backends.transformers.detokenizer import Detokenizer
from pyruntime.backends.transformers.sampling import SamplingParameters


class Chooses(Protocol):
    """Chooses the tokens of a sequence, see Sampler."""

    def choose(self, logits: Any, tokens: Sequence[int]) -> int:
        """The next token."""

    def logprobs(self, logits: Any, token: int, decode: Callable[[list[int]], str]) -> dict[int, Any]:
        """The log probabilities of the token and of the most likely ones."""


@dataclass(frozen=True)
class Completion:
    """The text of a request so far, with the fields of vLLM's CompletionOutput."""

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None
    cumulative_logprob: float | None
    logprobs: Sequence[dict[int, Any]] | None


@dataclass(frozen=True)
class Output:
    """The state of a request, with the fields of vLLM's RequestOutput."""

    prompt: str
    prompt_token_ids: Sequence[int]
    outputs: list[Completion]
    finished: bool


class TextSequence:
    """See the module. `ends` are the tokens that end a text, `tokens_max` is the most that it may have."""

    def __init__(
        self,
        prompt: str,
        prompt_ids: list[int],
        parameters: SamplingParameters,
        sampler: Chooses,
        decode: Callable[[list[int]], str],
        ends: frozenset[int],
        tokens_max: int,
    ) -> None:
        self.prompt = prompt
        self.prompt_ids = prompt_ids
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._sampler = sampler
        self._decode = decode
        self._ends = frozenset(parameters.stop_token_ids or ()) | (frozenset() if parameters.ignore_eos else ends)
        self._tokens_max = tokens_max
        self._text = Detokenizer(decode, prompt_ids, parameters.stops, parameters.include_stop_str_in_output)
        self._logprobs: list[dict[int, Any]] | None = None if parameters.logprobs is None else []
        self._cumulative = 0.0

    def add(self, logits: Any) -> None:
        """Take the next token, and decide whether it is the last one."""
        token = self._sampler.choose(logits, self.token_ids)
        self.token_ids.append(token)
        if self._logprobs is not None:
            found = self._sampler.logprobs(logits, token, self._decode)
            self._logprobs.append(found)
            self._cumulative += found[token].logprob
        if self._text.push(token):
            self.finish_reason = "stop"
        elif token in self._ends:
            self._finish("stop")
        elif len(self.token_ids) >= self._tokens_max:
            self._finish("length")

    def output(self) -> Output:
        """The state now."""
        completion = Completion(
            self._text.text,
            list(self.token_ids),
            self.finish_reason,
            None if self._logprobs is None else self._cumulative,
            None if self._logprobs is None else list(self._logprobs),
        )
        return Output(self.prompt, self.prompt_ids, [completion], self.finish_reason is not None)

    def _finish(self, reason: str) -> None:
        self._text.finish()
        self.finish_reason = reason

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses the next token of a sequence by the logits of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyruntime.backends.transformers.sampling import SamplingParameters


@dataclass(frozen=True)
class Logprob:
    """The log probability of a token; `rank` is 1 for the most likely one."""

    logprob: float
    rank: int
    decoded_token: str


class Sampler:
    """Chooses the tokens of one sequence: with a `seed` the same ones each time, whatever else is in the batch."""

    def __init__(self, torch: Any, parameters: SamplingParameters, prompt: Sequence[int], device: Any) -> None:
        self._torch = torch
        self._parameters = parameters
        self._prompt = list(prompt)
        self._generator = torch.Generator(device=device)
        if parameters.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(parameters.seed)

    def choose(self, logits: Any, tokens: Sequence[int]) -> int:
        """The next token after `tokens`, by logits of the shape [vocabulary]."""
        torch, wanted = self._torch, self._parameters
        if wanted.repetition_penalty != 1:
            seen = torch.tensor(sorted({*self._prompt, *tokens}), device=logits.device)
            values, penalty = logits[seen], wanted.repetition_penalty
            logits = logits.index_copy(0, seen, torch.where(values > 0, values / penalty, values * penalty))
        if tokens and (wanted.presence_penalty or wanted.frequency_penalty):
            made, counts = torch.tensor(list(tokens), device=logits.device).unique(return_counts=True)
            logits = logits.index_add(
                0, made, -wanted.presence_penalty - wanted.frequency_penalty * counts.to(logits.dtype)
            )
        if wanted.temperature == 0:
            return int(logits.argmax())
        logits = logits / wanted.temperature
        if 0 < wanted.top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(wanted.top_k).values[-1], -torch.inf)
        probabilities = logits.softmax(-1)
        if wanted.min_p > 0:
            # Probabilities need no sum of 1 for what follows, but top_p is a part of it.
            probabilities = probabilities.masked_fill(probabilities < wanted.min_p * probabilities.max(), 0)
            probabilities = probabilities / probabilities.sum()
        if wanted.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            # The tokens after those whose sum reaches top_p; never the first one.
            excluded = ordered.cumsum(-1) - ordered >= wanted.top_p
            probabilities = probabilities.index_fill(0, order[excluded], 0)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def logprobs(self, logits: Any, token: int, decode: Callable[[list[int]], str]) -> dict[int, Logprob]:
        """The log probabilities of `token` and of the most likely tokens, by the unchanged logits."""
        values = logits.log_softmax(-1)
        rank = int((values > values[token]).sum()) + 1
        found = {token: Logprob(float(values[token]), rank, decode([token]))}
        count = min(self._parameters.logprobs or 0, len(values))
        for position, each in enumerate(values.topk(count).indices.tolist(), 1):
            found.setdefault(each, Logprob(float(values[each]), position, decode([each])))
        return found

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Sequences that take each token together, by one call of a causal language model with one cache of keys and values.

The cache has a row for each sequence, padded on the left to the longest one; a mask excludes the padding. A sequence
joins with the cache that its prompt has filled, and leaves by dropping its row, between any two tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pyruntime.utils.errors import LoadError

# Layers of a cache that have the keys and values of tokens. Others keep a state, which cannot be padded.
_LAYERS = frozenset(("DynamicLayer", "DynamicSlidingWindowLayer"))


class Batch:
    """See the module. All methods are called with gradients off, in one thread at a time."""

    def __init__(self, torch: Any, new_cache: Callable[[], Any], model: Any) -> None:
        """`new_cache` makes an empty cache, which must keep all tokens: masks exclude those outside of a window."""
        self._torch = torch
        self._new_cache = new_cache
        self._model = model
        known = inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self._has_positions = "position_ids" in known
        self._cache: Any = None
        # The tokens of each row that are in the cache.
        self._lengths: list[int] = []

    def prefill(self, tokens: Sequence[int], cache: Any, start: int) -> tuple[Any, Any]:
        """The logits after `tokens`, a part of a prompt, [vocabulary], and the cache with them.

        `cache` has the `start` tokens before them; it is None for 0.
        """
        torch, device = self._torch, self._model.device
        cache = self._new_cache() if cache is None else cache
        ids = torch.tensor([list(tokens)], device=device)
        mask = torch.ones((1, start + len(tokens)), dtype=torch.long, device=device)
        positions = torch.arange(start, start + len(tokens), device=device)[None]
        return self._forward(ids, mask, positions, cache)[0], cache

    def join(self, cache: Any, length: int) -> None:
        """Add a row with the cache of a prompt of `length` tokens."""
        if not self._lengths:
            self._cache = cache
        else:
            longest = max(*self._lengths, length)
            # All before any is set: memory may run out.
            joined = [
                (self._joined(ours.keys, theirs.keys, longest), self._joined(ours.values, theirs.values, longest))
                for ours, theirs in zip(self._cache.layers, cache.layers, strict=True)
            ]
            for layer, (keys, values) in zip(self._cache.layers, joined, strict=True):
                layer.keys, layer.values = keys, values
        self._lengths.append(length)

    def step(self, tokens: Sequence[int]) -> Any:
        """The logits, [rows, vocabulary], after one more token of each row."""
        torch, device = self._torch, self._model.device
        lengths = torch.tensor(self._lengths, device=device)
        width = max(self._lengths) + 1
        # The tokens of a row are at the right, the new one last.
        mask = (torch.arange(width, device=device)[None] >= (width - 1 - lengths)[:, None]).long()
        ids = torch.tensor(list(tokens), device=device)[:, None]
        logits = self._forward(ids, mask, lengths[:, None], self._cache)
        self._lengths = [length + 1 for length in self._lengths]
        return logits

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, which are in ascending order."""
        if len(rows) == len(self._lengths):
            return
        self._lengths = [self._lengths[row] for row in rows]
        if not rows:
            self._cache = None
            return
        longest = max(self._lengths)
        index = self._torch.tensor(list(rows), device=self._model.device)
        for layer in self._cache.layers:
            layer.keys = layer.keys[:, :, -longest:][index]
            layer.values = layer.values[:, :, -longest:][index]

    def _forward(self, ids: Any, mask: Any, positions: Any, cache: Any) -> Any:
        options = {**self._options, "position_ids": positions} if self._has_positions else self._options
        output = self._model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **options)
        return output.logits[:, -1].float()

    def _joined(self, ours: Any, theirs: Any, longest: int) -> Any:
        pad = self._torch.nn.functional.pad
        return self._torch.cat([pad(each, (0, 0, longest - each.shape[-2], 0)) for each in (ours, theirs)])


def check_cache(model: str, layers: Sequence[Any]) -> None:
    """Raise LoadError if a language model keeps more of a sequence than keys and values, by the layers of its cache."""
    others = sorted({type(layer).__name__ for layer in layers} - _LAYERS)
    if others:
        raise LoadError(
            f"model '{model}' cannot be batched by the backend transformers: its cache has {', '.join(others)}, which "
            'is no list of keys and values of tokens. Use backend: "vllm"'
        )

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Serves a causal language model: requests for text become sequences of the engine."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from typing import Any

import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.settings import Settings
from pyruntime.backends.toolkit.text import TextRequest
from pyruntime.backends.toolkit.text_streams import TextStreams
from pyruntime.backends.transformers.batch import Batch, check_cache
from pyruntime.backends.transformers.engine import Engine, Limits
from pyruntime.backends.transformers.loading import Loader
from pyruntime.backends.transformers.options import FILENAME, Options
from pyruntime.backends.transformers.sampler import Sampler
from pyruntime.backends.transformers.sampling import SamplingParameters, read_sampling
from pyruntime.backends.transformers.sequences import Output, TextSequence
from pyruntime.utils.errors import Code, ConfigError, InferenceError


class TextGeneration:
    """One language model with its engine."""

    def __init__(self, settings: Settings, options: Options, loader: Loader, device: Any) -> None:
        """Load the model. Raises LoadError."""
        self._torch = loader.torch
        self._tokenizer = loader.tokenizer()
        self._model = loader.model("AutoModelForCausalLM", device)
        cache_class = loader.transformers.DynamicCache
        check_cache(settings.name, cache_class(config=self._model.config).layers)
        self._max_model_len = _max_model_len(settings.name, options, self._model.config)
        self._ends = _ends(self._model.generation_config, self._tokenizer)
        limits = Limits(
            self._max_model_len,
            options.max_num_seqs,
            options.max_num_batched_tokens,
            options.max_num_queued_reqs,
        )
        batch = Batch(self._torch, cache_class, self._model)
        self._engine = Engine(batch, limits, self._torch.inference_mode)
        self._streams = TextStreams(self._generate, _code_of)

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Answer the requests, together with those of earlier calls that are not answered yet."""
        await self._streams.answer(requests)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    async def _generate(self, request: TextRequest) -> AsyncGenerator[Output, None]:
        if request.images:
            raise ValueError("the model takes text only: omit the input 'image'")
        parameters = read_sampling(request.parameters)
        # A tokenizer is not thread-safe, and a long prompt would delay the event loop.
        tokens = await self._engine.in_turn(self._encode, request.prompt)
        sequence = self._sequence(request.prompt, tokens, parameters)
        async for output in self._engine.generate(sequence, request.stream):
            yield output

    def _encode(self, prompt: str) -> list[int]:
        tokens: list[int] = self._tokenizer(prompt).input_ids
        if not tokens and self._tokenizer.bos_token_id is not None:
            tokens = [self._tokenizer.bos_token_id]
        return tokens

    def _sequence(self, prompt: str, tokens: list[int], parameters: SamplingParameters) -> TextSequence:
        room = self._max_model_len - len(tokens)
        if not tokens:
            raise ValueError("input 'text_input' has no tokens: send a prompt that is not empty")
        if room < 1:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, and with at least one token of an answer it may have "
                f"{self._max_model_len - 1} (max_model_len {self._max_model_len}): shorten it"
            )
        sampler = Sampler(self._torch, parameters, tokens, self._model.device)
        decode = functools.partial(self._tokenizer.decode, skip_special_tokens=parameters.skip_special_tokens)
        most = room if parameters.max_tokens is None else min(room, parameters.max_tokens)
        return TextSequence(prompt, tokens, parameters, sampler, decode, self._ends, most)


def _max_model_len(model: str, options: Options, config: Any) -> int:
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    length = options.max_model_len or own
    if length is None:
        raise ConfigError(f"model '{model}' does not say how many tokens it takes: set max_model_len in {FILENAME}")
    if own is not None and length > own:
        raise ConfigError(f"model '{model}' takes {own} tokens, but max_model_len in {FILENAME} is {length}")
    return int(length)


def _ends(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text."""
    ends = generation_config.eos_token_id
    found = ends if isinstance(ends, list) else [ends]
    return frozenset(each for each in [*found, tokenizer.eos_token_id] if each is not None)


def _code_of(exc: Exception) -> Code | None:
    if isinstance(exc, InferenceError):
        return exc.code
    return Code.INVALID_ARG if isinstance(exc, ValueError) else None

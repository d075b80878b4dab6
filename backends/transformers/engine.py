# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Generates text for many requests at the same time: continuous batching.

The engine runs in turns, while there are requests. A turn gives each sequence of the batch its next token, and reads
prompts that wait, or a part of one, as far as the batch has room. So requests join and leave between any two tokens,
and a long prompt delays the others by the time of a part of it only.

A turn runs in a thread, which has the batch for its own. Requests are added and cancelled in the event loop; a turn
sees that when it begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pyruntime.backends.transformers.sequences import Output, TextSequence
from pyruntime.utils.errors import Code, InferenceError


class Rows(Protocol):
    """The sequences that are generated together, see Batch."""

    def prefill(self, tokens: Sequence[int], cache: Any, start: int) -> tuple[Any, Any]:
        """The logits after a part of a prompt, and the cache with it."""

    def join(self, cache: Any, length: int) -> None:
        """Add a row."""

    def step(self, tokens: Sequence[int]) -> Any:
        """The logits of all rows after one more token of each."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows."""


@dataclass(frozen=True)
class Limits:
    """Limits of an engine, with vLLM's names.

    The most tokens of a prompt together with its text, sequences in the batch, tokens of prompts in a turn, and
    requests that wait.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int


class Entry:
    """A request in the engine. `changed` is set when `news` are: the newest output, or why there will be none."""

    def __init__(self, sequence: TextSequence, is_stream: bool) -> None:
        self.sequence = sequence
        self.is_stream = is_stream
        self.is_cancelled = False
        # The cache with the part of the prompt that is read, and the tokens of that part.
        self.cache: Any = None
        self.read = 0
        self.error: Exception | None = None
        self.news: Output | Exception | None = None
        self.changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the request needs no place in the batch any more."""
        return self.error is not None or self.sequence.finish_reason is not None


class Engine:
    """See the module. `in_thread` is a context for each turn, such as torch.inference_mode."""

    def __init__(self, batch: Rows, limits: Limits, in_thread: Callable[[], AbstractContextManager[Any]]) -> None:
        self._batch = batch
        self._limits = limits
        self._in_thread = in_thread
        self._waiting: deque[Entry] = deque()
        self._running: list[Entry] = []
        self._thread = ThreadPoolExecutor(1, "transformers engine")
        self._turns: asyncio.Task[None] | None = None

    async def in_turn(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of a function in the engine's thread, between two turns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def generate(self, sequence: TextSequence, is_stream: bool) -> AsyncGenerator[Output, None]:
        """Generate a text; yields its newest state after each token, or only the last one without `is_stream`.

        Cancelling or closing it frees the place in the batch before the next token. Raises InferenceError if too many
        requests wait, and what the model raises.
        """
        if len(self._waiting) >= self._limits.max_num_queued_reqs:
            raise InferenceError(
                f"{len(self._waiting)} requests wait already, which is the limit max_num_queued_reqs of the model: try "
                "again later",
                Code.UNAVAILABLE,
            )
        entry = Entry(sequence, is_stream)
        self._waiting.append(entry)
        if self._turns is None or self._turns.done():
            self._turns = asyncio.create_task(self._run())
        try:
            while True:
                await entry.changed.wait()
                entry.changed.clear()
                if isinstance(entry.news, Exception):
                    raise entry.news
                assert entry.news is not None  # set before the event
                yield entry.news
                if entry.news.finished:
                    return
        finally:
            entry.is_cancelled = True

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    async def _run(self) -> None:
        while self._waiting or self._running:
            try:
                changed = await self.in_turn(self._turn)
            except Exception as exc:  # a bug: nobody may wait forever
                changed = [(entry, exc) for entry in (*self._waiting, *self._running)]
                self._waiting.clear()
                self._running.clear()
                self._batch.keep([])
            for entry, news in changed:
                entry.news = news
                entry.changed.set()
            self._waiting = deque(entry for entry in self._waiting if not entry.is_cancelled)

    def _turn(self) -> list[tuple[Entry, Output | Exception]]:
        """The entries with something new."""
        with self._in_thread():
            self._drop(lambda entry: entry.is_cancelled)
            changed = [*self._step(), *self._read_prompts()]
            self._drop(lambda entry: entry.is_over)
        return [
            (entry, entry.error or entry.sequence.output()) for entry in changed if entry.is_stream or entry.is_over
        ]

    def _step(self) -> list[Entry]:
        """Give each sequence in the batch its next token."""
        running = list(self._running)
        if not running:
            return running
        try:
            logits = self._batch.step([entry.sequence.token_ids[-1] for entry in running])
        except Exception as exc:  # no memory, for example
            for entry in running:
                entry.error = exc
            return running
        for row, entry in enumerate(running):
            _take(entry, logits[row])
        return running

    def _read_prompts(self) -> list[Entry]:
        """Read the prompts that wait, as far as there is room, and give them their first token."""
        budget = self._limits.max_num_batched_tokens
        first: list[Entry] = []
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_num_seqs:
            entry = self._waiting[0]
            if entry.is_cancelled:
                self._waiting.popleft()
                continue
            part = entry.sequence.prompt_ids[entry.read : entry.read + budget]
            budget -= len(part)
            try:
                logits, entry.cache = self._batch.prefill(part, entry.cache, entry.read)
                entry.read += len(part)
                if entry.read < len(entry.sequence.prompt_ids):
                    continue
                self._batch.join(entry.cache, entry.read)
            except Exception as exc:
                entry.error, entry.cache = exc, None
                self._waiting.popleft()
                first.append(entry)
                continue
            entry.cache = None
            self._waiting.popleft()
            self._running.append(entry)
            _take(entry, logits)
            first.append(entry)
        return first

    def _drop(self, is_over: Callable[[Entry], bool]) -> None:
        kept = [row for row, entry in enumerate(self._running) if not is_over(entry)]
        if len(kept) < len(self._running):
            self._batch.keep(kept)
            self._running = [self._running[row] for row in kept]


def _take(entry: Entry, logits: Any) -> None:
    try:
        entry.sequence.add(logits)
    except Exception as exc:
        entry.error = exc

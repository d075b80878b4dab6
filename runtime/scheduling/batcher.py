# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which queued requests form a batch, and when. (pure)

A batch is always the front of the queue, whose order is that of policy_queue.py: requests of one priority never
overtake one another, unless they are late, and no request is split. Without `dynamic_batching` every request is a batch
of its own, at once. With it:

*The pending batch* is the longest front of the queue whose rows fit into `max_batch_size` and whose requests all have
the same signature. It is *closed* once the request behind it does not fit or has another signature: it cannot grow.

*The preferred front* is the longest front of the pending batch that has exactly a preferred number of rows. If no front
has, it ends before the request that exceeds the largest preferred size (or is that request alone, at the head of the
queue), because waiting can no longer lead to a preferred size. Without preferred sizes, `max_batch_size` is the one.

`take(now)` returns the first of these that applies:

1. the pending batch, if there is a delay and the oldest request has waited that long;
2. the preferred front, if there is one;
3. the pending batch, if it is closed or there is no delay;
4. None: more requests may arrive.

A model may have a *strategy* of its own. The batcher asks it about each request that would join the pending batch by
the rules above, including the first one; a request that it rejects closes the batch. The first request stays in the
batch in any case, because it must be executed at some time.

This module only decides. If an instance has a free place, its caller calls `take` after a request arrived, after a
place became free, and at `wake_at()`; and it calls `expire` at each deadline of the queue. The preferred front and the
end of the pending batch are kept between calls, so each request is examined once, however often the caller asks, as
long as the order of the queue stays.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, Protocol, TypeVar

from pyruntime.runtime.config.spec import DynamicBatchingSpec
from pyruntime.runtime.scheduling.policy_queue import PolicyQueue, Queued

_NO_BATCHING = DynamicBatchingSpec()

Q = TypeVar("Q", bound="Waiting")
W = TypeVar("W", contravariant=True)


class Waiting(Queued, Protocol):
    """The properties of a waiting request that a batcher uses, beside those of the queue.

    `rows` is its batch size. `signature` is only compared for equality: requests with different signatures never share
    a batch.
    """

    @property
    def rows(self) -> int: ...
    @property
    def signature(self) -> Hashable | None: ...


class Strategy(Protocol[W]):
    """A custom batching strategy, which can exclude requests from a batch. It works on one batch at a time."""

    def begin(self) -> None:
        """A new batch begins, with the oldest requests."""

    def include(self, queued: W, /) -> bool:
        """Whether a request may join the batch."""

    def end(self) -> None:
        """The batch is complete, or discarded."""


class Batcher(Generic[Q]):
    """The queue of one model version. `batching` None: every request is a batch, and the queue has no limit.

    `strategy` is the model's own, or None.
    """

    __slots__ = (
        "_batching",
        "_closed",
        "_delay_s",
        "_max_batch_size",
        "_pending_count",
        "_pending_rows",
        "_preferred",
        "_preferred_count",
        "_preferred_max",
        "queue",
        "strategy",
    )

    def __init__(
        self, max_batch_size: int, batching: DynamicBatchingSpec | None, strategy: Strategy[Q] | None = None
    ) -> None:
        # Callers may only read it.
        self.queue: PolicyQueue[Q] = PolicyQueue(batching or _NO_BATCHING)
        self._batching = batching is not None
        self._max_batch_size = max(1, max_batch_size)
        self._delay_s = batching.max_queue_delay_us / 1e6 if batching else 0.0
        self._preferred = frozenset(batching.preferred_batch_sizes if batching else ()) or {self._max_batch_size}
        self._preferred_max = max(self._preferred)
        self.strategy = strategy
        self._pending_count = 0
        self._forget_pending()

    def submit(self, queued: Q) -> None:
        """Queue a request. Raises QueueFull, and then changes nothing."""
        if not self.queue.add(queued):
            self._forget_pending()

    def requeue(self, queued: Q) -> None:
        """Queue a request again that its model has begun, without a limit and a deadline."""
        self.queue.requeue(queued)
        self._forget_pending()

    def expire(self, now: float) -> list[Q]:
        """Remove and return the requests that have waited too long, for the caller to fail. `now` is in seconds."""
        rejected, changed = self.queue.expire(now)
        if changed:
            self._forget_pending()
        return rejected

    def take(self, now: float) -> list[Q] | None:
        """Remove and return the next batch; None if none is due yet. `now` is in seconds."""
        queue = self.queue
        if not queue.count:
            return None
        if not self._batching:
            return queue.take(1)
        if not self._closed and self._pending_count < queue.count:
            self._extend_pending()
        if self._delay_s and now >= queue.oldest_s() + self._delay_s:
            count = self._pending_count
        elif self._preferred_count:
            count = self._preferred_count
        elif self._closed or not self._delay_s:
            count = self._pending_count
        else:
            return None
        self._forget_pending()
        batch = queue.take(count)
        if queue.has_levels:
            queue.count_taken(batch, now)
        return batch

    def wake_at(self) -> float | None:
        """The latest time at which `take` returns a batch, in seconds: the end of the oldest request's delay.

        In the past if there is no delay; None if the queue is empty.
        """
        if not self.queue.count:
            return None
        return self.queue.oldest_s() + self._delay_s if self._delay_s else next(iter(self.queue)).arrived_s

    def put_back(self, batch: list[Q]) -> None:
        """Queue a batch again whose instance died before it began, without a limit: see PolicyQueue."""
        self.queue.put_back(batch)
        self._forget_pending()

    def remove(self, cancelled: Q) -> bool:
        """Remove a cancelled request. False if it is not queued, because it was taken already."""
        if not self.queue.remove(cancelled):
            return False
        self._forget_pending()
        return True

    def drain(self) -> list[Q]:
        """Remove and return all requests, in order, for the caller to fail."""
        self._forget_pending()
        return self.queue.drain()

    def __len__(self) -> int:
        return self.queue.count

    def __repr__(self) -> str:
        return f"<Batcher [{self.queue.count} queued]>"

    def _forget_pending(self) -> None:
        if self.strategy is not None and self._pending_count:
            self.strategy.end()
        self._pending_count = self._pending_rows = self._preferred_count = 0
        self._closed = False

    def _extend_pending(self) -> None:
        """Examine the requests that arrived since the last call: each joins the pending batch, or closes it."""
        signature = next(iter(self.queue)).signature
        count, rows = self._pending_count, self._pending_rows
        for queued in islice(self.queue, count, None):
            total = rows + queued.rows
            if count:
                if total > self._preferred_max and not self._preferred_count:
                    self._preferred_count = count
                if total > self._max_batch_size or queued.signature != signature:
                    self._closed = True
                    break
            if self.strategy is not None and not self._is_wanted(queued, first=not count):
                self._closed = True
                break
            count += 1
            rows = total
            if rows in self._preferred or (rows > self._preferred_max and not self._preferred_count):
                self._preferred_count = count
        self._pending_count, self._pending_rows = count, rows

    def _is_wanted(self, queued: Q, *, first: bool) -> bool:
        """Whether the strategy accepts a request in the pending batch; the `first` request begins a batch."""
        assert self.strategy is not None  # the callers check it
        if first:
            self.strategy.begin()
        return self.strategy.include(queued) or first

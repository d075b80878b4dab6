# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which queued requests form a batch, and when. (pure)

The queue is in order of arrival, and a batch is always its front: requests never overtake one another, and no request
is split. Without `dynamic_batching` every request is a batch of its own, at once. With it:

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
place became free, and at `wake_at()`. The preferred front and the end of the pending batch are kept between calls, so
each request is examined once, however often the caller asks.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from pyruntime.runtime.config.spec import DynamicBatchingSpec
from pyruntime.utils.errors import PyruntimeError

_arrived_s = attrgetter("arrived_s")


Q = TypeVar("Q", bound="Waiting")
W = TypeVar("W", contravariant=True)


class QueueFull(PyruntimeError):
    """`max_queue_size` requests wait already. The client receives this message, with Triton's code UNAVAILABLE."""

    def __init__(self) -> None:
        super().__init__("Exceeds maximum queue size")


class Waiting(Protocol):
    """The properties of a waiting request that a batcher uses.

    `rows` is its batch size; `arrived_s` is a time on the clock of `take`. `signature` is only compared for equality:
    requests with different signatures never share a batch.
    """

    @property
    def rows(self) -> int: ...
    @property
    def arrived_s(self) -> float: ...
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
        "_max_queue_size",
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
        # By identity, so that removing a request takes constant time: a thousand clients may disconnect at once.
        # Callers may only test whether it is empty.
        self.queue: OrderedDict[int, Q] = OrderedDict()
        self._batching = batching is not None
        self._max_batch_size = max(1, max_batch_size)
        self._delay_s = batching.max_queue_delay_us / 1e6 if batching else 0.0
        self._max_queue_size = (batching.max_queue_size if batching else 0) or sys.maxsize
        self._preferred = frozenset(batching.preferred_batch_sizes if batching else ()) or {self._max_batch_size}
        self._preferred_max = max(self._preferred)
        self.strategy = strategy
        self._pending_count = 0
        self._forget_pending()

    def submit(self, queued: Q) -> None:
        """Queue a request behind all others. Raises QueueFull, and then changes nothing."""
        if len(self.queue) >= self._max_queue_size:
            raise QueueFull
        self.queue[id(queued)] = queued

    def requeue(self, queued: Q) -> None:
        """Queue an earlier admitted request behind all others; `max_queue_size` does not apply to it."""
        self.queue[id(queued)] = queued

    def take(self, now: float) -> list[Q] | None:
        """Remove and return the next batch; None if none is due yet. `now` is in seconds."""
        queue = self.queue
        if not queue:
            return None
        if not self._batching:
            return [queue.popitem(last=False)[1]]
        if not self._closed and self._pending_count < len(queue):
            self._extend_pending()
        if self._delay_s and now >= self._oldest().arrived_s + self._delay_s:
            count = self._pending_count
        elif self._preferred_count:
            count = self._preferred_count
        elif self._closed or not self._delay_s:
            count = self._pending_count
        else:
            return None
        self._forget_pending()
        return [queue.popitem(last=False)[1] for _ in range(count)]

    def wake_at(self) -> float | None:
        """The latest time at which `take` returns a batch, in seconds: the end of the oldest request's delay.

        In the past if there is no delay; None if the queue is empty.
        """
        return self._oldest().arrived_s + self._delay_s if self.queue else None

    def put_back(self, batch: list[Q]) -> None:
        """Queue a batch again whose instance died before it began. It goes before all requests that arrived later.

        `max_queue_size` does not apply, because these requests were admitted before.
        """
        # sorted() is stable, so the batch stays before requests that arrived at the same time.
        waiting = sorted([*batch, *self.queue.values()], key=_arrived_s)
        self.queue = OrderedDict((id(queued), queued) for queued in waiting)
        self._forget_pending()

    def remove(self, cancelled: Q) -> bool:
        """Remove a cancelled request. False if it is not queued, because it was taken already."""
        if self.queue.pop(id(cancelled), None) is None:
            return False
        self._forget_pending()
        return True

    def drain(self) -> list[Q]:
        """Remove and return all requests, in order, for the caller to fail."""
        everything = list(self.queue.values())
        self.queue.clear()
        self._forget_pending()
        return everything

    def __len__(self) -> int:
        return len(self.queue)

    def __repr__(self) -> str:
        return f"<Batcher [{len(self.queue)} queued]>"

    def _oldest(self) -> Q:
        return next(iter(self.queue.values()))

    def _forget_pending(self) -> None:
        if self.strategy is not None and self._pending_count:
            self.strategy.end()
        self._pending_count = self._pending_rows = self._preferred_count = 0
        self._closed = False

    def _extend_pending(self) -> None:
        """Examine the requests that arrived since the last call: each joins the pending batch, or closes it."""
        signature = self._oldest().signature
        count, rows = self._pending_count, self._pending_rows
        for queued in islice(self.queue.values(), count, None):
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

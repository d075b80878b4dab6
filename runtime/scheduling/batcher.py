# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which queued requests are executed together, and when. (pure)

The queue is in order of arrival, and a batch is always its front: requests never overtake one another, and one
request is never split. Without `dynamic_batching` every request is a batch of its own, at once. With it:

*The pending batch* is the longest front of the queue whose rows fit into `max_batch_size` and whose requests all have
the same signature. It is *closed* once the request behind it does not fit or has another signature: it cannot grow.

*The preferred front* is the longest front of the pending batch that has exactly a preferred number of rows. Where no
front has, it is what stands before the request that leads past the largest preferred size (or that request alone, at
the head of the queue): waiting for a preferred size would be in vain. Without preferred sizes, `max_batch_size` is one.

`take(now)` then answers, by the first of these that holds:

1. the pending batch, if there is a delay and the oldest request has waited for as long as that;
2. the preferred front, if there is one;
3. the pending batch, if it is closed or there is no delay;
4. nothing: more requests may still come.

A model may have a *strategy* of its own: it is asked about each request that would join the pending batch by the rules
above, its first one too, and one that it does not want closes the batch. The first request of a batch is in it
whatever the strategy says: it has to be executed some time.

This module decides, it does not run anything: the caller asks `take` whenever an instance has a free place and a
request arrived, a place became free, or `wake_at()` came. The preferred front and the end of the pending batch are
kept from one call to the next, so each request is looked at once however often the caller asks.
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
    """`max_queue_size` requests wait already. The client reads this message, with Triton's UNAVAILABLE."""

    def __init__(self) -> None:
        super().__init__("Exceeds maximum queue size")


class Waiting(Protocol):
    """What a batcher needs to know of a waiting request.

    `rows` is its batch size; `arrived_s` is on the clock that `take` is asked by. `signature` is compared for equality
    only: requests of different signatures never share a batch.
    """

    @property
    def rows(self) -> int: ...
    @property
    def arrived_s(self) -> float: ...
    @property
    def signature(self) -> Hashable | None: ...


class Strategy(Protocol[W]):
    """Has a say in which requests are executed together. It is asked about one batch at a time."""

    def begin(self) -> None:
        """A batch is being formed, out of the oldest requests."""

    def include(self, queued: W, /) -> bool:
        """Whether a request is to join the batch."""

    def end(self) -> None:
        """The batch is formed, or will be formed anew."""


class Batcher(Generic[Q]):
    """The queue of one model version. `batching` None: every request alone, and no limit on how many wait.

    `strategy` is the model's own, None for none; it may be given at any time.
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

    def __init__(self, max_batch_size: int, batching: DynamicBatchingSpec | None) -> None:
        # By identity, so that any of them can be taken out at once: a thousand clients may hang up together. The caller
        # may look whether it is empty.
        self.queue: OrderedDict[int, Q] = OrderedDict()
        self._batching = batching is not None
        self._max_batch_size = max(1, max_batch_size)
        self._delay_s = batching.max_queue_delay_us / 1e6 if batching else 0.0
        self._max_queue_size = (batching.max_queue_size if batching else 0) or sys.maxsize
        self._preferred = frozenset(batching.preferred_batch_sizes if batching else ()) or {self._max_batch_size}
        self._preferred_max = max(self._preferred)
        self.strategy: Strategy[Q] | None = None
        self._pending_count = 0
        self._forget_pending()

    def submit(self, queued: Q) -> None:
        """Queue one request behind all others. Raises QueueFull, and leaves the queue as it is."""
        if len(self.queue) >= self._max_queue_size:
            raise QueueFull
        self.queue[id(queued)] = queued

    def requeue(self, queued: Q) -> None:
        """Queue a request behind all others that was admitted once, so that `max_queue_size` does not refuse it."""
        self.queue[id(queued)] = queued

    def take(self, now: float) -> list[Q] | None:
        """The next batch, no longer queued then; None if there is nothing to execute yet. `now` in seconds."""
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
        """When `take` answers a batch at the latest, in seconds: the oldest request's delay is over then.

        In the past where there is no delay; None if nothing is queued.
        """
        return self._oldest().arrived_s + self._delay_s if self.queue else None

    def put_back(self, batch: list[Q]) -> None:
        """Queue a batch again whose instance died before it began: in order of arrival, so before all later requests.

        These requests were admitted once, so `max_queue_size` does not refuse them.
        """
        # sorted() keeps the order of equals, so the batch stays in front of what arrived at the same moment.
        waiting = sorted([*batch, *self.queue.values()], key=_arrived_s)
        self.queue = OrderedDict((id(queued), queued) for queued in waiting)
        self._forget_pending()

    def remove(self, cancelled: Q) -> bool:
        """Take out a request that was cancelled while queued. False if it is not queued: it was taken already."""
        if self.queue.pop(id(cancelled), None) is None:
            return False
        self._forget_pending()
        return True

    def drain(self) -> list[Q]:
        """Take out everything, in order, for the caller to fail."""
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
        """Look at the requests that came since the last time: do they join the pending batch, or close it?"""
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
        """Whether the strategy wants a request in the pending batch, which it begins if it is the `first`."""
        assert self.strategy is not None  # who asks has looked
        if first:
            self.strategy.begin()
        return self.strategy.include(queued) or first

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The queue of a model version: its order, its limits and its deadlines. (pure)

Requests queue by priority level, 1 first, and within a level by arrival. A request without a priority, or with one that
the model does not have, is of the default level. The policy of a level says how many requests may wait in it, and for
how long. A request that has waited too long leaves the queue (REJECT), or goes behind the others of its level (DELAY).
Its own timeout may make that time shorter, where the policy allows it.

*No level starves.* A batch takes requests in the order of the queue, so a level may be passed over as long as those
before it have requests. A level with waiting requests that PASSED_OVER_MAX batches have passed over has its turn: the
next batch begins with it. If several levels have, the one that was passed over most often comes first, or of those the
one whose first request came first. So of n levels each has a request in one of any PASSED_OVER_MAX + n batches.

Thousands of levels may have requests. A batch looks only at those that it takes requests from: how often a level was
passed over is the number of batches since it was last served, and the level that waits longest for that comes first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, count
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from pyruntime.runtime.config.spec import DynamicBatchingSpec, QueuePolicySpec
from pyruntime.runtime.observe.level_statistics import LEVELS_SHOWN_MAX, LevelStatistics, shown_levels
from pyruntime.utils.errors import PyruntimeError

# How many batches in a row may leave a level with waiting requests out.
PASSED_OVER_MAX = 16
# Deadlines of requests that have left the queue are forgotten when there are more of them than this and than others.
_STALE_KEPT = 64

_arrived_s = attrgetter("arrived_s")


class Queued(Protocol):
    """The properties of a request that its place in the queue depends on.

    `arrived_s` is a time on the clock of `expire`. `priority` 0 stands for the default level, `timeout_s` 0 for none.
    """

    @property
    def arrived_s(self) -> float: ...
    @property
    def priority(self) -> int: ...
    @property
    def timeout_s(self) -> float: ...


Q = TypeVar("Q", bound=Queued)


class QueueFull(PyruntimeError):
    """`max_queue_size` requests wait already. The client receives this message, with Triton's code UNAVAILABLE."""

    def __init__(self) -> None:
        super().__init__("Exceeds maximum queue size")


class _Level(Generic[Q]):
    """One priority level: requests in time, and those that are late, each in order."""

    __slots__ = ("again", "in_time", "late", "policy", "served_at", "statistics")

    def __init__(self, policy: QueuePolicySpec, statistics: LevelStatistics) -> None:
        # By identity, so that removing a request takes constant time: a thousand clients may disconnect at once.
        self.in_time: OrderedDict[int, Q] = OrderedDict()
        self.late: OrderedDict[int, Q] = OrderedDict()
        # The identities of requests in time that their model has begun. They queue by the time of that.
        self.again: set[int] = set()
        self.policy = policy
        # The number of the batch that was taken last when the level was served, or had its first request.
        self.served_at = 0
        self.statistics = statistics

    def __len__(self) -> int:
        return len(self.in_time) + len(self.late)

    def __iter__(self) -> Iterator[Q]:
        return chain(self.in_time.values(), self.late.values())

    def oldest_s(self) -> float:
        """When the first request arrived, of those in time and those that are late. There must be one."""
        return min(next(iter(waiting.values())).arrived_s for waiting in (self.in_time, self.late) if waiting)

    def put_back(self, batch: list[Q]) -> None:
        """Place requests, in order of arrival, before those that arrived later or have begun since."""
        ordered: list[Q] = []
        at = 0
        for each in self.in_time.values():
            has_begun = id(each) in self.again
            # The batch stays before requests that arrived at the same time.
            while at < len(batch) and (has_begun or batch[at].arrived_s <= each.arrived_s):
                ordered.append(batch[at])
                at += 1
            ordered.append(each)
        ordered += batch[at:]
        self.in_time = OrderedDict((id(each), each) for each in ordered)


class _Due(Generic[Q]):
    """A request with a deadline; None once it has left the queue, or is late."""

    __slots__ = ("queued",)

    def __init__(self, queued: Q) -> None:
        self.queued: Q | None = queued


class PolicyQueue(Generic[Q]):
    """See the module. `count` is the number of waiting requests, and `has_levels` whether the model has priority
    levels, for callers to read.
    """

    __slots__ = (
        "_batching",
        "_deadlines",
        "_due",
        "_levels",
        "_numbers",
        "_oldest",
        "_serials",
        "_statistics",
        "_taken_count",
        "_turn",
        "_unserved",
        "count",
        "has_levels",
    )

    def __init__(self, batching: DynamicBatchingSpec) -> None:
        self.count = 0
        self.has_levels = batching.priority_levels > 0
        self._batching = batching
        # The levels with requests, and of the first LEVELS_SHOWN_MAX those that ever had one; and the numbers of those
        # with requests, in order.
        self._levels: dict[int, _Level[Q]] = {}
        # By number; the levels above LEVELS_SHOWN_MAX, which may be too many to keep, have one in common.
        self._statistics: dict[int, LevelStatistics] = {}
        self._numbers: list[int] = []
        # The level that comes before all others now, 0 for none.
        self._turn = 0
        # How many batches were taken; and the levels with requests, first the one that was served longest ago.
        self._taken_count = 0
        self._unserved: OrderedDict[int, None] = OrderedDict()
        # A heap of times and levels: for each level with requests there is a time that is not after `oldest_s` of it.
        self._oldest: list[tuple[float, int]] = []
        # A heap of deadlines in seconds, and what is due then; the latter also by the identities of requests.
        self._deadlines: list[tuple[float, int, _Due[Q]]] = []
        self._due: dict[int, _Due[Q]] = {}
        self._serials = count()

    def __iter__(self) -> Iterator[Q]:
        """All requests, in the order in which they are taken."""
        levels = self._levels
        return chain.from_iterable(levels[number] for number in self._order())

    def add(self, queued: Q) -> bool:
        """Queue a request. Returns whether it is the last one now. Raises QueueFull, and then changes nothing."""
        number = self._number(queued) if self.has_levels else 1
        level = self._levels.get(number)
        if level is None:
            level = self._level(number)
        policy = level.policy
        if policy.max_queue_size and len(level) >= policy.max_queue_size:
            level.statistics.rejected_count += 1
            raise QueueFull
        self._append(number, level, queued)
        if policy.default_timeout_us:
            self._set_deadline(policy, queued)
        return len(self._numbers) == 1 and not level.late

    def requeue(self, queued: Q) -> None:
        """Queue a request again that its model has begun: it has neither a limit nor a deadline."""
        number = self._number(queued)
        level = self._level(number)
        self._append(number, level, queued)
        level.again.add(id(queued))

    def put_back(self, batch: list[Q]) -> None:
        """Queue requests again that did not begin, before those of their levels that arrived later; without a limit."""
        by_level: dict[int, list[Q]] = {}
        for queued in sorted(batch, key=_arrived_s):
            by_level.setdefault(self._number(queued), []).append(queued)
        for number, each in by_level.items():
            level = self._level(number)
            if not level:
                self._filled(number, level)
            level.put_back(each)
            self._note_oldest(number, level)
            self.count += len(each)
            for queued in each:
                self._set_deadline(level.policy, queued)

    def take(self, number_of_requests: int) -> list[Q]:
        """Remove and return the first requests."""
        self._taken_count += 1
        if len(self._numbers) == 1:
            number = self._numbers[0]
            level = self._levels[number]
            if number_of_requests == self.count and not self._due:
                taken = list(level)
                level.in_time.clear()
                level.late.clear()
                level.again.clear()
                self.count = 0
            else:
                taken = [self._pop(level) for _ in range(number_of_requests)]
            self._turn = 0
            self._served(number, level)
            return taken
        return self._take_of_many(number_of_requests)

    def remove(self, queued: Q) -> bool:
        """Remove a request. False if it is not queued."""
        number = self._number(queued)
        level = self._levels.get(number)
        if level is None:
            return False
        if level.in_time.pop(id(queued), None) is None and level.late.pop(id(queued), None) is None:
            return False
        level.again.discard(id(queued))
        self._left(number, level, queued)
        return True

    def expire(self, now: float) -> tuple[list[Q], bool]:
        """Deal with deadlines before `now`, in seconds.

        Returns the requests that have left the queue, in the order of their deadlines, and whether any request is at
        another place now or gone.
        """
        rejected: list[Q] = []
        deadlines = self._deadlines
        changed = False
        while deadlines and deadlines[0][0] < now:
            queued = heappop(deadlines)[2].queued
            if queued is None:
                continue
            changed = True
            number = self._number(queued)
            level = self._levels[number]
            del level.in_time[id(queued)]
            level.statistics.timed_out_count += 1
            if level.policy.delays:
                del self._due[id(queued)]
                level.late[id(queued)] = queued
            else:
                self._left(number, level, queued)
                rejected.append(queued)
        return rejected, changed

    @property
    def has_deadlines(self) -> bool:
        """Whether any request has a deadline, or had one a short while ago."""
        return bool(self._deadlines)

    def deadline(self) -> float | None:
        """The time after which `expire` has something to do, in seconds; None if there is no deadline."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].queued is None:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def oldest_s(self) -> float:
        """When the oldest request arrived. There must be one."""
        if len(self._numbers) == 1:
            return self._levels[self._numbers[0]].oldest_s()
        while True:
            arrived_s, number = self._oldest[0]
            level = self._levels.get(number)
            if not level:
                heappop(self._oldest)
            elif level.oldest_s() != arrived_s:
                heapreplace(self._oldest, (level.oldest_s(), number))
            else:
                return arrived_s

    def count_taken(self, taken: list[Q], now: float) -> None:
        """Count requests that were taken for an instance, at `now`, in seconds. Only for queues with levels."""
        for queued in taken:
            statistics = self._statistics_of(self._number(queued))
            statistics.taken_count += 1
            statistics.wait_s += max(0.0, now - queued.arrived_s)

    def levels(self) -> dict[str, LevelStatistics]:
        """The requests of each priority level, by its name; empty for a model without levels."""
        for statistics in self._statistics.values():
            statistics.waiting = 0
        for level in self._levels.values():
            level.statistics.waiting += len(level)
        return shown_levels(self._batching.priority_levels, self._statistics) if self.has_levels else {}

    def drain(self) -> list[Q]:
        """Remove and return all requests, in order."""
        everything = list(self)
        for queued in everything:
            self.remove(queued)
        return everything

    def _number(self, queued: Q) -> int:
        batching = self._batching
        levels = batching.priority_levels
        if not levels:
            return 1
        return queued.priority if 1 <= queued.priority <= levels else batching.default_priority_level

    def _level(self, number: int) -> _Level[Q]:
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level(self._batching.policy_of(number), self._statistics_of(number))
        return level

    def _statistics_of(self, number: int) -> LevelStatistics:
        return self._statistics.setdefault(min(number, LEVELS_SHOWN_MAX + 1), LevelStatistics())

    def _order(self) -> Iterable[int]:
        """The numbers of levels with requests, in the order in which they are taken."""
        turn = self._turn
        if not turn:
            return self._numbers
        return chain((turn,), (number for number in self._numbers if number != turn))

    def _append(self, number: int, level: _Level[Q], queued: Q) -> None:
        is_first = not level.in_time and not level.late
        level.in_time[id(queued)] = queued
        self.count += 1
        if is_first:
            self._filled(number, level)
            if self.has_levels:
                self._note_oldest(number, level)

    def _pop(self, level: _Level[Q]) -> Q:
        identity, queued = (level.in_time or level.late).popitem(last=False)
        if level.again:
            level.again.discard(identity)
        self.count -= 1
        if self._due:
            self._forget_deadline(queued)
        return queued

    def _left(self, number: int, level: _Level[Q], queued: Q) -> None:
        self.count -= 1
        self._forget_deadline(queued)
        if level:
            self._note_oldest(number, level)
        else:
            self._emptied(number, level)

    def _filled(self, number: int, level: _Level[Q]) -> None:
        """A level gets its first request."""
        insort(self._numbers, number)
        level.served_at = self._taken_count
        self._unserved[number] = None

    def _note_oldest(self, number: int, level: _Level[Q]) -> None:
        """Another request may be the first one of a level."""
        if not self.has_levels:
            return
        heappush(self._oldest, (level.oldest_s(), number))
        if len(self._oldest) > 2 * len(self._numbers) + _STALE_KEPT:
            self._oldest = [(self._levels[each].oldest_s(), each) for each in self._numbers]
            heapify(self._oldest)

    def _served(self, number: int, level: _Level[Q]) -> None:
        """A batch has taken requests of a level."""
        if level.in_time or level.late:
            level.served_at = self._taken_count
            self._unserved.move_to_end(number)
            if self.has_levels:
                self._note_oldest(number, level)
        else:
            self._emptied(number, level)

    def _emptied(self, number: int, level: _Level[Q]) -> None:
        del self._numbers[bisect_left(self._numbers, number)]
        del self._unserved[number]
        if self._turn == number:
            self._turn = 0
        if number > LEVELS_SHOWN_MAX:
            del self._levels[number]

    def _take_of_many(self, number_of_requests: int) -> list[Q]:
        """`take` where several levels have requests, each of which is served or passed over."""
        taken: list[Q] = []
        while len(taken) < number_of_requests:
            number = self._turn or self._numbers[0]
            level = self._levels[number]
            while level and len(taken) < number_of_requests:
                taken.append(self._pop(level))
            self._served(number, level)
            self._turn = 0
        longest = next(iter(self._unserved), 0)
        if longest and self._taken_count - self._levels[longest].served_at >= PASSED_OVER_MAX:
            self._turn = longest
        return taken

    def _set_deadline(self, policy: QueuePolicySpec, queued: Q) -> None:
        timeout_s = policy.default_timeout_us / 1e6
        if not timeout_s:
            return
        if policy.allow_timeout_override and 0 < queued.timeout_s < timeout_s:
            timeout_s = queued.timeout_s
        due = self._due[id(queued)] = _Due(queued)
        heappush(self._deadlines, (queued.arrived_s + timeout_s, next(self._serials), due))

    def _forget_deadline(self, queued: Q) -> None:
        due = self._due.pop(id(queued), None)
        if due is None:
            return
        due.queued = None
        if len(self._deadlines) > 2 * len(self._due) + _STALE_KEPT:
            self._deadlines = [each for each in self._deadlines if each[2].queued is not None]
            heapify(self._deadlines)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which instances may execute now, by the resources that they share. (pure)

An instance *requests* when there is work for it, is *granted* its resources when all of them are free, and *releases*
them when the execution has ended. It may hold them several times, if it executes several batches at a time.

The order is stride scheduling. For each resource an instance has a *tag*, which grows by its priority with each grant,
and the resource has a *time*, which is the tag of the latest grant. Of the instances that wait, the one goes first
whose tag is the least ahead of the time of a resource that it needs; so an instance of priority 2 has half the turns of
one of priority 1. For instances that share one resource that is Triton's order, by the number of executions times the
priority. There an instance that was loaded later, or had nothing to do for a while, keeps all others waiting until it
has caught up; here its tags catch up with the time when it requests.

An instance that waits for a resource reserves all that it needs: none behind it is granted one of these. So no instance
starves, and one that needs nothing of it goes on. (Triton grants nothing at all to those behind the first.) An *urgent*
request ignores the reservations of others: it is for a call that one of these waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic

from pyruntime.runtime.scheduling.resources import K, Needs, Resource, Resources
from pyruntime.runtime.settings import ResourceLimit


@dataclass(slots=True, eq=False)
class _Instance:
    """An instance: its tag for each resource, and how many grants it holds. `number` tells the order of requests."""

    needs: Needs
    priority: int
    tags: dict[Resource, int]
    held: int = 0
    number: int = 0
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Lack(Generic[K]):
    """Why an instance waits for one resource: `holders` hold so much of it, and may keep `spare` of that in all."""

    resource: Resource
    holders: Sequence[tuple[K, int]]
    spare: int


class RateLimiter(Generic[K]):
    """See the module. Instances are identified by keys of the caller. `limits` are the operator's: see Resources."""

    def __init__(self, limits: Iterable[ResourceLimit] = ()) -> None:
        self._resources: Resources[K] = Resources(limits)
        self._instances: dict[K, _Instance] = {}
        self._waiting: dict[K, _Instance] = {}
        self._used: dict[Resource, int] = {}
        self._times: dict[Resource, int] = {}
        self._numbers = count(1)

    def __repr__(self) -> str:
        held = sum(instance.held for instance in self._instances.values())
        return f"<RateLimiter [{len(self._instances)} instances, {len(self._waiting)} waiting, {held} granted]>"

    def __contains__(self, key: K) -> bool:
        return key in self._instances

    def add(self, key: K, needs: Needs, priority: int) -> None:
        """An instance, which needs something. Priorities begin at 1; 0 is the same. Raises LoadError: see Resources."""
        self._resources.add(key, needs)
        self._instances[key] = _Instance(needs, max(priority, 1), dict.fromkeys(needs, 0))

    def remove(self, key: K) -> None:
        """An instance has ended: it waits for nothing and holds nothing."""
        self.withdraw(key)
        instance = self._instances.pop(key)
        for resource, amount in instance.needs.items():
            self._use(resource, -amount * instance.held)
        self._resources.remove(key)
        for resource in instance.needs:
            if not any(resource in other.needs for other in self._instances.values()):
                self._times.pop(resource, None)

    def request(self, key: K, *, urgent: bool = False) -> None:
        """There is work for an instance. It keeps its place if it waits already."""
        instance = self._instances[key]
        instance.urgent = urgent
        if key not in self._waiting:
            self._waiting[key] = instance
            instance.number = next(self._numbers)
            for resource, tag in instance.tags.items():
                instance.tags[resource] = max(tag, self._times.get(resource, 0))

    def withdraw(self, key: K) -> None:
        """There is no work any more. No effect if the instance does not wait."""
        self._waiting.pop(key, None)

    def grant(self) -> K | None:
        """Grant the next waiting instance its resources; None if none can have them now.

        The caller calls it until then, after each request, release and removal. The instance waits no longer.
        """
        if not self._waiting:
            return None
        reserved: set[Resource] = set()
        for key, instance in sorted(self._waiting.items(), key=lambda item: self._order(item[1])):
            if (instance.urgent or reserved.isdisjoint(instance.needs)) and self._fits(instance):
                self._grant(key, instance)
                return key
            reserved.update(instance.needs)
        return None

    def release(self, key: K) -> None:
        """An execution has ended."""
        instance = self._instances[key]
        instance.held -= 1
        for resource, amount in instance.needs.items():
            self._use(resource, -amount)

    def refuse(self, key: K) -> None:
        """There was nothing to execute after a grant. It is released, and does not count."""
        self.release(key)
        instance = self._instances[key]
        for resource in instance.tags:
            instance.tags[resource] -= instance.priority

    def lacks(self, key: K) -> list[Lack[K]]:
        """What a waiting instance waits for others to release; empty if only those before it keep it waiting."""
        lacks: list[Lack[K]] = []
        instance = self._waiting.get(key)
        if instance is None:
            return lacks
        for resource, amount in instance.needs.items():
            limit = self._resources.limit(resource)
            if self._used.get(resource, 0) + amount > limit:
                holders = [
                    (other, each.held * each.needs[resource])
                    for other, each in self._instances.items()
                    if each.held and resource in each.needs
                ]
                lacks.append(Lack(resource, holders, limit - amount))
        return lacks

    def before(self, key: K) -> list[K]:
        """The instances that keep a waiting instance waiting because they reserve something that it needs."""
        instance = self._instances[key]
        if instance.urgent or key not in self._waiting:
            return []
        place = self._order(instance)
        return [
            other
            for other, each in self._waiting.items()
            if self._order(each) < place and not each.needs.keys().isdisjoint(instance.needs) and not self._fits(each)
        ]

    def _order(self, instance: _Instance) -> tuple[int, int]:
        ahead = min(tag - self._times.get(resource, 0) for resource, tag in instance.tags.items())
        return ahead, instance.number

    def _fits(self, instance: _Instance) -> bool:
        return all(
            self._used.get(resource, 0) + amount <= self._resources.limit(resource)
            for resource, amount in instance.needs.items()
        )

    def _grant(self, key: K, instance: _Instance) -> None:
        del self._waiting[key]
        instance.held += 1
        for resource, amount in instance.needs.items():
            self._use(resource, amount)
            tag = instance.tags[resource]
            self._times[resource] = max(tag, self._times.get(resource, 0))
            instance.tags[resource] = tag + instance.priority

    def _use(self, resource: Resource, amount: int) -> None:
        used = self._used.pop(resource, 0) + amount
        if used:
            self._used[resource] = used

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Knows how much of each resource there is for the instances of a server. (pure)

The operator says it with --rate-limit-resource. If no resource is given, there is as much of each one as the instance
that needs the most of it: so each instance can execute, and what executes together never needs more. As in Triton,
these maxima follow the instances as they come and go, and an instance that could never execute is not loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from pyruntime.runtime.settings import ResourceLimit
from pyruntime.utils.errors import Code, LoadError

K = TypeVar("K")


class Resource(NamedTuple):
    """A resource of one device; or of the whole server, where `device` is None."""

    name: str
    device: int | None


# How much an execution needs of each resource.
Needs = Mapping[Resource, int]


class Resources(Generic[K]):
    """See the module. `limits` are the operator's. The instances are identified by keys of the caller."""

    def __init__(self, limits: Iterable[ResourceLimit]) -> None:
        self._limits = tuple(limits)
        self._needs: dict[K, Needs] = {}
        self._maxima: dict[Resource, int] = {}

    def add(self, key: K, needs: Needs) -> None:
        """An instance that is being loaded needs these. Raises LoadError if it could never have them."""
        for resource, count in needs.items():
            self._check(resource, count)
        self._needs[key] = needs
        for resource, count in needs.items():
            self._maxima[resource] = max(count, self._maxima.get(resource, 0))

    def remove(self, key: K) -> None:
        """An instance has ended."""
        left = self._needs.pop(key)
        for resource in left:
            counts = [needs[resource] for needs in self._needs.values() if resource in needs]
            if counts:
                self._maxima[resource] = max(counts)
            else:
                del self._maxima[resource]

    def limit(self, resource: Resource) -> int:
        """How much there is of a resource."""
        return self._given(resource) if self._limits else self._maxima.get(resource, 0)

    def _given(self, resource: Resource) -> int:
        """What the operator says. A value for a device is for that device, and any value for a global resource."""
        amounts = (
            each.amount
            for each in self._limits
            if each.name == resource.name
            and (resource.device is None or each.device is None or each.device == resource.device)
        )
        return max(amounts, default=0)

    def _check(self, resource: Resource, count: int) -> None:
        if any(
            each.name == resource.name and (each.device is None) != (resource.device is None) for each in self._maxima
        ):
            raise LoadError(
                f'Resource "{resource.name}" is present as both global and device-specific resource in the model '
                "configuration.",
                Code.INVALID_ARG,
            )
        if self._limits and count > (limit := self._given(resource)):
            raise LoadError(
                f'Resource count for "{resource.name}" is limited to {limit} which will prevent scheduling of one or '
                f"more model instances, the minimum required count is {count}",
                Code.INVALID_ARG,
            )

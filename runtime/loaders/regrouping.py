# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which instances of a version stay when only its instance groups change. (pure)

For each instance of the new groups one stays that has its signature, if there is one: that of its name, or else the
first of those that are left. An instance that stays keeps its name, its process and its state. The others of the new
groups are started, and what is left of the old ones leaves.

Triton re-uses the last one with the signature instead, and names the new ones without regard to those that stay, so
that two instances may have one name. Here names are unique: metrics and messages identify an instance by its name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from typing import Protocol, TypeVar


class Instance(Protocol):
    """An instance that there is, or shall be. Those with equal signatures differ in nothing but the name."""

    @property
    def name(self) -> str: ...

    @property
    def signature(self) -> Hashable: ...


P = TypeVar("P", bound=Instance)


def regroup(present: Sequence[P], wanted: Sequence[Instance]) -> list[tuple[str, P | None]]:
    """For each of the `wanted` instances its name, and the `present` one that stays; None for one to be started."""
    left = {each.name: each for each in present}
    staying: dict[int, P] = {}
    for index, each in enumerate(wanted):
        if each.name in left and left[each.name].signature == each.signature:
            staying[index] = left.pop(each.name)
    for index, each in enumerate(wanted):
        alike = (name for name, other in left.items() if other.signature == each.signature)
        if index not in staying and (name := next(alike, None)) is not None:
            staying[index] = left.pop(name)
    taken = {each.name for each in staying.values()}
    result: list[tuple[str, P | None]] = []
    for index, each in enumerate(wanted):
        stays = staying.get(index)
        name = _free_name(each.name, taken) if stays is None else stays.name
        taken.add(name)
        result.append((name, stays))
    return result


def _free_name(name: str, taken: set[str]) -> str:
    """`<group>_<i>`, or the same with the next number that is not taken."""
    group, _, number = name.rpartition("_")
    return next(each for i in count(int(number)) if (each := f"{group}_{i}") not in taken)

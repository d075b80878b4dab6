# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides whether a `requires-python` specifier admits a version of Python. (pure)

It supports the part of version specifiers that applies to released interpreters: numbers, wildcards and all comparison
operators. It ignores suffixes such as `rc1`.
"""

from __future__ import annotations

import re

from pyruntime.utils.errors import LoadError

Version = tuple[int, ...]
_CLAUSE = re.compile(r"(~=|===|==|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?(?:[-.]?[a-z]+[a-z0-9.+]*)?", re.IGNORECASE)


def admits(specifier: str, version: Version) -> bool:
    """Whether `specifier` admits `version`. An empty specifier admits all. Raises LoadError if it is invalid."""
    return all(_clause_admits(clause.strip(), specifier, version) for clause in specifier.split(",") if clause.strip())


def _clause_admits(clause: str, specifier: str, version: Version) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise LoadError(
            f'requires-python is "{specifier}", of which "{clause}" is not understood; ">=3.10,<3.13" would be'
        )
    operator, numbers, wildcard = match[1], match[2], match[3]
    wanted = tuple(map(int, numbers.split(".")))
    if operator == "~=":
        return _padded(version) >= _padded(wanted) and version[: len(wanted) - 1] == wanted[:-1]
    if wildcard:
        same = version[: len(wanted)] == wanted
        return not same if operator == "!=" else same
    ours, theirs = _padded(version), _padded(wanted)
    return {
        "===": ours == theirs,
        "==": ours == theirs,
        "!=": ours != theirs,
        "<=": ours <= theirs,
        ">=": ours >= theirs,
        "<": ours < theirs,
        ">": ours > theirs,
    }[operator]


def _padded(version: Version) -> Version:
    return (*version, 0, 0, 0)[: max(3, len(version))]

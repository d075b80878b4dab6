# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the answers of two servers. (pure)

An answer is a value of JSON. What must differ is made equal first: times, versions of servers, and the folders of their
repositories. Paths in tracebacks are relative to the model's folder in answers of pyruntime, and in those of Triton
made so.
"""

import re
from dataclasses import dataclass

# Members whose values are times.
_TIMES = re.compile(r"(^|\.)(ns|last_inference)$")
_SERVER = ("triton", "pyruntime")


@dataclass(frozen=True)
class Difference:
    """A place in an answer and what each of the servers has there; None for nothing."""

    place: str
    first: object
    second: object


def normalise(answer, repository, place=""):
    """The answer without what no two servers have in common. `repository` is the folder of the server's models."""
    if isinstance(answer, dict):
        if answer.get("count"):  # a time may be too short to be seen
            answer = {name: value for name, value in answer.items() if name != "ns"}
        if answer.get("name") in _SERVER and "extensions" in answer:
            answer = {**answer, "name": "the server", "version": "any"}
        return {name: normalise(value, repository, f"{place}.{name}") for name, value in answer.items()}
    if isinstance(answer, list):
        return [normalise(value, repository, place) for value in answer]
    if _TIMES.search(place):
        return "some time" if int(answer) else 0
    if isinstance(answer, str):
        return re.sub(re.escape(repository) + r"/[^/]+/(?=.*\.py\(\d+\): )", "", answer).replace(
            repository, "{repository}"
        )
    return answer


def differences(first, second, place=""):
    """The differences of two normalised answers, by their places. Numbers and booleans are never equal."""
    if isinstance(first, dict) and isinstance(second, dict):
        found = []
        for name in sorted(first.keys() | second.keys()):
            found += differences(first.get(name), second.get(name), f"{place}.{name}" if place else name)
        return found
    if _are_rows(first) and _are_rows(second):
        return differences(_by_name(first), _by_name(second), place)
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        found = []
        for index, (one, other) in enumerate(zip(first, second)):
            found += differences(one, other, f"{place}[{index}]")
        return found
    if type(first) is type(second) and (first == second or (first != first and second != second)):
        return []
    if {type(first), type(second)} == {int, float} and first == second:
        return []
    return [Difference(place, first, second)]


def _are_rows(value):
    """Whether this is an index: a list of objects with names, some of which have states."""
    is_list = isinstance(value, list) and all(isinstance(row, dict) and "name" in row for row in value)
    return is_list and any("state" in row for row in value)


def _by_name(rows):
    return {f"{row['name']} {row.get('version', '')}".strip(): row for row in rows}


def verdict(case, found):
    """How a case ended: "same", "on purpose", "different", or "stale" where a known difference is gone."""
    if case.different:
        return "on purpose" if found else "stale"
    return "different" if found else "same"

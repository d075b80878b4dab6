# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the metrics of native backends as lines of the metrics page. (pure)

The extension stores them, because backends read them back. Names and labels are those that backends gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from pyruntime.runtime.observe.built_in import LOCAL_CACHE, SAMPLE_NAMES
from pyruntime.runtime.observe.exposition import family_head, labels_text, number_text
from pyruntime.runtime.observe.families import Family, sample_names

# TRITONSERVER_MetricKind.
_KINDS = ("counter", "gauge", "histogram")
# Names of the server's own families. A library may be the cache that makes those of the cache.
_OURS = SAMPLE_NAMES - {family.name for family in LOCAL_CACHE}
# A comment on the page, for users who miss the family.
_LEFT_OUT = "# metric family '{}' of a native backend is left out: another has samples of its names\n"

# The bounds of a histogram, the number of observations up to each of them, their sum, and their number.
HistogramValue: TypeAlias = tuple[Sequence[float], Sequence[int], float, int]
# The name, kind and description of each family, and its metrics with their labels.
Snapshot: TypeAlias = Sequence[tuple[str, int, str, Sequence[tuple[Mapping[str, str], "float | HistogramValue"]]]]


def native_lines(snapshot: Snapshot, families: Mapping[str, Family]) -> dict[str, str]:
    """The lines of the families that `_triton.metrics` returns, by name; families without a metric have no lines.

    `families` are those of Python models; native code cannot check that its names differ from theirs. A native family
    with the name and kind of a Python family is merged into it: the lines of the Python family come first, and win if
    the labels are equal. If only the name is equal, the native family is omitted, because two families with the same
    sample names would make the page invalid.
    """
    taken = _OURS.union(*[family.sample_names() for family in families.values()])
    lines = {}
    for name, number, description, metrics in snapshot:
        there, kind = families.get(name), _KINDS[number]
        if there is not None and there.kind == kind:
            metrics = [each for each in metrics if labels_text(each[0]) not in there.metrics]
            head = "" if there.metrics else family_head(name, description, kind)
        elif not taken.isdisjoint(sample_names(name, kind)):
            lines[name] = _LEFT_OUT.format(name)
            continue
        else:
            head = family_head(name, description, kind)
        if metrics:
            lines[name] = head + "".join([_lines(name, *metric) for metric in metrics])
    return lines


def native_gauges(snapshot: Snapshot, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, str, float]]:
    """The name, the labels and the value of each gauge whose family is wanted, by its name."""
    for name, number, _, metrics in snapshot:
        if _KINDS[number] == "gauge" and is_wanted(name):
            for labels, value in metrics:
                if not isinstance(value, tuple):
                    yield name, labels_text(labels), value


def _lines(name: str, labels: Mapping[str, str], value: float | HistogramValue) -> str:
    return _histogram(name, labels, *value) if isinstance(value, tuple) else _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{name}{_braced(labels_text(labels))} {number_text(value)}\n"


def _histogram(
    name: str, labels: Mapping[str, str], bounds: Sequence[float], counts: Sequence[int], total: float, count: int
) -> str:
    """`counts` are cumulative: the number of observations up to each bound."""
    text = labels_text(labels)
    comma = "," if text else ""
    les = [*map(number_text, bounds), "+Inf"]
    lines = [
        f'{name}_bucket{{{text}{comma}le="{le}"}} {below}\n'
        for le, below in zip(les, [*counts[: len(bounds)], count], strict=True)
    ]
    return "".join([*lines, _sample(f"{name}_sum", labels, total), _sample(f"{name}_count", labels, count)])


def _braced(text: str) -> str:
    return f"{{{text}}}" if text else ""

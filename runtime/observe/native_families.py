# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics that native backends have made, as lines of the metrics page. (pure)

The extension keeps them, because backends read them back; names and labels are as backends gave them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyruntime.runtime.observe.built_in import SAMPLE_NAMES
from pyruntime.runtime.observe.exposition import family_head, labels_text, number_text
from pyruntime.runtime.observe.families import Family, sample_names

# TRITONSERVER_MetricKind.
_KINDS = ("counter", "gauge", "histogram")
# A comment, for whoever looks for the family on the page.
_LEFT_OUT = "# metric family '{}' of a native backend is left out: another has samples of its names\n"

Snapshot = Sequence[tuple[str, int, str, Sequence[tuple[Mapping[str, str], Any]]]]


def native_lines(snapshot: Snapshot, families: Mapping[str, Family]) -> dict[str, str]:
    """The lines of what `_triton.metrics` returns, by family; families without a metric have none.

    `families` are those of models in Python, in whose lines native code could not look for a name of its own. One of
    the same name and kind is the same family: its lines come first, and stand for metrics that have the same labels.
    Else samples of one name would be those of two families, and nobody could read the page: the native one is left out.
    """
    taken = SAMPLE_NAMES.union(*[family.sample_names() for family in families.values()])
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
            lines[name] = head + "".join([_lines(name, kind, *metric) for metric in metrics])
    return lines


def _lines(name: str, kind: str, labels: Mapping[str, str], value: Any) -> str:
    return _histogram(name, labels, *value) if kind == "histogram" else _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{name}{_braced(labels_text(labels))} {number_text(value)}\n"


def _histogram(
    name: str, labels: Mapping[str, str], bounds: Sequence[float], counts: Sequence[int], total: float, count: int
) -> str:
    """`counts` are those of the observations up to each bound, all the lower ones included."""
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

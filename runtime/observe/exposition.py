# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes metric families in Prometheus' text format, version 0.0.4. (pure)

family := ["# HELP " name " " description] "# TYPE " name " " kind sample*       each on a line of its own
sample := name[suffix] ["{" label ("," label)* "}"] " " number                   labels in the order of their names
label  := name "=" quoted text

A histogram's samples are its buckets, each with the number of values up to its bound `le`, then `_sum` and `_count`.
Names are written unchanged: counters get no suffix `_total`, because Triton's have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

# The sets of labels whose texts are remembered, as each scrape asks for the same ones: a dozen for each model. They are
# some 200 bytes each.
LABELS_KEPT_MAX = 8192
# Below it every integer has an exact float, so that the text without a fraction is exact too.
_WHOLE_MAX = float(1 << 53)
_IN_TEXT = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_IN_QUOTES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def number_text(value: float) -> str:
    """A sample's value: `3` rather than `3.0`, and otherwise the shortest text that identifies the float."""
    if -_WHOLE_MAX <= value <= _WHOLE_MAX and value == int(value):
        return str(int(value))
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if value != value else repr(value)


def labels_text(labels: Mapping[str, str]) -> str:
    """The text between the braces of a sample; "" without labels."""
    return _labels_text(tuple(labels.items()))


@lru_cache(LABELS_KEPT_MAX)
def _labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f'{name}="{text.translate(_IN_QUOTES)}"' for name, text in sorted(labels))


def family_head(name: str, description: str, kind: str) -> str:
    """The lines before a family's samples. Without a description there is no HELP line."""
    about = f"# HELP {name} {description.translate(_IN_TEXT)}\n" if description else ""
    return f"{about}# TYPE {name} {kind}\n"

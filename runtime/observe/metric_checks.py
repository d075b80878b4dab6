# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Validates the arguments of metric families and metrics. (pure)

Names, labels and numbers come from models, so they may have any type. Every refusal is an InferenceError (INVALID_ARG),
with Triton's message if Triton has one.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

from pyruntime.runtime.observe.exposition import labels_text
from pyruntime.utils.errors import Code, InferenceError

KINDS = ("counter", "gauge", "histogram")

# Prometheus' own families have names of 60 characters, and descriptions of one sentence.
NAME_CHARS_MAX = 256
DESCRIPTION_CHARS_MAX = 4096
# Prometheus advises a handful of labels. Each line of a metric contains all of them.
LABELS_MAX = 64
LABELS_BYTES_MAX = 4096
# Each bucket is a line of every metric; the client libraries' defaults are 10 to 15.
BUCKETS_MAX = 256

_METRIC_NAME = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


def invalid(message: str) -> InferenceError:
    """The error for a refusal."""
    return InferenceError(message, Code.INVALID_ARG)


def check_family(name: object, description: object, kind: object) -> None:
    """Raise InferenceError if one of these is not valid for a family."""
    if not _METRIC_NAME.fullmatch(_text(name, "the name of a metric family", NAME_CHARS_MAX)):
        raise invalid(
            f"the name of a metric family has letters, digits, '_' and ':', and no digit in front, unlike {name!r}"
        )
    _text(description, f"the description of metric family '{name}'", DESCRIPTION_CHARS_MAX)
    if kind not in KINDS:
        raise invalid(f"the kind of metric family '{name}' must be one of {', '.join(KINDS)}, not {kind!r:.40}")


def checked_labels(labels: object) -> str:
    """The labels as text. Raises InferenceError unless they are a dict of strings within the limits."""
    if not isinstance(labels, dict):
        raise invalid("Labels must be a dictionary.")
    if len(labels) > LABELS_MAX:
        raise invalid(f"a metric has {LABELS_MAX} labels at most, not {len(labels)}")
    for name, text in labels.items():
        _text(name, "the name of a label", NAME_CHARS_MAX)
        # Prometheus reserves names that begin with "__", and `le` is the label of a bucket.
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__") or name == "le":
            raise invalid(
                f"the name of a label has letters, digits and '_', no digit and no '__' in front, and is not 'le', "
                f"unlike {name!r}"
            )
        _text(text, f"label '{name}'", LABELS_BYTES_MAX)
    found = labels_text(labels)
    if len(found.encode()) > LABELS_BYTES_MAX:
        raise invalid(f"the labels of a metric have {LABELS_BYTES_MAX} bytes at most, not {len(found.encode())}")
    return found


def checked_buckets(buckets: object) -> list[float] | None:
    """The bounds of buckets, without an infinite one at the end, which every histogram has anyway. None stays None.

    Raises InferenceError unless they are a list of increasing numbers within the limit.
    """
    if buckets is None:
        return None
    if not isinstance(buckets, list):
        raise invalid("Buckets must be a list.")
    if len(buckets) > BUCKETS_MAX:
        raise invalid(f"a histogram has {BUCKETS_MAX} buckets at most, not {len(buckets)}")
    if not all(type(bound) in (int, float) for bound in buckets):
        raise invalid("the bounds of buckets must be numbers")
    bounds = [_as_float(bound) for bound in buckets]
    if bounds and bounds[-1] == math.inf:
        del bounds[-1]
    if not all(map(math.isfinite, bounds)) or any(low >= high for low, high in pairwise(bounds)):
        raise invalid("Bucket Boundaries must be strictly sorted")
    return bounds


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        raise invalid("a number is too large for a metric") from None


def _text(text: object, what: str, chars_max: int) -> str:
    if not isinstance(text, str):
        raise invalid(f"{what} must be a text, not {type(text).__name__}")
    if len(text) > chars_max:
        raise invalid(f"{what} has {chars_max} characters at most, not {len(text)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"{what} has characters that cannot be encoded") from None
    return text

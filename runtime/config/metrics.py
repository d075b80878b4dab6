# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the metric settings of a configuration: `metric_tags` and `model_metrics`. (pure)"""

from __future__ import annotations

import math
import re
from itertools import pairwise

from pyruntime.runtime.config.schema import Config

FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
# Each bucket is a line of the metrics page; client libraries have 10 to 15 of them.
BUCKETS_MAX = 256
# A tag becomes a label with "_" in front. A tag must not begin with "_" itself: Prometheus reserves labels with two.
_TAG = re.compile("(?!_)[a-zA-Z0-9_]+")


def metric_tags(config: Config) -> dict[str, str]:
    """The tags that are valid labels."""
    return {key: text for key, text in config.metric_tags.items() if _TAG.fullmatch(key)}


def first_response_bounds_ms(config: Config) -> tuple[float, ...] | None:
    """The histogram buckets that the configuration sets, in milliseconds; None if it sets none, or invalid ones."""
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE and control.HasField("histogram_options"):
            bounds = tuple(control.histogram_options.buckets)
            if _are_bounds(bounds):
                return bounds
    return None


def ignored_metrics(config: Config) -> list[str]:
    """The metric settings that have no effect, each as what the model asks for and why it is ignored."""
    ignored = [
        f"the metric tag {key!r}, which cannot be a label and is left out"
        for key in sorted(config.metric_tags)
        if not _TAG.fullmatch(key)
    ]
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        if family != FIRST_RESPONSE:
            ignored.append(f"settings of the metric family {family!r}, and only {FIRST_RESPONSE} has any")
        elif not _are_bounds(tuple(control.histogram_options.buckets)):
            ignored.append(f"buckets of {FIRST_RESPONSE} that do not grow or are too many: it gets the usual ones")
    return ignored


def _are_bounds(bounds: tuple[float, ...]) -> bool:
    return (
        0 < len(bounds) <= BUCKETS_MAX
        and all(map(math.isfinite, bounds))
        and all(low < high for low, high in pairwise(bounds))
    )

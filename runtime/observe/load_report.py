# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Load reports in responses, for load balancers that ask for them: ORCA, Open Request Cost Aggregation. (pure)

request  := "endpoint-load-metrics-format: " ("text" | "json")       any case; other formats are ignored
response := "endpoint-load-metrics: " ("TEXT " value ("," " " value)* | "JSON " object)
value    := name "=" number

Names are those of the fields of `xds.data.orca.v3.OrcaLoadReport`. A metric of our own or of a model is
`named_metrics.<name>`; in JSON it is a member of the object `named_metrics`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FORMAT_HEADER = "endpoint-load-metrics-format"
REPORT_HEADER = "endpoint-load-metrics"
FORMATS = ("text", "json")
NAMED = "named_metrics"

# Rates are those of this time at least, in seconds: of a shorter one they would jump with each request.
RATE_S_MIN = 1.0

# Gauges of a model in one report. Clients accept 8 KiB of headers by default, and names may have 256 characters.
GAUGES_MAX = 16

# The family from which Triton makes its report, by TensorRT-LLM; and the labels of its metrics.
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_BLOCK_LABEL = "kv_cache_block_type"
# Gauges of models that are reported under their own names.
_REPORTED = re.compile(r"kv_cache_\w+|max_token_capacity", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# Integers are written without a fraction, all other numbers with six digits in text, as Triton does.
Values = Mapping[str, float | int]
# The name of a family, the labels of a metric as on the metrics page, and its value.
Gauge = tuple[str, str, float]


def load_format(text: str) -> str:
    """The format that a client asks for; "" for none that is known."""
    small = text.strip().lower()
    return small if small in FORMATS else ""


def encode_report(values: Values, form: str) -> str:
    """The value of the header of the response. `form` is one of FORMATS."""
    if form == "text":
        return "TEXT " + ", ".join(f"{name}={_text(value)}" for name, value in values.items())
    document: dict[str, object] = {}
    named: dict[str, float | int] = {}
    for name, value in values.items():
        kind, _, own = name.partition(".")
        if kind == NAMED:
            document[NAMED] = named
            named[own] = value
        else:
            document[name] = value
    return "JSON " + json.dumps(document, separators=(",", ":"))


def _text(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:f}"


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The counters of a model at a time, in seconds. `busy_ns` is how long its instances have executed, together."""

    at_s: float
    successes: int
    failures: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened each second. `busy` is the number of instances that executed, on average."""

    requests: float
    failures: float
    busy: float


class RateWindow:
    """Computes rates from samples, over RATE_S_MIN or longer: since the sample before the last window began."""

    __slots__ = ("_first", "_rates")

    def __init__(self) -> None:
        self._first: LoadSample | None = None
        self._rates: Rates | None = None

    def rates(self, sample: LoadSample) -> Rates | None:
        """The latest rates; None until there are two samples that are far enough from each other."""
        first = self._first
        if first is None:
            self._first = sample
        elif sample.at_s - first.at_s >= RATE_S_MIN:
            elapsed_s = sample.at_s - first.at_s
            self._first = sample
            self._rates = Rates(
                (sample.successes + sample.failures - first.successes - first.failures) / elapsed_s,
                (sample.failures - first.failures) / elapsed_s,
                max(0, sample.busy_ns - first.busy_ns) / elapsed_s / 1e9,
            )
        return self._rates


def is_reported(family: str) -> bool:
    """Whether metrics of a family that models create are part of reports."""
    return family == _BLOCKS or _REPORTED.fullmatch(family) is not None


def reported_gauges(gauges: Iterable[Gauge], model: str, version: int) -> dict[str, float | int]:
    """The values that a model reports itself, from the gauges of families that are reported.

    A gauge with a label `model` or `version` belongs to that model or version only. The last of several counts. Of
    families beside Triton's the first GAUGES_MAX are reported.
    """
    values: dict[str, float | int] = {}
    blocks: dict[str, float] = {}
    for family, labels_text, value in gauges:
        labels = dict(_LABEL.findall(labels_text))
        if labels.get("model", model) != model or labels.get("version", str(version)) != str(version):
            continue
        if not math.isfinite(value):
            continue
        if family == _BLOCKS:
            blocks[labels.get(_BLOCK_LABEL, "")] = value
        elif len(values) < GAUGES_MAX or f"{NAMED}.{family}" in values:
            values[f"{NAMED}.{family}"] = int(value) if value.is_integer() else value
    if {"tokens_per", "used", "max"} <= blocks.keys():
        values[f"{NAMED}.kv_cache_utilization"] = blocks["used"] / blocks["max"] if blocks["max"] else 0.0
        values[f"{NAMED}.max_token_capacity"] = int(blocks["max"] * blocks["tokens_per"])
    return values

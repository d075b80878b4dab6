# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Load reports: how they are written, rates over time, and what models report themselves."""

import json

import pytest

from pyruntime.runtime.observe.load_report import (
    GAUGES_MAX,
    LoadSample,
    Rates,
    RateWindow,
    encode_report,
    is_reported,
    load_format,
    reported_gauges,
)

BLOCKS = "nv_trt_llm_kv_cache_block_metrics"


def blocks(model="m", **values):
    return [
        (BLOCKS, f'kv_cache_block_type="{kind}",model="{model}",version="1"', value) for kind, value in values.items()
    ]


class TestFormat:
    @pytest.mark.parametrize(("text", "form"), [("text", "text"), ("JSON", "json"), ("xml", ""), ("", "")])
    def test_names(self, text, form):
        """Formats are found in any case; others are none."""
        assert load_format(text) == form

    def test_as_triton_writes_it(self):
        """Fractions with six digits, integers without."""
        values = {"named_metrics.kv_cache_utilization": 0.25, "named_metrics.max_token_capacity": 640}
        assert encode_report(values, "text") == (
            "TEXT named_metrics.kv_cache_utilization=0.250000, named_metrics.max_token_capacity=640"
        )
        assert encode_report(values, "json") == (
            'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":640}}'
        )

    def test_fields_and_metrics(self):
        """Fields of the report stand beside the object of named metrics."""
        text = encode_report({"eps": 0.5, "named_metrics.a": 1, "rps_fractional": 2.0, "named_metrics.b": 3}, "json")
        assert json.loads(text.removeprefix("JSON ")) == {
            "eps": 0.5, "rps_fractional": 2.0, "named_metrics": {"a": 1, "b": 3},
        }  # fmt: skip


class TestRates:
    def test_from_two_samples(self):
        """There are no rates before the second sample, and the samples of less than a second change none."""
        window = RateWindow()
        assert window.rates(LoadSample(10.0, 100, 10, 0)) is None
        assert window.rates(LoadSample(10.9, 150, 15, 10**9)) is None
        assert window.rates(LoadSample(12.0, 190, 20, 3 * 10**9)) == Rates(50.0, 5.0, 1.5)
        assert window.rates(LoadSample(12.5, 999, 20, 3 * 10**9)) == Rates(50.0, 5.0, 1.5)
        assert window.rates(LoadSample(13.0, 190, 20, 3 * 10**9)) == Rates(0.0, 0.0, 0.0)

    def test_a_clock_that_went_back(self):
        """Times that two processes measured may add up to less than before: nothing was busy then."""
        window = RateWindow()
        window.rates(LoadSample(0.0, 0, 0, 10))
        assert window.rates(LoadSample(1.0, 0, 0, 5)) == Rates(0.0, 0.0, 0.0)


class TestGauges:
    @pytest.mark.parametrize(
        ("family", "yes"),
        [
            (BLOCKS, True),
            ("kv_cache_usage", True),
            ("max_token_capacity", True),
            ("other", False),
            ("my_kv_cache_x", False),
            ("kv_cache_\u00e9", False),
        ],
    )
    def test_families(self, family, yes):
        """Reported are Triton's family, and those whose names say that they are about the cache of a language model."""
        assert is_reported(family) is yes

    def test_tritons(self):
        """Utilization and capacity, as Triton computes them."""
        assert reported_gauges(blocks(tokens_per=64.0, used=5.0, max=10.0), "m", 1) == {
            "named_metrics.kv_cache_utilization": 0.5,
            "named_metrics.max_token_capacity": 640,
        }
        empty = reported_gauges(blocks(tokens_per=64.0, used=0.0, max=0.0), "m", 1)
        assert empty["named_metrics.kv_cache_utilization"] == 0.0

    def test_an_incomplete_one(self):
        """Without one of the three there is neither."""
        assert reported_gauges(blocks(tokens_per=64.0, used=5.0), "m", 1) == {}

    def test_of_another_model(self):
        """A metric that names a model or a version is theirs alone."""
        assert reported_gauges(blocks("other", tokens_per=1.0, used=1.0, max=1.0), "m", 1) == {}
        assert reported_gauges(blocks(tokens_per=1.0, used=1.0, max=1.0), "m", 2) == {}

    def test_too_many(self):
        """A report stays short: of many gauges the first ones are reported, with their last values."""
        names = [f"kv_cache_{number}" for number in range(GAUGES_MAX + 5)]
        gauges = [(name, "", value) for value in (1.5, 2.5) for name in names]
        found = reported_gauges([*gauges, *blocks(tokens_per=1.0, used=1.0, max=2.0)], "m", 1)
        assert {name: found[f"named_metrics.{name}"] for name in names[:GAUGES_MAX]} == dict.fromkeys(
            names[:GAUGES_MAX], 2.5
        )
        assert len(found) == GAUGES_MAX + 2

    def test_names_of_its_own(self):
        """Other gauges keep their names; numbers that JSON does not have are left out."""
        gauges = [
            ("kv_cache_usage", "", 0.75),
            ("max_token_capacity", 'gpu="a\\"b",model="m"', 4096.0),
            ("kv_cache_nan", "", float("nan")),
        ]
        assert reported_gauges(gauges, "m", 1) == {
            "named_metrics.kv_cache_usage": 0.75,
            "named_metrics.max_token_capacity": 4096,
        }

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model that counts, and says so on the metrics page."""

LABELS = 'model="metrics",version="1"'


def test_total(load_model):
    """The total is the sum of the values of all requests."""
    model = load_model("model_repository/metrics")
    assert [model.infer({"INPUT": values})["TOTAL"].item() for values in ([1, 2], [], [4])] == [3, 3, 7]


def test_samples(load_model):
    """The model's metrics have the samples of the server's metrics page."""
    model = load_model("model_repository/metrics")
    for size in (1, 5, 500):
        model.infer({"INPUT": [0.5] * size})
    found = model.metrics()
    assert found[f"accumulator_values{{{LABELS}}}"] == 506
    assert found[f"accumulator_total{{{LABELS}}}"] == 253
    buckets = [found[f'accumulator_size_bucket{{{LABELS},le="{bound}"}}'] for bound in ("1", "10", "100", "+Inf")]
    assert buckets == [1, 2, 2, 3]

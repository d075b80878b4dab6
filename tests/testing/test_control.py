# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of a model to its server besides calls: metrics, and loading and unloading of models."""

import gc

import pytest

from pyruntime.testing import ControlCall, InferenceError

METERED = """
class TritonPythonModel:
    def initialize(self, args):
        self.families = [
            pb_utils.MetricFamily(name="hits", description="Hits", kind=pb_utils.MetricFamily.COUNTER),
            pb_utils.MetricFamily(name="size", description="Sizes", kind=pb_utils.MetricFamily.HISTOGRAM),
            pb_utils.MetricFamily(name="level", description="Level", kind=pb_utils.MetricFamily.GAUGE),
        ]
        hits, size, level = self.families
        self.hits = hits.Metric(labels={"kind": "a"})
        self.size = size.Metric(buckets=[1, 10])
        self.level = level.Metric()
    def execute(self, requests):
        for request in requests:
            self.hits.increment(1)
            self.size.observe(len(array(request)))
            self.level.set(-0.5)
        return [answer(self.hits.value()) for _ in requests]
    def finalize(self):
        del self.hits
"""


class TestMetrics:
    def test_samples(self, load):
        """They are there as on the metrics page, and the model reads its own."""
        model = load(METERED)
        assert model.metrics()['hits{kind="a"}'] == 0
        assert [model.infer({"IN": [1] * n})["OUT"].item() for n in (1, 5)] == [1, 2]
        assert model.metrics() == {
            'hits{kind="a"}': 2.0, 'size_bucket{le="1"}': 1.0, 'size_bucket{le="10"}': 2.0,
            'size_bucket{le="+Inf"}': 2.0, "size_sum": 6.0, "size_count": 2.0, "level": -0.5,
        }  # fmt: skip

    def test_of_each_model_its_own(self, load):
        """Two models that are loaded at once do not see each other's; nor do two tests."""
        first, second = load(METERED), load(METERED, name="n")
        first.infer({"IN": [1]})
        assert (first.metrics()['hits{kind="a"}'], second.metrics()['hits{kind="a"}']) == (1, 0)

    def test_they_last_as_long_as_their_objects(self, load):
        """As on the metrics page."""
        model = load(METERED)
        model.close()
        gc.collect()
        assert 'hits{kind="a"}' not in model.metrics()

    def test_refusals(self, execute):
        """A refused request fails with the server's message."""
        body = "pb_utils.MetricFamily('1', '', pb_utils.MetricFamily.COUNTER)"
        with pytest.raises(InferenceError, match=r"Failed to create metric family\. the name of a metric family has"):
            execute(body).infer({"IN": [1]})


class TestModelControl:
    @pytest.mark.parametrize(
        ("body", "call"),
        [
            ("pb_utils.load_model('a')", ControlCall("load_model", "a")),
            (
                "pb_utils.load_model('b', '{}', {'file:1/model.py': b'x'})",
                ControlCall("load_model", "b", "{}", {"file:1/model.py": b"x"}),
            ),
            ("pb_utils.unload_model('a', True)", ControlCall("unload_model", "a", unload_dependents=True)),
            ("pb_utils.is_model_ready('a', '3')", ControlCall("is_model_ready", "a", model_version="3")),
        ],
    )
    def test_what_was_asked(self, execute, body, call):
        """The test sees it; nothing is loaded."""
        model = execute(body + "\nreturn [answer(0)]", callees={"a": lambda _: {}})
        model.infer({"IN": [1]})
        assert model.control_calls == [call]

    def test_what_is_ready(self, execute):
        """A callee is ready until the model unloads it, and again after the model has loaded it."""
        body = """
        found = [pb_utils.is_model_ready("a"), pb_utils.is_model_ready("b")]
        pb_utils.unload_model("a")
        found += [
            pb_utils.is_model_ready("a"),
            pb_utils.InferenceRequest(model_name="a").exec().has_error(),
        ]
        pb_utils.load_model("a")
        pb_utils.load_model("b", "{}", {"file:1/model.py": b""})
        found += [
            pb_utils.is_model_ready("a"),
            pb_utils.InferenceRequest(model_name="a").exec().has_error(),
            pb_utils.is_model_ready("b"),
        ]
        return [answer(found)]
        """
        model = execute(body, callees={"a": lambda _: {}})
        assert model.infer({"IN": [1]})["OUT"].tolist() == [1, 0, 0, 1, 1, 0, 1]

    def test_unknown(self, execute):
        """A model that the test does not stand in for is in no repository."""
        with pytest.raises(InferenceError, match="Failed to load model: failed to load 'a', failed to poll from model"):
            execute("pb_utils.load_model('a')").infer({"IN": [1]})


def test_memory(execute):
    """`free_memory`, which Triton's leak tests compare, reports the same free memory after each request."""
    model = execute("return [answer(pb_utils.shared_memory.free_memory())]")
    before, after = (model.infer({"IN": [1]})["OUT"].item() for _ in range(2))
    assert before == after > 1 << 20

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's metrics of models, made of statistics and read by Prometheus' own parser."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyruntime.runtime.observe.model_families import FAMILIES, ModelReading, labels_of, model_samples, new_statistics
from pyruntime.runtime.observe.statistics import FailureReason
from pyruntime.runtime.settings import MetricsSettings

from ..model_specs import spec_from

USUAL = MetricsSettings()
ALL = MetricsSettings(histogram_latencies=True, summary_latencies=True)
DECOUPLED = "model_transaction_policy { decoupled: true }"
BUCKETS = (
    "model_metrics { metric_control { metric_identifier { family: 'nv_inference_first_response_histogram_ms' } "
    "histogram_options { buckets: [ 1, 2.5 ] } } }"
)
COUNTERS = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
)
DURATIONS = (
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
)
GAUGES = ("nv_inference_pending_request_count", "nv_model_load_duration_secs")
SUMMARIES = (
    "nv_inference_request_summary_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us",
    "nv_inference_compute_output_summary_us",
)


def reading(text="", settings=USUAL, version=1, pending=0, load_s=0.5):
    spec = spec_from(f"name: 'm' {text}")
    return ModelReading(labels_of(spec, version), new_statistics(spec, version, settings), pending, load_s)


def model_lines(models, settings):
    """The families as the page has them."""
    samples = {family: [] for family in FAMILIES}
    for model in models:
        for family, text in model_samples(model, settings):
            samples[family].append(text)
    return "".join(family.lines(each) for family, each in samples.items())


def families(page):
    return {family.name: family for family in text_string_to_metric_families(page)}


def kinds(page):
    """{name: kind} of the families, in their order."""
    return {line.split()[2]: line.split()[3] for line in page.splitlines() if line.startswith("# TYPE")}


def values(page):
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}


def test_no_models():
    """Where there is nothing to tell there are no families."""
    assert model_lines([], ALL) == ""


def test_usual_families():
    """Without --metrics-config there are sums and gauges, in Triton's order."""
    expected = {name: "counter" for name in COUNTERS + DURATIONS} | {name: "gauge" for name in GAUGES}
    assert list(kinds(model_lines([reading()], USUAL)).items()) == list(expected.items())


def test_without_durations():
    """counter_latencies=false takes the sums of durations away, and nothing else."""
    page = model_lines([reading()], MetricsSettings(counter_latencies=False))
    assert list(kinds(page)) == [*COUNTERS, *GAUGES]


@pytest.mark.parametrize("text", ["", DECOUPLED])
def test_summaries_and_first_responses_are_of_every_model(text):
    page = model_lines([reading(text, ALL)], ALL)
    extra = kinds(page).items() - kinds(model_lines([reading()], USUAL)).items()
    expected = {(name, "summary") for name in SUMMARIES}
    assert extra == expected | {("nv_inference_first_response_histogram_ms", "histogram")}
    assert len(families(page)) == len(kinds(page))


def test_values():
    """Each sample is a number of the statistics; durations are in microseconds, cut off."""
    model = reading(pending=4, load_s=0.25)
    statistics = model.statistics
    statistics.success(3, queue_ns=1_999, input_ns=20_000, infer_ns=300_000, output_ns=4_000_000, total_ns=4_321_999)
    statistics.execution(3, 0, 0, 0, 0)
    statistics.execution(3, 0, 0, 0, 0)
    statistics.failure(1, FailureReason.REJECTED)
    labels = '{model="m",version="1"}'
    assert values(model_lines([model], USUAL)) == {
        f"nv_inference_request_success{labels}": 1,
        'nv_inference_request_failure{model="m",reason="REJECTED",version="1"}': 1,
        'nv_inference_request_failure{model="m",reason="CANCELED",version="1"}': 0,
        'nv_inference_request_failure{model="m",reason="BACKEND",version="1"}': 0,
        'nv_inference_request_failure{model="m",reason="OTHER",version="1"}': 0,
        f"nv_inference_count{labels}": 3,
        f"nv_inference_exec_count{labels}": 2,
        f"nv_inference_request_duration_us{labels}": 4321,
        f"nv_inference_queue_duration_us{labels}": 1,
        f"nv_inference_compute_input_duration_us{labels}": 20,
        f"nv_inference_compute_infer_duration_us{labels}": 300,
        f"nv_inference_compute_output_duration_us{labels}": 4000,
        f"nv_inference_pending_request_count{labels}": 4,
        f"nv_model_load_duration_secs{labels}": 0.25,
    }


def test_each_version_has_its_samples():
    """Versions differ by their label, within one family."""
    page = model_lines([reading(version=1), reading(version=12)], USUAL)
    versions = [sample.labels["version"] for sample in families(page)["nv_inference_pending_request_count"].samples]
    assert versions == ["1", "12"]


def test_metric_tags():
    """They are labels with a "_" in front, in order with the others, of every sample."""
    text = "metric_tags { key: 'team' value: 'a' } metric_tags { key: 'Area' value: 'b\"c' }"
    page = model_lines([reading(text + DECOUPLED, ALL)], ALL)
    assert 'nv_inference_count{_Area="b\\"c",_team="a",model="m",version="1"} 0\n' in page
    assert '{_Area="b\\"c",_team="a",model="m",reason="BACKEND",version="1"} 0\n' in page
    for family in families(page).values():
        for sample in family.samples:
            assert (sample.labels["_team"], sample.labels["_Area"]) == ("a", 'b"c')


@pytest.mark.parametrize(
    ("text", "bounds"), [("", ["100", "500", "2000", "5000", "+Inf"]), (BUCKETS, ["1", "2.5", "+Inf"])]
)
def test_first_responses(text, bounds):
    """A model may have buckets of its own."""
    model = reading(DECOUPLED + text, ALL)
    model.statistics.first_response(2_000_000)
    family = families(model_lines([model], ALL))["nv_inference_first_response_histogram_ms"]
    buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
    assert [sample.labels["le"] for sample in buckets] == bounds
    assert [sample.value for sample in buckets] == [int(float(bound) >= 2) for bound in bounds]


def test_summaries():
    """They have the quantiles that were asked for."""
    settings = MetricsSettings(summary_latencies=True, summary_quantiles=((0.5, 0.1), (1.0, 0.0)))
    model = reading("", settings)
    model.statistics.success(1, 1_000, 2_000, 3_000, 4_000, 10_000)
    found = families(model_lines([model], settings))
    assert [
        [(sample.labels.get("quantile", ""), sample.value) for sample in found[name].samples] for name in SUMMARIES
    ] == [[("", 1), ("", us), ("0.5", us), ("1", us)] for us in (10, 1, 2, 3, 4)]


def test_instances_on_gpus():
    """Executions on a GPU have its UUID; what is left, such as hits of the cache, has none, and all adds up."""
    model = reading()
    whole = model.statistics
    whole.on_gpu("GPU-a").success(2, 1000, 2000, 3000, 4000, 10_500)
    whole.on_gpu("GPU-a").execution(2, 2000, 3000, 4000, 5)
    whole.on_gpu("GPU-b").counted(3, 1, [1, 2, 3, 4, 500, 2, 3, 4], 6)
    whole.on_gpu("GPU-b").failure(100, FailureReason.BACKEND)
    whole.success(1, 0, 0, 0, 0, 700)
    found = values(model_lines([model], USUAL))
    at = {gpu: f'{{gpu_uuid="{gpu}",model="m",version="1"}}' for gpu in ("GPU-a", "GPU-b")}
    rest = '{model="m",version="1"}'
    for name, of_a, of_b, of_rest in (
        ("nv_inference_request_success", 1, 3, 1),
        ("nv_inference_count", 2, 3, 1),
        ("nv_inference_exec_count", 1, 3, 0),
        ("nv_inference_request_duration_us", 10, 0, 0),
        ("nv_inference_compute_infer_duration_us", 3, 0, 0),
    ):
        assert [found[name + at["GPU-a"]], found[name + at["GPU-b"]], found[name + rest]] == [of_a, of_b, of_rest]
    assert found['nv_inference_request_failure{model="m",reason="BACKEND",version="1"}'] == 1
    assert found["nv_inference_pending_request_count" + rest] == 0
    assert (whole.success_count, whole.inference_count, whole.execution_count, whole.success_ns) == (5, 6, 4, 11_700)
    assert whole.failure_count == 1

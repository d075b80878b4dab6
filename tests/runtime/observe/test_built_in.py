# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The names that the server has for itself."""

import pytest

from pyruntime.runtime.observe.built_in import FAMILIES, SAMPLE_NAMES, BuiltIn
from pyruntime.runtime.observe.metric_checks import check_family
from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.utils.errors import InferenceError


def test_all_42_of_triton():
    """Every family of Triton, and of its cache `local`, has its place, whether or not it is ever on the page."""
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    assert sum(name.startswith("nv_") for name in names) == 42
    assert all(name.startswith(("nv_", "pyruntime_")) for name in names)


def test_names_are_names():
    """Prometheus takes all of them."""
    for name, kind, description in FAMILIES:
        check_family(name, description, "gauge" if kind == "summary" else kind)


@pytest.mark.parametrize("name", ["nv_inference_count", "nv_inference_request_summary_us_sum", "pyruntime_connections"])
def test_models_cannot_have_them(name):
    """A page with two families of one name could not be read."""
    assert name in SAMPLE_NAMES
    with pytest.raises(InferenceError, match=f"would have samples named '{name}', as another family has"):
        Metrics().family("stub", name, "", "counter")


def test_models_have_them_no_less_afterwards():
    """A refused family leaves nothing behind, and other families come and go."""
    metrics = Metrics()
    with pytest.raises(InferenceError):
        metrics.family("stub", "nv_inference_count", "", "counter")
    metrics.drop_family("stub", metrics.family("stub", "nv_mine", "", "counter"))
    with pytest.raises(InferenceError):
        metrics.family("stub", "nv_inference_count", "", "counter")


def test_lines():
    """A family without samples is not there."""
    family = BuiltIn("n", "gauge", "About it.")
    assert family.lines([]) == ""
    assert family.lines([family.sample("", 1.5), family.sample('a="b"', 2)]) == (
        '# HELP n About it.\n# TYPE n gauge\nn 1.5\nn{a="b"} 2\n'
    )

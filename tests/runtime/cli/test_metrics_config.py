# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""--metrics-config: its settings, and its refusals."""

import pytest

from pyruntime.runtime.cli.metrics_config import read_metrics_config
from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.cli.resolve import resolve
from pyruntime.runtime.settings import QUANTILES_MAX, MetricsSettings, SettingsError


def test_nothing_given():
    """Triton's defaults: sums, and neither histograms nor summaries."""
    settings = read_metrics_config([])
    assert settings == MetricsSettings(counter_latencies=True, histogram_latencies=False, summary_latencies=False)
    assert settings.summary_quantiles == ((0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001))


def test_every_key():
    """Each sets the field of its name; of one that is given twice the last one counts."""
    texts = ["counter_latencies=FALSE", "histogram_latencies=false", "histogram_latencies=1", "summary_latencies=true"]
    settings = read_metrics_config([*texts, "summary_quantiles=0.25:0.05,1:0"])
    assert settings == MetricsSettings(False, True, True, ((0.25, 0.05), (1.0, 0.0)))


def test_on_the_command_line():
    """It may be given any number of times."""
    words = [
        "--model-repository=a",
        "--metrics-config",
        "summary_latencies=true",
        "--metrics-config=counter_latencies=0",
    ]
    settings, warnings = resolve(parse_arguments(words)[0])
    assert settings.metrics_config == MetricsSettings(counter_latencies=False, summary_latencies=True)
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "--metrics-config needs <key>=<value>, not 'x'"),
        ("=1", "--metrics-config needs <key>=<value>, not '=1'"),
        ("counter_latencies=", "--metrics-config needs <key>=<value>, not 'counter_latencies='"),
        ("counter_latency=1", "--metrics-config=counter_latency is not known; did you mean counter_latencies?"),
        ("foo=1", "--metrics-config=foo is not known"),
        ("counter_latencies=maybe", "--metrics-config=counter_latencies needs true, false, 1 or 0, not 'maybe'"),
        *(
            (
                f"summary_quantiles={text}",
                "--metrics-config=summary_quantiles needs <quantile>:<error>[,<quantile>:<error>...], not "
                + repr(text),
            )
            for text in ("0.5", "a:b", "0.5:", "0.5:0.1,", "0.5:0.1;0.9:0.1")
        ),
        *(
            (
                f"summary_quantiles=0.5:0.1,{text}",
                f"a quantile and its error must be between 0 and 1, unlike {text} in summary_quantiles",
            )
            for text in ("1.5:0.1", "-0.5:0.1", "0.5:2.0", "0.5:-1.0", "nan:0.1", "0.5:nan")
        ),
        (
            "summary_quantiles=" + ",".join(["0.5:0.1"] * (QUANTILES_MAX + 1)),
            f"summary_quantiles are {QUANTILES_MAX} at most, not {QUANTILES_MAX + 1}",
        ),
    ],
)
def test_what_is_refused(text, message):
    """A mistake is reported in one sentence."""
    with pytest.raises(SettingsError) as caught:
        read_metrics_config([text])
    assert str(caught.value) == message

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.cli.trace_config import read_trace_config
from pyruntime.runtime.settings import SettingsError, TraceSettings


def read(*words):
    """The settings that options lead to, and the warnings."""
    warnings = []
    return read_trace_config(parse_arguments([f"--{word}" for word in words])[0], warnings), warnings


def config(*texts):
    return read(*[f"trace-config={text}" for text in texts])


def test_nothing():
    """Without options nothing is traced."""
    assert read() == (TraceSettings(), [])


def test_mode_triton():
    """Traces go to a file."""
    assert config(
        "mode=triton", "rate=5", "count=7", "level=TENSORS", "triton,file=/a=b", "triton,log-frequency=3"
    ) == (
        TraceSettings(levels=("TENSORS",), rate=5, count=7, file="/a=b", log_frequency=3),
        [],
    )


def test_mode_opentelemetry():
    """Traces go to a collector."""
    settings, warnings = config(
        "mode=OpenTelemetry",
        "level=TIMESTAMPS",
        "opentelemetry,url=host:1/v1/traces",
        "opentelemetry,resource=a=b=c",
        "opentelemetry,resource=d=",
        "opentelemetry,bsp_max_queue_size=1",
        "opentelemetry,bsp_schedule_delay=2",
        "opentelemetry,bsp_max_export_batch_size=3",
    )
    assert warnings == []
    assert settings == TraceSettings(
        mode="opentelemetry",
        levels=("TIMESTAMPS",),
        url="host:1/v1/traces",
        resource=(("a", "b=c"), ("d", "")),
        queue_max=1,
        schedule_delay_ms=2,
        export_batch_max=3,
    )


@pytest.mark.parametrize(
    ("texts", "levels"),
    [
        (["TIMESTAMPS", "TENSORS"], ("TIMESTAMPS", "TENSORS")),
        (["OFF", "TENSORS"], ("TENSORS",)),
        (["TENSORS", "OFF"], ()),
        (["TENSORS", "OFF", "timestamps"], ("TIMESTAMPS",)),
    ],
)
def test_levels(texts, levels):
    """Levels add up; OFF takes back those before it, as those of a configuration file."""
    settings, _ = config("triton,file=f", *[f"level={text}" for text in texts])
    assert settings.levels == levels


def test_older_options():
    """Triton's deprecated options do the same, and the newer one wins."""
    older = ["trace-file=f", "trace-level=TENSORS", "trace-rate=5", "trace-count=6", "trace-log-frequency=7"]
    assert read(*older) == (TraceSettings(levels=("TENSORS",), rate=5, count=6, file="f", log_frequency=7), [])
    settings, _ = read("trace-config=rate=9", *older)
    assert (settings.rate, settings.count) == (9, 6)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trace-config=rate=x", "--trace-config=rate: Unable to parse 'trace_rate', got: x"),
        ("trace-rate=0", "--trace-rate: Attempting to set invalid trace setting :sample rate must be non-zero"),
        ("trace-count=-2", "--trace-count: Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        (
            "trace-config=level=BAD",
            "--trace-config=level: Unknown trace level 'BAD': expecting OFF, TIMESTAMPS or TENSORS",
        ),
        ("trace-config=mode=x", "--trace-config=mode: it needs triton or opentelemetry, not 'x'"),
        ("trace-config=opentelemetry,url=", "--trace-config=opentelemetry,url: it needs a value"),
        (
            "trace-config=opentelemetry,resource=x",
            "--trace-config=opentelemetry,resource: it needs <name>=<value>, not 'x'",
        ),
        (
            "trace-config=opentelemetry,bsp_schedule_delay=0",
            "--trace-config=opentelemetry,bsp_schedule_delay: it needs an integer from 1 to 4294967295, not '0'",
        ),
    ],
)
def test_refused(word, message):
    """A mistake is one sentence that names the option."""
    with pytest.raises(SettingsError) as caught:
        read(word)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("texts", "warning"),
    [
        (["ratee=5"], "--trace-config=ratee is not known and has no effect; did you mean rate?"),
        (["triton,url=5"], "--trace-config=triton,url is not known and has no effect"),
        (
            ["opentelemetry,trigger=x"],
            "--trace-config=opentelemetry,trigger has no effect: what a client traces itself is always traced",
        ),
        (
            ["level=TENSORS"],
            "no request is traced: --trace-config=triton,file=<path> must say where traces go",
        ),
    ],
)
def test_warnings(texts, warning):
    """A setting without effect causes a warning, and the server starts."""
    assert config(*texts)[1] == [warning]

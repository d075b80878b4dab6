# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration after defaults are filled in."""

import pytest

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.utils.errors import LoadError


def _normalized(text="", directory_name="m", files=("model.py",), gpus=()):
    config = parse_model_config(text, "config.pbtxt")
    return normalize(config, directory_name=directory_name, files=files, gpus=gpus)


def _groups(config):
    return [(group.name, group.Kind.Name(group.kind), group.count, list(group.gpus)) for group in config.instance_group]


def test_an_empty_configuration():
    """A model.py alone is a complete statement of what to run."""
    config = _normalized()
    assert (config.name, config.backend, config.platform) == ("m", "python", "")
    assert config.default_model_filename == "model.py"
    assert config.version_policy.latest.num_versions == 1
    assert config.optimization.input_pinned_memory.enable
    assert config.optimization.output_pinned_memory.enable
    assert config.WhichOneof("scheduling_choice") is None
    assert _groups(config) == [("m", "KIND_CPU", 1, [])]


def test_the_argument_is_not_changed():
    """The result is another message."""
    config = parse_model_config("", "config.pbtxt")
    normalize(config, directory_name="m", files=["model.py"], gpus=())
    assert config == parse_model_config("", "config.pbtxt")


@pytest.mark.parametrize("gpus", [(), (0, 1)])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 8 dynamic_batching {}",
        "sequence_batching {}",
        "ensemble_scheduling {}",
        "backend: 'onnxruntime'",
        "platform: 'custom'",
        "instance_group [ { count: 2 }, { name: 'g' kind: KIND_GPU }, { kind: KIND_MODEL }, { gpus: [ 7 ] } ]",
        "version_policy { all {} } instance_group { kind: 9 }",
    ],
)
def test_twice_is_once(text, gpus):
    """A normalised configuration is not changed by another pass."""
    once = _normalized(text, gpus=gpus)
    assert normalize(once, directory_name="m", files=["model.py"], gpus=gpus) == once


def test_another_name_than_the_directory():
    """The name in the file must be the directory's."""
    assert _normalized("name: 'm'").name == "m"
    with pytest.raises(LoadError) as caught:
        _normalized("name: 'n'", directory_name="d")
    assert str(caught.value) == ("unexpected directory name 'd' for model 'n', directory name must equal model name")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("python", "", "model.py")),
        ("backend: 'vllm'", ("vllm", "", "")),
        ("platform: 'custom'", ("custom", "custom", "libcustom.so")),
        ("platform: 'custom' default_model_filename: 'a.so'", ("custom", "custom", "a.so")),
        ("platform: 'custom' backend: 'mine'", ("mine", "custom", "")),
        ("backend: 'custom'", ("custom", "", "")),
        ("platform: 'unknown'", ("", "unknown", "")),
        ("platform: 'ensemble' ensemble_scheduling {}", ("", "ensemble", "")),
        ("ensemble_scheduling {}", ("", "ensemble", "")),
    ],
)
def test_backend_platform_and_file(text, expected):
    """Backend and platform follow from each other, and python from a model.py; see test_backends for the rest."""
    config = _normalized(text)
    assert (config.backend, config.platform, config.default_model_filename) == expected


@pytest.mark.parametrize(
    ("text", "runtime"),
    [
        ("platform: 'custom'", "model.py"),
        ("platform: 'custom' runtime: 'libtriton_mine.so'", "libtriton_mine.so"),
        ("platform: 'custom' backend: 'custom'", ""),
        ("backend: 'custom'", ""),
    ],
)
def test_runtime_of_the_custom_platform(text, runtime):
    """The platform is run by a backend in Python, even beside a native one that has its name."""
    assert _normalized(text).runtime == runtime


@pytest.mark.parametrize(
    ("text", "choice", "num_versions"),
    [
        ("version_policy {}", "latest", 1),
        ("version_policy { latest {} }", "latest", 1),
        ("version_policy { latest { num_versions: 3 } }", "latest", 3),
        ("version_policy { all {} }", "all", 0),
        ("version_policy { specific { versions: [ 1 ] } }", "specific", 0),
    ],
)
def test_version_policy(text, choice, num_versions):
    """Without a policy, or without a number, it is the latest version."""
    policy = _normalized(text).version_policy
    assert policy.WhichOneof("policy_choice") == choice
    assert policy.latest.num_versions == num_versions


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("max_batch_size: 8 dynamic_batching {}", [8]),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }", [2, 4]),
        ("dynamic_batching {}", []),
        ("max_batch_size: 8", []),
    ],
)
def test_preferred_batch_size(text, sizes):
    """It is the largest batch, if the model batches dynamically and has one."""
    assert list(_normalized(text).dynamic_batching.preferred_batch_size) == sizes


@pytest.mark.parametrize(
    ("text", "oldest", "sizes"),
    [
        ("max_batch_size: 8", "oldest {}", [8]),
        ("max_batch_size: 8", "oldest { preferred_batch_size: [ 2, 4 ] }", [2, 4]),
        ("", "oldest {}", []),
        ("max_batch_size: 8", "direct {}", []),
    ],
)
def test_preferred_batch_size_of_sequences(text, oldest, sizes):
    """It is the largest batch for the strategy that forms batches as they come."""
    config = _normalized(f"{text} sequence_batching {{ {oldest} }}")
    assert list(config.sequence_batching.oldest.preferred_batch_size) == sizes


@pytest.mark.parametrize(("text", "idle_us"), [("", 1_000_000), ("max_sequence_idle_microseconds: 5", 5)])
def test_sequence_idle_time(text, idle_us):
    """A sequence is over after a second of silence, unless the configuration says otherwise."""
    config = _normalized(f"sequence_batching {{ {text} }}")
    assert config.sequence_batching.max_sequence_idle_microseconds == idle_us


def test_pinned_memory_that_is_set_stays():
    """Only missing settings are filled in."""
    optimization = _normalized("optimization { input_pinned_memory {} graph { level: 1 } }").optimization
    assert not optimization.input_pinned_memory.enable
    assert optimization.output_pinned_memory.enable
    assert optimization.graph.level == 1


def test_an_ensemble_has_no_instances():
    """Settings of instances are not filled in for an ensemble."""
    config = _normalized("ensemble_scheduling {}")
    assert _groups(config) == []
    assert not config.HasField("optimization")


@pytest.mark.parametrize(
    ("groups", "gpus", "expected"),
    [
        ("", (), [("m", "KIND_CPU", 1, [])]),
        ("", (0, 1), [("m", "KIND_GPU", 1, [0, 1])]),
        ("{}, { count: 2 }", (), [("m_0", "KIND_CPU", 1, []), ("m_1", "KIND_CPU", 2, [])]),
        ("{ name: 'g' count: -1 }", (), [("g", "KIND_CPU", 1, [])]),
        ("{ kind: KIND_CPU }", (0,), [("m_0", "KIND_CPU", 1, [])]),
        ("{ kind: KIND_GPU }", (0, 2), [("m_0", "KIND_GPU", 1, [0, 2])]),
        ("{ kind: KIND_GPU gpus: [ 2 ] }", (0, 2), [("m_0", "KIND_GPU", 1, [2])]),
        ("{ kind: KIND_GPU }", (), [("m_0", "KIND_GPU", 1, [])]),
        ("{ gpus: [ 3 ] }", (), [("m_0", "KIND_CPU", 1, [3])]),
        ("{ gpus: [ 0, 3 ] }", (0,), [("m_0", "KIND_CPU", 1, [0, 3])]),
        ("{ gpus: [ 3 ] }", (0, 3), [("m_0", "KIND_GPU", 1, [3])]),
        ("{ kind: KIND_MODEL }", (0,), [("m_0", "KIND_MODEL", 1, [])]),
    ],
)
def test_instance_groups(groups, gpus, expected):
    """Each group gets a name, a count, a kind that is not AUTO, and the GPUs of the host if it has kind GPU."""
    assert _groups(_normalized(f"instance_group [ {groups} ]", gpus=gpus)) == expected


@pytest.mark.parametrize(("groups", "expected"), [("", [2, 0]), ("{ kind: KIND_GPU gpus: [ 1 ] }", [1])])
def test_placed_groups(groups, expected):
    """Groups that name no GPUs are on those that the server chose, in its order."""
    config = parse_model_config(f"instance_group [ {groups} ]", "config.pbtxt")
    config = normalize(config, directory_name="m", files=["model.py"], gpus=(0, 1, 2), placed=(2, 0))
    assert [list(group.gpus) for group in config.instance_group] == [expected]


@pytest.mark.parametrize("backend", ["backend: 'onnxruntime'", "platform: 'onnxruntime_onnx'", "backend: 'tensorflow'"])
def test_two_instances(backend):
    """Two backends have two instances in each group on the CPU that gives no count, as in Triton."""
    groups = "{}, { count: 1 }, { kind: KIND_CPU }, { kind: KIND_MODEL }, { count: 3 }"
    assert [group.count for group in _normalized(f"{backend} instance_group [ {groups} ]").instance_group] == [
        2,
        1,
        2,
        1,
        3,
    ]
    assert [group.count for group in _normalized(backend).instance_group] == [2]
    assert [group.count for group in _normalized(backend, gpus=(0,)).instance_group] == [1]

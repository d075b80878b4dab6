# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import math

import pytest

from pyruntime.runtime.settings import (
    MIB,
    PythonBackendSettings,
    ServerSettings,
    SettingsError,
    without_credentials,
)
from pyruntime.utils.errors import PyruntimeError

REPOSITORIES = ("models",)


def test_defaults_are_tritons():
    """Settings with nothing but a repository listen where Triton does, and are as strict as Triton."""
    settings = ServerSettings(REPOSITORIES)
    assert (settings.http_port, settings.grpc_port, settings.metrics_port) == (8000, 8001, 8002)
    assert settings.http_address == "0.0.0.0"
    assert settings.http_max_input_size == 64 * MIB
    assert (settings.server_id, settings.exit_timeout_s, settings.model_load_thread_count) == ("triton", 30, 4)
    assert settings.exit_on_error
    assert settings.auto_complete_config
    assert settings.strict_readiness
    assert settings.python_backend == PythonBackendSettings(MIB, MIB, 30)


def test_settings_are_frozen():
    """Settings cannot be changed after the start."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServerSettings(REPOSITORIES).http_port = 1  # type: ignore[misc]


@pytest.mark.parametrize("size", [0, -1])
def test_largest_input_has_tritons_message(size):
    """A body limit that lets nothing through is refused in Triton's words."""
    with pytest.raises(SettingsError) as caught:
        ServerSettings(REPOSITORIES, http_max_input_size=size)
    assert str(caught.value) == "--http-max-input-size must be greater than 0."


def test_small_shared_memory_has_tritons_message():
    """Less than 1 MiB of shared memory is refused in Triton's words, though they name 4."""
    with pytest.raises(SettingsError) as caught:
        PythonBackendSettings(shm_default_byte_size=MIB - 1)
    assert str(caught.value) == "shm-default-byte-size can't be smaller than 4 MiBs"


@pytest.mark.parametrize(
    "field",
    ["shm_growth_byte_size", "stub_timeout_s", "thread_pool_size", "shm_message_queue_size"],
)
def test_python_backend_refuses_zero(field):
    """A number of things that must exist is greater than 0."""
    with pytest.raises(SettingsError, match="must be greater than 0, not 0"):
        PythonBackendSettings(**{field: 0})


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("exit_timeout_s", -1, "--exit-timeout-secs must not be negative, and is -1."),
        ("log_verbose", -2, "--log-verbose must be between 0 and 2147483647, not -2."),
        ("log_verbose", 2**31, "--log-verbose must be between 0 and 2147483647, not 2147483648."),
        ("model_load_thread_count", 0, "--model-load-thread-count must be greater than 0, not 0."),
        ("log_format", "iso8601", "--log-format must be one of default, ISO8601, json, not 'iso8601'."),
        ("model_control_mode", "all", "--model-control-mode must be one of none, poll, explicit, not 'all'."),
        (
            "load_models",
            ("m",),
            "Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        ("http_port", 65536, "--http-port must be between 0 and 65535, not 65536."),
        ("metrics_port", -1, "--metrics-port must be between 0 and 65535, not -1."),
    ],
)
def test_value_out_of_range_is_one_sentence(field, value, sentence):
    """A refused value names its option, the expected values and the value."""
    with pytest.raises(SettingsError) as caught:
        ServerSettings(REPOSITORIES, **{field: value})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("ports", "names"),
    [
        ({"http_port": 8001}, "--http-port and --grpc-port are both 8001"),
        ({"http_port": 8002}, "--http-port and --metrics-port are both 8002"),
        ({"grpc_port": 8002}, "--grpc-port and --metrics-port are both 8002"),
        ({"http_port": 8001, "grpc_address": "127.0.0.1"}, "--http-port and --grpc-port are both 8001"),
    ],
)
def test_port_collision_is_refused(ports, names):
    """Two endpoints never share a port of one address, and a wildcard is every address."""
    with pytest.raises(SettingsError, match=names):
        ServerSettings(REPOSITORIES, **ports)


@pytest.mark.parametrize(
    "ports",
    [
        {"http_port": 8001, "allow_grpc": False},
        {"http_port": 8002, "allow_metrics": False},
        {"grpc_port": 8000, "allow_http": False},
        {"http_port": 8001, "http_address": "10.0.0.1", "grpc_address": "10.0.0.2"},
        {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
    ],
)
def test_ports_that_do_not_collide(ports):
    """An endpoint that is off has no port, addresses have ports of their own, and 0 is a different port each time."""
    ServerSettings(REPOSITORIES, **ports)


def test_settings_error_is_ours():
    """One except clause catches all that pyruntime raises on purpose."""
    assert issubclass(SettingsError, PyruntimeError)


def test_all_models_or_some():
    """Models to load are named, or all of them are meant."""
    assert ServerSettings(REPOSITORIES, model_control_mode="explicit", load_models=("*",)).load_models == ("*",)
    with pytest.raises(SettingsError, match=r"^--load-model=\* loads every model, and cannot be given beside names\.$"):
        ServerSettings(REPOSITORIES, model_control_mode="explicit", load_models=("m", "*"))


def test_debugging_has_no_time_limit():
    """How long requests may take when the server ends is the operator's choice; who debugs one has all the time."""
    assert ServerSettings(("models",), exit_timeout_s=7).drain_s == 7
    assert ServerSettings(("models",), exit_timeout_s=7, debug_model="add_sub").drain_s == math.inf


@pytest.mark.parametrize(
    ("url", "shown", "credentials"),
    [
        ("localhost:4318/v1/traces", "http://localhost:4318/v1/traces", ""),
        ("https://a.b/c?d=e", "https://a.b/c?d=e", ""),
        ("https://user:p%40ss@a.b:1/c", "https://a.b:1/c", "user:p%40ss"),
        ("user@[::1]:4318", "http://[::1]:4318", "user"),
    ],
)
def test_credentials(url, shown, credentials):
    """A password is sent to the collector only, and never shown."""
    assert without_credentials(url) == (shown, credentials)

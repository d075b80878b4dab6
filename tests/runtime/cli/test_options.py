# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest

from pyruntime.runtime.cli.options import GROUPS, OPTIONS, TRITON_GROUPS, Kind, Status
from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.cli.resolve import resolve
from pyruntime.runtime.settings import MetricsSettings, ResourceLimit, Restriction, ServerSettings, TlsSettings
from pyruntime.runtime.tracing.values import read_levels

# The options of tritonserver, in the order of its usage text; their numbers are those of the compatibility list.
TRITON_OPTIONS = [
    "help",
    "id",
    "exit-timeout-secs",
    "model-store",
    "model-repository",
    "exit-on-error",
    "disable-auto-complete-config",
    "strict-readiness",
    "model-control-mode",
    "repository-poll-secs",
    "load-model",
    "model-config-name",
    "model-load-thread-count",
    "model-load-retry-count",
    "model-namespacing",
    "enable-peer-access",
    "allow-http",
    "http-address",
    "http-port",
    "reuse-http-port",
    "http-header-forward-pattern",
    "http-thread-count",
    "http-max-input-size",
    "http-restricted-api",
    "allow-grpc",
    "grpc-address",
    "grpc-port",
    "reuse-grpc-port",
    "grpc-header-forward-pattern",
    "grpc-infer-thread-count",
    "grpc-infer-allocation-pool-size",
    "grpc-max-response-pool-size",
    "grpc-use-ssl",
    "grpc-use-ssl-mutual",
    "grpc-server-cert",
    "grpc-server-key",
    "grpc-root-cert",
    "grpc-infer-response-compression-level",
    "grpc-keepalive-time",
    "grpc-keepalive-timeout",
    "grpc-keepalive-permit-without-calls",
    "grpc-http2-max-pings-without-data",
    "grpc-http2-min-recv-ping-interval-without-data",
    "grpc-http2-max-ping-strikes",
    "grpc-max-connection-age",
    "grpc-max-connection-age-grace",
    "grpc-restricted-protocol",
    "log-verbose",
    "log-info",
    "log-warning",
    "log-error",
    "log-format",
    "log-file",
    "allow-sagemaker",
    "sagemaker-port",
    "sagemaker-safe-port-range",
    "sagemaker-thread-count",
    "allow-vertex-ai",
    "vertex-ai-port",
    "vertex-ai-thread-count",
    "vertex-ai-default-model",
    "allow-metrics",
    "allow-gpu-metrics",
    "allow-cpu-metrics",
    "metrics-address",
    "metrics-port",
    "metrics-interval-ms",
    "metrics-config",
    "trace-config",
    "cache-config",
    "cache-directory",
    "rate-limit",
    "rate-limit-resource",
    "pinned-memory-pool-byte-size",
    "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size",
    "min-supported-compute-capability",
    "buffer-manager-thread-count",
    "host-policy",
    "model-load-gpu-limit",
    "allow-client-shm",
    "backend-directory",
    "backend-config",
    "repoagent-directory",
    "strict-model-config",
    "response-cache-byte-size",
    "trace-file",
    "trace-level",
    "trace-rate",
    "trace-count",
    "trace-log-frequency",
]
NUMBERED = [pytest.param(name, id=f"C{number}-{name}") for number, name in enumerate(TRITON_OPTIONS, 1)]

REPOSITORY = "--model-repository=models"
DEFAULTS = ServerSettings(("models",))
CERTIFICATE = ["--grpc-server-cert=c.pem", "--grpc-server-key=k.pem"]
# The effect of each working option on the settings: its value, the further options that it needs, and the changes.
EFFECTS = {
    "id": ("a", [], {"server_id": "a"}),
    "exit-timeout-secs": ("5", [], {"exit_timeout_s": 5}),
    "model-store": ("more", [], {"model_repositories": ("models", "more")}),
    "model-repository": ("more", [], {"model_repositories": ("models", "more")}),
    "exit-on-error": ("false", [], {"exit_on_error": False}),
    "disable-auto-complete-config": (None, [], {"auto_complete_config": False}),
    "strict-readiness": ("0", [], {"strict_readiness": False}),
    "model-control-mode": ("POLL", [], {"model_control_mode": "poll"}),
    "repository-poll-secs": ("3", [], {"repository_poll_s": 3}),
    "load-model": ("a", ["--model-control-mode=explicit"], {"model_control_mode": "explicit", "load_models": ("a",)}),
    "model-config-name": ("a", [], {"model_config_name": "a"}),
    "model-load-thread-count": ("2", [], {"model_load_thread_count": 2}),
    "model-load-retry-count": ("2", [], {"model_load_retry_count": 2}),
    "rate-limit": ("Execution_Count", [], {"limits_rate": True}),
    "rate-limit-resource": ("R:4:1", [], {"rate_limit_resources": (ResourceLimit("R", 4, 1),)}),
    "min-supported-compute-capability": ("7.5", [], {"min_supported_compute_capability": 7.5}),
    "enable-peer-access": ("false", [], {"enable_peer_access": False}),
    "pinned-memory-pool-byte-size": ("5", [], {"pinned_memory_pool_bytes": 5}),
    "cuda-memory-pool-byte-size": ("1:5", [], {"cuda_memory_pool_bytes": {1: 5}}),
    "model-load-gpu-limit": ("1:0.5", [], {"model_load_gpu_limits": {1: 0.5}}),
    "allow-http": ("false", [], {"allow_http": False}),
    "http-address": ("::1", [], {"http_address": "::1"}),
    "http-port": ("80", [], {"http_port": 80}),
    "reuse-http-port": ("true", [], {"reuse_http_port": True}),
    "http-header-forward-pattern": ("^x-", [], {"http_header_forward_pattern": "^x-"}),
    "http-max-input-size": ("5", [], {"http_max_input_size": 5}),
    "http-restricted-api": ("health:K=v", [], {"http_restricted_apis": {"health": Restriction("k", "v")}}),
    "allow-grpc": ("false", [], {"allow_grpc": False}),
    "grpc-address": ("::1", [], {"grpc_address": "::1"}),
    "grpc-port": ("80", [], {"grpc_port": 80}),
    "reuse-grpc-port": ("true", [], {"reuse_grpc_port": True}),
    "grpc-header-forward-pattern": ("^x-", [], {"grpc_header_forward_pattern": "^x-"}),
    "grpc-use-ssl": ("true", CERTIFICATE, {"grpc_tls": TlsSettings("c.pem", "k.pem")}),
    "grpc-use-ssl-mutual": (
        "true",
        [*CERTIFICATE, "--grpc-root-cert=r.pem"],
        {"grpc_tls": TlsSettings("c.pem", "k.pem", "r.pem")},
    ),
    "grpc-server-cert": (
        "d.pem",
        ["--grpc-use-ssl=1", "--grpc-server-key=k.pem"],
        {"grpc_tls": TlsSettings("d.pem", "k.pem")},
    ),
    "grpc-server-key": (
        "l.pem",
        ["--grpc-use-ssl=1", "--grpc-server-cert=c.pem"],
        {"grpc_tls": TlsSettings("c.pem", "l.pem")},
    ),
    "grpc-root-cert": (
        "s.pem",
        ["--grpc-use-ssl-mutual=1", *CERTIFICATE],
        {"grpc_tls": TlsSettings("c.pem", "k.pem", "s.pem")},
    ),
    "grpc-infer-response-compression-level": ("low", [], {"grpc_compression_level": "low"}),
    "grpc-keepalive-time": ("5", [], {"grpc_keepalive_time_ms": 5}),
    "grpc-keepalive-timeout": ("5", [], {"grpc_keepalive_timeout_ms": 5}),
    "grpc-keepalive-permit-without-calls": ("true", [], {"grpc_keepalive_permit_without_calls": True}),
    "grpc-http2-max-pings-without-data": ("5", [], {"grpc_max_pings_without_data": 5}),
    "grpc-http2-min-recv-ping-interval-without-data": ("5", [], {"grpc_min_ping_interval_ms": 5}),
    "grpc-http2-max-ping-strikes": ("5", [], {"grpc_max_ping_strikes": 5}),
    "grpc-max-connection-age": ("5", [], {"grpc_max_connection_age_ms": 5}),
    "grpc-max-connection-age-grace": ("5", [], {"grpc_max_connection_age_grace_ms": 5}),
    "grpc-restricted-protocol": (
        "trace,health:k=v",
        [],
        {"grpc_restricted_protocols": dict.fromkeys(("trace", "health"), Restriction("triton-grpc-protocol-k", "v"))},
    ),
    "log-verbose": ("1", [], {"log_verbose": 1}),
    "log-info": ("false", [], {"log_info": False}),
    "log-warning": ("false", [], {"log_warning": False}),
    "log-error": ("false", [], {"log_error": False}),
    "log-format": ("ISO8601", [], {"log_format": "ISO8601"}),
    "log-file": ("a.log", [], {"log_file": "a.log"}),
    "allow-metrics": ("false", [], {"allow_metrics": False}),
    "allow-gpu-metrics": ("false", [], {"allow_gpu_metrics": False}),
    "allow-cpu-metrics": ("false", [], {"allow_cpu_metrics": False}),
    "metrics-address": ("::1", [], {"metrics_address": "::1"}),
    "metrics-port": ("80", [], {"metrics_port": 80}),
    "metrics-interval-ms": ("10.5", [], {"metrics_interval_ms": 10.5}),
    "metrics-config": (
        "summary_latencies=true",
        [],
        {"metrics_config": MetricsSettings(summary_latencies=True)},
    ),
    "trace-config": ("rate=5", [], {"trace": replace(DEFAULTS.trace, rate=5)}),
    "allow-client-shm": ("true", [], {"allow_client_shm": True}),
    "backend-directory": ("/b", [], {"backend_directory": "/b"}),
    "cache-config": ("c,size=1", [], {"cache_config": {"c": {"size": "1"}}}),
    "host-policy": ("mine,numa-node=1", [], {"host_policies": {"mine": {"numa-node": "1"}}}),
    "cache-directory": ("/c", [], {"cache_directory": "/c"}),
    "response-cache-byte-size": ("5", [], {"cache_config": {"local": {"size": "5"}}}),
    "repoagent-directory": ("/a", [], {"repoagent_directory": "/a"}),
    "backend-config": ("vllm,a=1", [], {"backend_config": {"vllm": {"a": "1"}}}),
    "strict-model-config": ("true", [], {"auto_complete_config": False}),
    "trace-file": ("t.json", [], {"trace": replace(DEFAULTS.trace, file="t.json")}),
    "trace-level": (
        "TIMESTAMPS",
        ["--trace-config=triton,file=t.json"],
        {"trace": replace(DEFAULTS.trace, levels=read_levels(["TIMESTAMPS"]), file="t.json")},
    ),
    "trace-rate": ("5", [], {"trace": replace(DEFAULTS.trace, rate=5)}),
    "trace-count": ("5", [], {"trace": replace(DEFAULTS.trace, count=5)}),
    "trace-log-frequency": ("5", [], {"trace": replace(DEFAULTS.trace, log_frequency=5)}),
}
# Values for options without effect, as a user of Triton would write them, by kind.
EXAMPLES = {
    Kind.BOOL: "true",
    Kind.INT: "3",
    Kind.FLOAT: "0.5",
    Kind.STR: "a",
    Kind.REPEATABLE: "0:1024",
    Kind.SETTING: "local,size=1",
}


def test_table_has_tritons_91_options_and_ours():
    """The table holds the options of tritonserver, all of them once, and those of our own."""
    in_groups = [option.name for group in TRITON_GROUPS for option in group.options]
    assert sorted(in_groups) == sorted(TRITON_OPTIONS)
    assert len(set(in_groups)) == 91
    tls = {f"http-{name}" for name in ("use-ssl", "use-ssl-mutual", "server-cert", "server-key", "root-cert")}
    ours = {
        "config",
        "debug",
        "http-public-origin",
        "max-pending-bytes",
        "no-fast-path",
        "reload",
        "visible-gpus",
        *tls,
    }
    assert OPTIONS.keys() - set(in_groups) == ours


@pytest.mark.parametrize("name", NUMBERED)
def test_option_does_what_its_status_says(name):
    """An option that works has just its own effect on the settings; any other option has none, and causes a warning."""
    option = OPTIONS[name]
    if name == "help":
        assert parse_arguments(["--help"]) == ({"help": True}, [])
        return
    if option.status is Status.WORKS:
        value, more, changes = EFFECTS[name]
        expected = []
    else:
        value, more, changes = EXAMPLES[option.kind], [], {}
        words = "and has no effect" if option.status is Status.NO_OP else "but has no effect yet"
        expected = [f"--{name} is accepted {words}: {option.note}"]
    word = f"--{name}" if value is None else f"--{name}={value}"
    values, warnings = parse_arguments([REPOSITORY, *more, word])
    settings, further = resolve(values)
    assert [warning for warning in warnings + further if "no request is traced" not in warning] == expected
    assert settings == replace(DEFAULTS, **changes)
    assert bool(changes) is (option.status is Status.WORKS)


def test_max_pending_bytes():
    """An option of ours: it sets the budget, which otherwise follows the memory of the machine."""
    settings, _ = resolve(parse_arguments([REPOSITORY, "--max-pending-bytes=5"])[0])
    assert settings == replace(DEFAULTS, max_pending_bytes=5)
    assert DEFAULTS.max_pending_bytes == 0


def test_defaults_are_those_of_the_settings():
    """The defaults in the help are those of the server: setting an option to its default changes nothing."""
    words = [
        f"--{option.name}={option.default}"
        for option in OPTIONS.values()
        if option.default and option.kind is not Kind.FLAG
    ]
    settings, _ = resolve(parse_arguments([*words, "--model-repository=models"])[0])
    assert settings == ServerSettings(("models",))


def test_only_options_without_effect_have_a_note():
    """A note says why an option has no effect, so exactly those have one."""
    assert [option.name for option in OPTIONS.values() if bool(option.note) is (option.status is Status.WORKS)] == []


def test_every_option_has_a_sentence():
    """The help has a sentence for every option."""
    assert [option.name for group in GROUPS for option in group.options if not option.help.endswith(".")] == []

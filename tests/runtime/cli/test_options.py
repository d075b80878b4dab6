# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from pyruntime.runtime.cli.options import GROUPS, OPTIONS, TRITON_GROUPS, Kind, Status
from pyruntime.runtime.cli.parse import parse_arguments
from pyruntime.runtime.cli.resolve import resolve
from pyruntime.runtime.settings import ServerSettings

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
EXAMPLES = {Kind.BOOL: "true", Kind.INT: "3", Kind.FLOAT: "0.5", Kind.STR: "a", Kind.REPEATABLE: "a"}


def test_table_has_tritons_91_options_and_ours():
    """The table holds the options of tritonserver, all of them once, and those of our own."""
    in_groups = [option.name for group in TRITON_GROUPS for option in group.options]
    assert sorted(in_groups) == sorted(TRITON_OPTIONS)
    assert len(set(in_groups)) == 91
    assert OPTIONS.keys() - set(in_groups) == {"config", "debug"}


@pytest.mark.parametrize("name", NUMBERED)
def test_option_parses_and_warns_by_its_status(name):
    """Every option of tritonserver is accepted, and warns once where it has no effect."""
    option = OPTIONS[name]
    example = "local,size=1" if option.kind is Kind.SETTING else EXAMPLES.get(option.kind)
    words = [f"--{name}"] if option.kind is Kind.FLAG else [f"--{name}={example}"] * 2
    values, warnings = parse_arguments(words)
    assert list(values) == [option.alias_of or name]
    if option.status is Status.WORKS:
        assert warnings == []
    else:
        words = "and has no effect" if option.status is Status.NO_OP else "but has no effect yet"
        assert warnings == [f"--{name} is accepted {words}: {option.note}"]


def test_defaults_are_those_of_the_settings():
    """What the help says is what the server does: saying a default aloud changes nothing."""
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

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""All settings of the server, as one frozen value with Triton's defaults. (pure)

A `ServerSettings` is always valid: its constructor refuses contradictions. `cli/resolve.py` builds one from options;
this module does not know where values come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from pyruntime.runtime.header_pattern import HeaderPattern
from pyruntime.utils.errors import PyruntimeError
from pyruntime.utils.gpu.visible import ALL_GPUS, OWN_GPU

PORT_MAX = 65535
MIB = 1 << 20
# All interfaces.
ANY_ADDRESS = "0.0.0.0"
# Addresses that begin so are UNIX sockets, without a port: see frontends/common/unix_sockets.py.
UNIX_PREFIX = "unix:"
DEFAULT_LOG_FORMAT = "default"
LOG_FORMATS = (DEFAULT_LOG_FORMAT, "ISO8601", "json")
# An int32 in the protocols.
LOG_VERBOSE_MAX = 2**31 - 1
COMPRESSION_LEVELS = ("none", "low", "medium", "high")
VISIBLE_GPUS = (ALL_GPUS, OWN_GPU)
MODEL_CONTROL_MODES = ("none", "poll", "explicit")
# The value of --load-model that means all models.
ALL_MODELS = "*"
# Each quantile is a line in each summary of each model.
QUANTILES_MAX = 64
# Reading the devices takes about as long.
METRICS_INTERVAL_MS_MIN = 1.0
# The modes of tracing; and the levels, in the order in which Triton lists them. None of them is "OFF".
TRACE_TRITON = "triton"
TRACE_OPENTELEMETRY = "opentelemetry"
TRACE_MODES = (TRACE_TRITON, TRACE_OPENTELEMETRY)
TRACE_TIMESTAMPS = "TIMESTAMPS"
TRACE_TENSORS = "TENSORS"
TRACE_LEVELS = (TRACE_TIMESTAMPS, TRACE_TENSORS)
# Where a collector of OpenTelemetry listens by default.
TRACE_URL = "http://localhost:4318/v1/traces"
# Counts and times that may be 0.
_NOT_NEGATIVE = {
    "--exit-timeout-secs": "exit_timeout_s",
    "--repository-poll-secs": "repository_poll_s",
    "--model-load-retry-count": "model_load_retry_count",
    "--grpc-keepalive-time": "grpc_keepalive_time_ms",
    "--grpc-keepalive-timeout": "grpc_keepalive_timeout_ms",
    "--grpc-http2-max-pings-without-data": "grpc_max_pings_without_data",
    "--grpc-http2-min-recv-ping-interval-without-data": "grpc_min_ping_interval_ms",
    "--grpc-http2-max-ping-strikes": "grpc_max_ping_strikes",
    "--grpc-max-connection-age": "grpc_max_connection_age_ms",
    "--grpc-max-connection-age-grace": "grpc_max_connection_age_grace_ms",
    "--max-pending-bytes": "max_pending_bytes",
    "--pinned-memory-pool-byte-size": "pinned_memory_pool_bytes",
}
# A site as browsers name it: a scheme and a host, with a port unless it is the scheme's own, and nothing behind it.
_ORIGIN = re.compile(r"https?://[^/?#@\s]+", re.IGNORECASE)
# Addresses that mean all addresses of the machine: a port that is used there is used on each of them.
_WILDCARDS = ("0.0.0.0", "::", "")


class SettingsError(PyruntimeError):
    """A setting is invalid. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class PythonBackendSettings:
    """The settings of `--backend-config=python,<key>=<value>`. Sizes are in bytes.

    A region starts at `shm_default_byte_size` and grows by multiples of `shm_growth_byte_size`.

    Raises SettingsError for a value out of range.
    """

    shm_default_byte_size: int = MIB
    shm_growth_byte_size: int = MIB
    stub_timeout_s: int = 30
    shm_region_prefix_name: str = "triton_python_backend_shm_region_"
    thread_pool_size: int = 32
    shm_message_queue_size: int = 1000
    default_max_batch_size: int = 4

    def __post_init__(self) -> None:
        if self.shm_default_byte_size < MIB:
            # Triton's message, including its wrong number, because users search logs for it.
            raise SettingsError("shm-default-byte-size can't be smaller than 4 MiBs")
        _require_positive("shm-growth-byte-size", self.shm_growth_byte_size)
        _require_positive("stub-timeout-seconds", self.stub_timeout_s)
        _require_positive("thread-pool-size", self.thread_pool_size)
        _require_positive("shm_message_queue_size", self.shm_message_queue_size)
        _require_not_negative("default-max-batch-size", self.default_max_batch_size)


class Restriction(NamedTuple):
    """The header (lower-case) and its value that a client must send to use a restricted API."""

    header: str
    value: str


class ResourceLimit(NamedTuple):
    """How much there is of a resource that executions share: on a device; None is each device."""

    name: str
    amount: int
    device: int | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The PEM files of an endpoint with TLS. With `root_cert`, clients must present a certificate too.

    Raises SettingsError if the certificate or its key is missing.
    """

    cert: str
    key: str
    root_cert: str = ""

    def __post_init__(self) -> None:
        if not self.cert or not self.key:
            raise SettingsError("TLS needs a certificate and its key: --<protocol>-server-cert and -server-key")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How requests are traced. `levels` are some of TRACE_LEVELS; every `rate`-th request is traced, and `count` in
    all, -1 for any number.

    In mode TRACE_TRITON traces are written to `file`; with a `log_frequency`, so many of them to a file of their own.
    In mode TRACE_OPENTELEMETRY they are sent to `url`, as those of a `resource` with these attributes: at most
    `export_batch_max` spans at a time, `schedule_delay_ms` milliseconds after their end at the latest. `queue_max`
    spans wait at most; further ones are dropped.
    """

    mode: str = TRACE_TRITON
    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    url: str = TRACE_URL
    resource: tuple[tuple[str, str], ...] = ()
    schedule_delay_ms: int = 5000
    export_batch_max: int = 512
    queue_max: int = 2048


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The enabled latency metrics. Each of `summary_quantiles` is a rank and its allowed error.

    Raises SettingsError for a value out of range.
    """

    counter_latencies: bool = True
    histogram_latencies: bool = False
    summary_latencies: bool = False
    summary_quantiles: tuple[tuple[float, float], ...] = (
        (0.5, 0.05),
        (0.9, 0.01),
        (0.95, 0.001),
        (0.99, 0.001),
        (0.999, 0.001),
    )

    def __post_init__(self) -> None:
        if len(self.summary_quantiles) > QUANTILES_MAX:
            raise SettingsError(f"summary_quantiles are {QUANTILES_MAX} at most, not {len(self.summary_quantiles)}")
        for rank, error in self.summary_quantiles:
            if not (0 <= rank <= 1 and 0 <= error <= 1):
                raise SettingsError(
                    f"a quantile and its error must be between 0 and 1, unlike {rank}:{error} in summary_quantiles"
                )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of one server. Times are in seconds, sizes in bytes; port 0 lets the system choose a free port.

    `backend_config` maps a backend's name to its keys and values, "" to the global ones. `cache_config` maps the name
    of the response cache, if there is one, to its keys and values. `host_policies` maps a policy's name to its keys and
    values, which C++ backends read. `model_load_gpu_limits` maps the number of a GPU to the fraction of its memory that
    may be in use when a model is loaded onto it, and `cuda_memory_pool_bytes` to the size of each pool of its memory,
    where that is not the default: for C++ backends in a process, and for tensors. Restrictions are by Triton's names of
    APIs.
    `metrics_address` None means the address of HTTP. `debug_model` is the model that runs at the server's terminal,
    with one instance and without time limits, "" for none. `max_pending_bytes` 0 means the default for the memory of
    the machine. `http_public_origins` are the sites of proxies that show the page. Without `fast_path` Python reads and
    writes all requests.

    Raises SettingsError for values out of range and for contradictions.
    """

    model_repositories: tuple[str, ...]
    server_id: str = "triton"
    exit_timeout_s: int = 30
    exit_on_error: bool = True
    auto_complete_config: bool = True
    strict_readiness: bool = True
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_config_name: str = ""
    model_control_mode: str = "none"
    repository_poll_s: int = 15
    load_models: tuple[str, ...] = ()
    allow_http: bool = True
    http_address: str = ANY_ADDRESS
    http_port: int = 8000
    reuse_http_port: bool = False
    http_max_input_size: int = 64 * MIB
    http_header_forward_pattern: str = ""
    http_restricted_apis: Mapping[str, Restriction] = field(default_factory=dict)
    http_public_origins: tuple[str, ...] = ()
    http_tls: TlsSettings | None = None
    allow_grpc: bool = True
    grpc_address: str = ANY_ADDRESS
    grpc_port: int = 8001
    reuse_grpc_port: bool = False
    grpc_header_forward_pattern: str = ""
    grpc_restricted_protocols: Mapping[str, Restriction] = field(default_factory=dict)
    grpc_tls: TlsSettings | None = None
    grpc_compression_level: str = "none"
    grpc_keepalive_time_ms: int = 7_200_000
    grpc_keepalive_timeout_ms: int = 20_000
    grpc_keepalive_permit_without_calls: bool = False
    grpc_max_pings_without_data: int = 2
    grpc_min_ping_interval_ms: int = 300_000
    grpc_max_ping_strikes: int = 2
    grpc_max_connection_age_ms: int = 0
    grpc_max_connection_age_grace_ms: int = 0
    allow_metrics: bool = True
    metrics_address: str | None = None
    metrics_port: int = 8002
    allow_gpu_metrics: bool = True
    allow_cpu_metrics: bool = True
    metrics_interval_ms: float = 2000.0
    metrics_config: MetricsSettings = field(default_factory=MetricsSettings)
    trace: TraceSettings = field(default_factory=TraceSettings)
    allow_client_shm: bool = False
    backend_directory: str | None = None
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    host_policies: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limits_rate: bool = False
    rate_limit_resources: tuple[ResourceLimit, ...] = ()
    min_supported_compute_capability: float = 6.0
    model_load_gpu_limits: Mapping[int, float] = field(default_factory=dict)
    enable_peer_access: bool = True
    visible_gpus: str = ALL_GPUS
    pinned_memory_pool_bytes: int = 256 * MIB
    cuda_memory_pool_bytes: Mapping[int, int] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"
    repoagent_directory: str = "/opt/tritonserver/repoagents"
    python_backend: PythonBackendSettings = field(default_factory=PythonBackendSettings)
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    # One of LOG_FORMATS; without one it is the default, and at a terminal that of people.
    log_format: str = ""
    log_file: str = ""
    debug_model: str = ""
    max_pending_bytes: int = 0
    fast_path: bool = True

    def __post_init__(self) -> None:
        if self.http_max_input_size <= 0:
            raise SettingsError("--http-max-input-size must be greater than 0.")
        for option, field_name in _NOT_NEGATIVE.items():
            _require_not_negative(option, getattr(self, field_name))
        if not 0 <= self.log_verbose <= LOG_VERBOSE_MAX:
            raise SettingsError(f"--log-verbose must be between 0 and {LOG_VERBOSE_MAX}, not {self.log_verbose}.")
        _require_positive("--model-load-thread-count", self.model_load_thread_count)
        _require_one_of("--visible-gpus", self.visible_gpus, VISIBLE_GPUS)
        _require_one_of("--log-format", self.log_format or DEFAULT_LOG_FORMAT, LOG_FORMATS)
        _require_one_of("--grpc-infer-response-compression-level", self.grpc_compression_level, COMPRESSION_LEVELS)
        _require_one_of("--model-control-mode", self.model_control_mode, MODEL_CONTROL_MODES)
        if not METRICS_INTERVAL_MS_MIN <= self.metrics_interval_ms < math.inf:
            raise SettingsError(
                f"--metrics-interval-ms must be a number from {METRICS_INTERVAL_MS_MIN:g} on, "
                f"not {self.metrics_interval_ms}."
            )
        _require_pattern("--http-header-forward-pattern", self.http_header_forward_pattern)
        _require_pattern("--grpc-header-forward-pattern", self.grpc_header_forward_pattern)
        for origin in self.http_public_origins:
            if _ORIGIN.fullmatch(origin) is None:
                raise SettingsError(
                    "--http-public-origin must be what browsers send as `Origin`, such as https://models.example.com, "
                    f"not {origin!r}."
                )
        self._check_load_models()
        if len(self.cache_config) > 1:
            raise SettingsError("found multiple cache configurations, but only a single cache is currently supported")
        for name, _, port in self._endpoints():
            if not 0 <= port <= PORT_MAX:
                raise SettingsError(f"{name} must be between 0 and {PORT_MAX}, not {port}.")
        self._refuse_port_collisions()

    @property
    def drain_s(self) -> float:
        """The time limit for requests when their model is unloaded, in seconds; infinite in debug mode."""
        return math.inf if self.debug_model else self.exit_timeout_s

    @property
    def metrics_host(self) -> str:
        """The address of metrics. They have a port, also where HTTP has a UNIX socket."""
        if self.metrics_address is not None:
            return self.metrics_address
        return ANY_ADDRESS if self.http_address.startswith(UNIX_PREFIX) else self.http_address

    def _check_load_models(self) -> None:
        if self.load_models and self.model_control_mode != "explicit":
            raise SettingsError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if ALL_MODELS in self.load_models and set(self.load_models) != {ALL_MODELS}:
            raise SettingsError(f"--load-model={ALL_MODELS} loads every model, and cannot be given beside names.")

    def _endpoints(self) -> list[tuple[str, str, int]]:
        """(option, address, port) of every enabled endpoint."""
        endpoints = (
            (self.allow_http, "--http-port", self.http_address, self.http_port),
            (self.allow_grpc, "--grpc-port", self.grpc_address, self.grpc_port),
            (self.allow_metrics, "--metrics-port", self.metrics_host, self.metrics_port),
        )
        return [(name, address, port) for allowed, name, address, port in endpoints if allowed]

    def _refuse_port_collisions(self) -> None:
        for (name, address, port), (other, other_address, other_port) in combinations(self._endpoints(), 2):
            if UNIX_PREFIX in (address[: len(UNIX_PREFIX)], other_address[: len(UNIX_PREFIX)]):
                continue
            same_address = address == other_address or address in _WILDCARDS or other_address in _WILDCARDS
            if port == other_port and port != 0 and same_address:
                raise SettingsError(f"{name} and {other} are both {port}; each needs a port of its own.")


def _require_positive(name: str, value: int) -> None:
    if value <= 0:
        raise SettingsError(f"{name} must be greater than 0, not {value}.")


def _require_not_negative(name: str, value: int) -> None:
    if value < 0:
        raise SettingsError(f"{name} must not be negative, and is {value}.")


def _require_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingsError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")


def _require_pattern(name: str, value: str) -> None:
    try:
        HeaderPattern(value)
    except ValueError as exc:
        raise SettingsError(f"{name} must be a regular expression of RE2, unlike {value!r}: {exc}") from exc


def without_credentials(url: str) -> tuple[str, str]:
    """A URL, with http for a scheme where it has none, without the user and password in it; and these, or ""."""
    from urllib.parse import urlsplit  # only a server that sends traces pays for it

    parts = urlsplit(url if "://" in url else f"http://{url}")
    credentials, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl(), credentials

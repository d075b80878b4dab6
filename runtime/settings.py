# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every setting that the server acts on, as one frozen value with Triton's defaults. (pure)

A `ServerSettings` that exists is valid: what contradicts itself is refused when it is made. Where the values come from
(command line, configuration file, a test) is not known here; `cli/resolve.py` makes one from options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from pyruntime.utils.errors import PyruntimeError

PORT_MAX = 65535
MIB = 1 << 20
LOG_FORMATS = ("default", "ISO8601")
MODEL_CONTROL_MODES = ("none", "poll", "explicit")
# What --load-model says instead of names.
ALL_MODELS = "*"
# An address that stands for every address of the machine; a port taken there is taken on each of them.
_WILDCARDS = ("0.0.0.0", "::", "")


class SettingsError(PyruntimeError):
    """The operator asked for something that cannot be had. The message is one sentence for the operator."""


@dataclass(frozen=True, slots=True)
class PythonBackendSettings:
    """What `--backend-config=python,<key>=<value>` sets. Sizes in bytes.

    A region starts at `shm_default_byte_size` and grows by multiples of `shm_growth_byte_size`.

    Raises SettingsError where a value is out of its range.
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
            # Triton's own sentence, wrong number included: clients of its log look for it.
            raise SettingsError("shm-default-byte-size can't be smaller than 4 MiBs")
        _require_positive("shm-growth-byte-size", self.shm_growth_byte_size)
        _require_positive("stub-timeout-seconds", self.stub_timeout_s)
        _require_positive("thread-pool-size", self.thread_pool_size)
        _require_positive("shm_message_queue_size", self.shm_message_queue_size)
        _require_not_negative("default-max-batch-size", self.default_max_batch_size)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server's settings. Times in seconds, sizes in bytes; port 0 asks the system for a free port.

    `backend_config` maps a backend's name to its keys and values; the global ones stand under "".
    `metrics_address` is None for "where HTTP is". `debug_model` is a model that runs at the server's own terminal, with
    one instance and without time limits, "" for none.

    Raises SettingsError where a value is out of its range or two of them contradict each other.
    """

    model_repositories: tuple[str, ...]
    server_id: str = "triton"
    exit_timeout_s: int = 30
    exit_on_error: bool = True
    auto_complete_config: bool = True
    strict_readiness: bool = True
    model_load_thread_count: int = 4
    model_config_name: str = ""
    model_control_mode: str = "none"
    load_models: tuple[str, ...] = ()
    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: int = 8000
    reuse_http_port: bool = False
    http_max_input_size: int = 64 * MIB
    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: int = 8001
    allow_metrics: bool = True
    metrics_address: str | None = None
    metrics_port: int = 8002
    backend_directory: str | None = None
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    python_backend: PythonBackendSettings = field(default_factory=PythonBackendSettings)
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: str = "default"
    log_file: str = ""
    debug_model: str = ""

    def __post_init__(self) -> None:
        if self.http_max_input_size <= 0:
            raise SettingsError("--http-max-input-size must be greater than 0.")
        _require_not_negative("--exit-timeout-secs", self.exit_timeout_s)
        _require_not_negative("--log-verbose", self.log_verbose)
        _require_positive("--model-load-thread-count", self.model_load_thread_count)
        _require_one_of("--log-format", self.log_format, LOG_FORMATS)
        _require_one_of("--model-control-mode", self.model_control_mode, MODEL_CONTROL_MODES)
        self._check_load_models()
        for name, _, port in self._endpoints():
            if not 0 <= port <= PORT_MAX:
                raise SettingsError(f"{name} must be between 0 and {PORT_MAX}, not {port}.")
        self._refuse_port_collisions()

    @property
    def drain_s(self) -> float:
        """How long requests may take to end when their model does, in seconds; somebody who debugs one has no limit."""
        return math.inf if self.debug_model else self.exit_timeout_s

    def _check_load_models(self) -> None:
        if self.load_models and self.model_control_mode != "explicit":
            raise SettingsError("Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if ALL_MODELS in self.load_models and set(self.load_models) != {ALL_MODELS}:
            raise SettingsError(f"--load-model={ALL_MODELS} loads every model, and cannot be given beside names.")

    def _endpoints(self) -> list[tuple[str, str, int]]:
        """(option, address, port) of every endpoint that is switched on."""
        metrics_address = self.http_address if self.metrics_address is None else self.metrics_address
        endpoints = (
            (self.allow_http, "--http-port", self.http_address, self.http_port),
            (self.allow_grpc, "--grpc-port", self.grpc_address, self.grpc_port),
            (self.allow_metrics, "--metrics-port", metrics_address, self.metrics_port),
        )
        return [(name, address, port) for allowed, name, address, port in endpoints if allowed]

    def _refuse_port_collisions(self) -> None:
        for (name, address, port), (other, other_address, other_port) in combinations(self._endpoints(), 2):
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

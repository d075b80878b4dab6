# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds `ServerSettings` from the values of options. (pure)

It knows how options depend on each other, and parses `--backend-config`. The settings classes check ranges and
contradictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyruntime.runtime.cli.gpu_limits import read_gpu_limits, read_pool_sizes
from pyruntime.runtime.cli.metrics_config import read_metrics_config
from pyruntime.runtime.cli.options import OPTIONS, Kind
from pyruntime.runtime.cli.parse import Value, convert
from pyruntime.runtime.cli.rate_limit import read_rate_limit, read_rate_limit_resources
from pyruntime.runtime.cli.restrictions import read_restrictions
from pyruntime.runtime.cli.trace_config import read_trace_config
from pyruntime.runtime.settings import PythonBackendSettings, ServerSettings, SettingsError, TlsSettings
from pyruntime.runtime.suggestions import did_you_mean

# The keys of `--backend-config=python,<key>=<value>`, in Triton's spelling, and the fields they set.
PYTHON_KEYS = {
    "shm-default-byte-size": "shm_default_byte_size",
    "shm-growth-byte-size": "shm_growth_byte_size",
    "stub-timeout-seconds": "stub_timeout_s",
    "shm-region-prefix-name": "shm_region_prefix_name",
    "thread-pool-size": "thread_pool_size",
    "shm_message_queue_size": "shm_message_queue_size",
    "default-max-batch-size": "default_max_batch_size",
}
_GLOBAL = ""
# The interval of --reload, in seconds.
RELOAD_POLL_S = 1
# A response cache knows nothing of headers.
_SHARED_ANSWERS = (
    "--cache-config with a header forward pattern: the response cache gives the answer to one client's headers to "
    "clients with others, so no model that acts on headers may have `response_cache { enable: true }`"
)
# The settings of a host policy, as in Triton.
HOST_POLICY_KEYS = ("numa-node", "cpu-cores")


def resolve(values: Mapping[str, Value]) -> tuple[ServerSettings, list[str]]:
    """The settings in `values`, and warnings for values without effect.

    Raises SettingsError if there is no model repository or a value is out of range.
    """
    warnings: list[str] = []
    repositories = values.get("model-repository", [])
    assert isinstance(repositories, list)
    if not repositories:
        raise SettingsError("--model-repository must be specified")
    if "" in repositories:
        # As a path it would be the current folder.
        raise SettingsError("--model-repository needs a folder, and was given an empty text")
    fields: dict[str, Any] = {}
    for name, value in values.items():
        # An empty text means that the option is absent, as in Triton.
        if OPTIONS[name].field and value != "":
            fields[OPTIONS[name].field] = tuple(value) if isinstance(value, list) else value
    fields["auto_complete_config"] = not (
        values.get("disable-auto-complete-config", False) or values.get("strict-model-config", False)
    )
    if "model_control_mode" in fields:
        fields["model_control_mode"] = str(fields["model_control_mode"]).lower()
    if values.get("reload", False):
        if fields.get("model_control_mode", "none") != "none":
            raise SettingsError("--reload polls the repositories, so --model-control-mode cannot be given with it")
        fields |= {"model_control_mode": "poll", "repository_poll_s": RELOAD_POLL_S}
        # A model that does not load is about to be edited.
        fields.setdefault("exit_on_error", False)
    fields["fast_path"] = not values.get("no-fast-path", False)
    for protocol in ("http", "grpc"):
        fields[f"{protocol}_tls"] = _tls(protocol, values)
    fields["http_restricted_apis"] = read_restrictions("http-restricted-api", values.get("http-restricted-api", []))
    fields["grpc_restricted_protocols"] = read_restrictions(
        "grpc-restricted-protocol", values.get("grpc-restricted-protocol", []), prefix="triton-grpc-protocol-"
    )
    fields["metrics_config"] = read_metrics_config(values.get("metrics-config", []))
    fields["trace"] = read_trace_config(values, warnings)
    backend_config = _backend_config(values.get("backend-config", []))
    fields["backend_config"] = backend_config
    fields["cache_config"] = _cache_config(values)
    fields["limits_rate"] = read_rate_limit(str(values.get("rate-limit") or "off"))
    resources = values.get("rate-limit-resource", [])
    assert isinstance(resources, list)
    fields["rate_limit_resources"] = read_rate_limit_resources(resources)
    limits = values.get("model-load-gpu-limit", [])
    assert isinstance(limits, list)
    fields["model_load_gpu_limits"] = read_gpu_limits(limits)
    pools = values.get("cuda-memory-pool-byte-size", [])
    assert isinstance(pools, list)
    fields["cuda_memory_pool_bytes"] = read_pool_sizes(pools)
    fields["host_policies"] = _host_policies(values.get("host-policy", []))
    fields["python_backend"] = _python_backend(backend_config, warnings)
    settings = ServerSettings(**fields)
    if settings.cache_config and (settings.http_header_forward_pattern or settings.grpc_header_forward_pattern):
        warnings.append(_SHARED_ANSWERS)
    return settings, warnings


def _tls(protocol: str, values: Mapping[str, Value]) -> TlsSettings | None:
    mutual = bool(values.get(f"{protocol}-use-ssl-mutual", False))
    if not mutual and not values.get(f"{protocol}-use-ssl", False):
        return None
    cert, key, root = (str(values.get(f"{protocol}-{name}", "")) for name in ("server-cert", "server-key", "root-cert"))
    if mutual and not root:
        raise SettingsError(f"--{protocol}-use-ssl-mutual needs --{protocol}-root-cert, which signs the clients'")
    return TlsSettings(cert, key, root if mutual else "")


def _backend_config(texts: Value) -> dict[str, dict[str, str]]:
    """`["python,a=1", "b=2"]` -> `{"python": {"a": "1"}, "": {"b": "2"}}`. After "=", a comma is part of the value."""
    assert isinstance(texts, list)
    config: dict[str, dict[str, str]] = {}
    for text in texts:
        left, _, value = text.partition("=")
        backend, comma, key = left.partition(",")
        if not comma:
            backend, key = _GLOBAL, left
        if not key or (comma and not backend):
            raise SettingsError(f"--backend-config needs <backend>,<key>=<value> or <key>=<value>, not {text!r}")
        config.setdefault(backend, {})[key] = value
    return config


def _cache_config(values: Mapping[str, Value]) -> dict[str, dict[str, str]]:
    """`["local,size=1"]` -> `{"local": {"size": "1"}}`; also reads the older option for the size of the local cache."""
    texts = values.get("cache-config", [])
    assert isinstance(texts, list)
    config: dict[str, dict[str, str]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        cache, comma, key = left.partition(",")
        if not (cache and comma and key and equals):
            raise SettingsError(
                f"No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {text}"
            )
        config.setdefault(cache, {})[key] = value
    size = values.get("response-cache-byte-size")
    if size is None:
        return config
    if config:
        raise SettingsError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or the "
            "other."
        )
    # In Triton, 0 means no cache.
    return {"local": {"size": str(size)}} if size else {}


def _host_policies(texts: Value) -> dict[str, dict[str, str]]:
    """`["mine,numa-node=1"]` -> `{"mine": {"numa-node": "1"}}`."""
    assert isinstance(texts, list)
    policies: dict[str, dict[str, str]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        policy, comma, key = left.partition(",")
        if not (policy and comma and key and equals and value):
            raise SettingsError(f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}")
        if key not in HOST_POLICY_KEYS:
            supported = ", ".join(f"'{each}'" for each in HOST_POLICY_KEYS)
            raise SettingsError(
                f"Unsupported host policy setting '{key}' is specified, supported settings are {supported}"
            )
        policies.setdefault(policy, {})[key] = value
    return policies


def _python_backend(config: Mapping[str, Mapping[str, str]], warnings: list[str]) -> PythonBackendSettings:
    """The settings for the Python backend in `config`; `default-max-batch-size` falls back to the global value."""
    own = config.get("python", {})
    shared = {key: text for key, text in config.get(_GLOBAL, {}).items() if key == "default-max-batch-size"}
    fields: dict[str, Any] = {}
    for key, text in {**shared, **own}.items():
        if key not in PYTHON_KEYS:
            hint = did_you_mean(key, PYTHON_KEYS)
            warnings.append(f"--backend-config=python,{key} is not known and has no effect{hint}")
            continue
        fields[PYTHON_KEYS[key]] = text if key == "shm-region-prefix-name" else _integer(key, text)
    return PythonBackendSettings(**fields)


def _integer(key: str, text: str) -> int:
    value = convert(Kind.INT, text, f"--backend-config=python,{key}")
    assert isinstance(value, int)
    return value

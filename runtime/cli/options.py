# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The table of all options of `pyruntime serve`; parsing, help and documentation use it. (pure)

It has all 91 options of `tritonserver`, because a command line written for it must start this server too. The server
accepts an option whose status is not `WORKS` with one warning line. `settings.py` interprets parsed values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The form of an option's argument."""

    FLAG = "flag"  # takes no argument
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    REPEATABLE = "repeatable"  # every occurrence adds one string
    SETTING = "setting"  # repeatable `[<name>,]<key>=<value>`; the last one of a key wins


class Status(Enum):
    """Whether an option has an effect."""

    WORKS = "works"
    LATER = "later"
    NO_OP = "no-op"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is text, as a user would write it; "" if the option is unset.

    `field` is the field of ServerSettings that it sets, if it sets exactly one; `note` says why it has no effect;
    `alias_of` names the option that this is an alias of.
    """

    name: str
    kind: Kind
    default: str
    help: str
    status: Status = Status.WORKS
    note: str = ""
    field: str = ""
    alias_of: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Options that the help lists together."""

    title: str
    options: tuple[Option, ...]


def _works(name: str, kind: Kind, default: str, help: str, field: str = "", alias_of: str = "") -> Option:
    return Option(name, kind, default, help, field=field, alias_of=alias_of)


def _later(name: str, kind: Kind, default: str, help: str, note: str, field: str = "") -> Option:
    return Option(name, kind, default, help, Status.LATER, note, field)


def _no_op(name: str, kind: Kind, default: str, help: str, note: str) -> Option:
    return Option(name, kind, default, help, Status.NO_OP, note)


FLAG, BOOL, INT, FLOAT, STR = Kind.FLAG, Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.STR
REPEATABLE, SETTING = Kind.REPEATABLE, Kind.SETTING

_ONE_LOOP = "one event loop serves every connection"
_FLOW = "a model waits while the client of a stream does not take its responses"
_SAGEMAKER = "pyruntime has no SageMaker endpoint"
_VERTEX = "pyruntime has no Vertex AI endpoint"
_GROWS = "no state of a sequence grows in place on a GPU"

SERVER = Group(
    "Server",
    (
        _works("help", FLAG, "", "Show the options and leave."),
        _works("id", STR, "triton", "Name of this server in its metadata.", "server_id"),
        _works("exit-timeout-secs", INT, "30", "Seconds to wait for requests under way at exit.", "exit_timeout_s"),
        _works("exit-on-error", BOOL, "true", "Leave when a model fails to load at the start.", "exit_on_error"),
        _works("strict-readiness", BOOL, "true", "Ready only when every model is.", "strict_readiness"),
    ),
)

MODELS = Group(
    "Models",
    (
        _works("model-store", REPEATABLE, "", "The same as --model-repository.", alias_of="model-repository"),
        _works("model-repository", REPEATABLE, "", "Folder of models; repeatable.", "model_repositories"),
        _works("disable-auto-complete-config", FLAG, "", "Take each config.pbtxt as it stands; fill nothing in."),
        _works("model-control-mode", STR, "none", "none, poll or explicit: what loads models.", "model_control_mode"),
        _works("repository-poll-secs", INT, "15", "Seconds between two looks, by poll; 0: never.", "repository_poll_s"),
        _works("load-model", REPEATABLE, "", "Model to load at the start in explicit mode; * is all.", "load_models"),
        _works("model-config-name", STR, "", "Use configs/<name>.pbtxt where a model has it.", "model_config_name"),
        _works("model-load-thread-count", INT, "4", "Models that load at the same time.", "model_load_thread_count"),
        _works(
            "model-load-retry-count", INT, "0", "Further tries to load a version that fails.", "model_load_retry_count"
        ),
        _later("model-namespacing", BOOL, "false", "One namespace per repository.", "model names must be unique"),
    ),
)

HTTP = Group(
    "HTTP",
    (
        _works("allow-http", BOOL, "true", "Serve HTTP.", "allow_http"),
        _works("http-address", STR, "0.0.0.0", "Address to listen at, or unix:/path?mode=600.", "http_address"),
        _works("http-port", INT, "8000", "Port to listen at.", "http_port"),
        _works("reuse-http-port", BOOL, "false", "Let several servers share the port.", "reuse_http_port"),
        _works(
            "http-header-forward-pattern", STR, "", "Regex (RE2): headers for models.", "http_header_forward_pattern"
        ),
        _no_op("http-thread-count", INT, "8", "Threads that serve HTTP.", _ONE_LOOP),
        _works("http-max-input-size", INT, "67108864", "Largest request body in bytes.", "http_max_input_size"),
        _works("http-restricted-api", REPEATABLE, "", "<api>[,<api>...]:<header>=<value> that clients must send."),
    ),
)

GRPC = Group(
    "gRPC",
    (
        _works("allow-grpc", BOOL, "true", "Serve gRPC.", "allow_grpc"),
        _works("grpc-address", STR, "0.0.0.0", "Address to listen at, or unix:/path?mode=600.", "grpc_address"),
        _works("grpc-port", INT, "8001", "Port to listen at.", "grpc_port"),
        _works("reuse-grpc-port", BOOL, "false", "Let several servers share the port.", "reuse_grpc_port"),
        _works(
            "grpc-header-forward-pattern", STR, "", "Regex (RE2): metadata for models.", "grpc_header_forward_pattern"
        ),
        _no_op("grpc-infer-thread-count", INT, "2", "Threads that serve inference.", _ONE_LOOP),
        _no_op("grpc-infer-allocation-pool-size", INT, "8", "Request objects kept for reuse.", _ONE_LOOP),
        _no_op("grpc-max-response-pool-size", INT, "2147483647", "Responses of a stream that wait.", _FLOW),
        _works("grpc-use-ssl", BOOL, "false", "Serve over TLS."),
        _works("grpc-use-ssl-mutual", BOOL, "false", "Serve over TLS, to clients with a certificate."),
        _works("grpc-server-cert", STR, "", "File of the server's certificate, PEM."),
        _works("grpc-server-key", STR, "", "File of the server's key, PEM."),
        _works("grpc-root-cert", STR, "", "File of the certificates that sign the clients', PEM."),
        _works(
            "grpc-infer-response-compression-level",
            STR,
            "none",
            "How much responses are compressed: none, low, medium or high.",
            "grpc_compression_level",
        ),
        _works(
            "grpc-keepalive-time", INT, "7200000", "Milliseconds of silence before a ping.", "grpc_keepalive_time_ms"
        ),
        _works(
            "grpc-keepalive-timeout",
            INT,
            "20000",
            "Milliseconds to wait for the answer to a ping.",
            "grpc_keepalive_timeout_ms",
        ),
        _works(
            "grpc-keepalive-permit-without-calls",
            BOOL,
            "false",
            "Ping connections without calls.",
            "grpc_keepalive_permit_without_calls",
        ),
        _works(
            "grpc-http2-max-pings-without-data",
            INT,
            "2",
            "Pings sent between two data frames.",
            "grpc_max_pings_without_data",
        ),
        _works(
            "grpc-http2-min-recv-ping-interval-without-data",
            INT,
            "300000",
            "Milliseconds that clients leave between pings.",
            "grpc_min_ping_interval_ms",
        ),
        _works(
            "grpc-http2-max-ping-strikes",
            INT,
            "2",
            "Pings too many before a client is sent away.",
            "grpc_max_ping_strikes",
        ),
        _works(
            "grpc-max-connection-age",
            INT,
            "",
            "Milliseconds after which a connection is closed; unset: never.",
            "grpc_max_connection_age_ms",
        ),
        _works(
            "grpc-max-connection-age-grace",
            INT,
            "",
            "Milliseconds that its calls then still have; unset: no limit.",
            "grpc_max_connection_age_grace_ms",
        ),
        _works("grpc-restricted-protocol", REPEATABLE, "", "<api>[,<api>...]:<header>=<value>, as for HTTP."),
    ),
)

LOGGING = Group(
    "Logging",
    (
        _works("log-verbose", INT, "0", "Above 0: verbose lines too.", "log_verbose"),
        _works("log-info", BOOL, "true", "Information lines.", "log_info"),
        _works("log-warning", BOOL, "true", "Warning lines.", "log_warning"),
        _works("log-error", BOOL, "true", "Error lines.", "log_error"),
        _works("log-format", STR, "", "default, ISO8601 or json; unset: default, or for people.", "log_format"),
        _works("log-file", STR, "", "File that the lines are added to, instead of standard error.", "log_file"),
    ),
)

CLOUD = Group(
    "SageMaker and Vertex AI",
    (
        _no_op("allow-sagemaker", BOOL, "false", "Serve SageMaker's API.", _SAGEMAKER),
        _no_op("sagemaker-port", INT, "8080", "Port to listen at.", _SAGEMAKER),
        _no_op("sagemaker-safe-port-range", STR, "", "<first>-<last> port allowed.", _SAGEMAKER),
        _no_op("sagemaker-thread-count", INT, "8", "Threads that serve it.", _SAGEMAKER),
        _no_op("allow-vertex-ai", BOOL, "false", "Serve Vertex AI's API.", _VERTEX),
        _no_op("vertex-ai-port", INT, "8080", "Port to listen at.", _VERTEX),
        _no_op("vertex-ai-thread-count", INT, "8", "Threads that serve it.", _VERTEX),
        _no_op("vertex-ai-default-model", STR, "", "Model that answers single-model requests.", _VERTEX),
    ),
)

OBSERVATION = Group(
    "Metrics and traces",
    (
        _works("allow-metrics", BOOL, "true", "Serve Prometheus metrics.", "allow_metrics"),
        _works("allow-gpu-metrics", BOOL, "true", "Metrics of GPUs.", "allow_gpu_metrics"),
        _works("allow-cpu-metrics", BOOL, "true", "Metrics of processors and memory.", "allow_cpu_metrics"),
        _works("metrics-address", STR, "", "Address to listen at; that of HTTP if unset.", "metrics_address"),
        _works("metrics-port", INT, "8002", "Port to listen at.", "metrics_port"),
        _works(
            "metrics-interval-ms", FLOAT, "2000", "Milliseconds between two readings of devices.", "metrics_interval_ms"
        ),
        _works("metrics-config", SETTING, "", "<key>=<value>: which latency metrics there are.", "metrics_config"),
        _works("trace-config", SETTING, "", "[<mode>,]<key>=<value>: which requests are traced, and where to."),
    ),
)

RESOURCES = Group(
    "Caches, limits and devices",
    (
        _works("cache-config", SETTING, "", "<cache>,<key>=<value>: which response cache there is, and its settings."),
        _works(
            "cache-directory",
            STR,
            "/opt/tritonserver/caches",
            "Folder of response caches: <cache>/libtritoncache_<cache>.so.",
            "cache_directory",
        ),
        _works("rate-limit", STR, "off", "off, or execution_count: instances share resources."),
        _works("rate-limit-resource", REPEATABLE, "", "<name>:<count>[:<device>]: how much there is; 8G is a size."),
        _works("enable-peer-access", BOOL, "true", "Tensors go from GPU to GPU directly.", "enable_peer_access"),
        _works(
            "pinned-memory-pool-byte-size",
            INT,
            "268435456",
            "Bytes of pinned memory for C++ backends, in each process; 0 for none.",
            "pinned_memory_pool_bytes",
        ),
        _works(
            "cuda-memory-pool-byte-size",
            REPEATABLE,
            "",
            "<device>:<bytes> for tensors there, and for C++ backends in each process; 67108864 at first, 0: none.",
        ),
        _no_op("cuda-virtual-address-size", REPEATABLE, "", "<device>:<bytes> for a state that grows.", _GROWS),
        _works(
            "min-supported-compute-capability",
            FLOAT,
            "6.0",
            "Instances are on no GPUs below it.",
            "min_supported_compute_capability",
        ),
        _no_op("buffer-manager-thread-count", INT, "0", "Threads that copy tensors.", "tensors are not copied"),
        _works("host-policy", SETTING, "", "<policy>,<key>=<value>: where C++ backends are told to be."),
        _works("model-load-gpu-limit", REPEATABLE, "", "<device>:<fraction> of its memory in use: load nothing more."),
        _works("allow-client-shm", BOOL, "false", "Clients may pass tensors in shared memory.", "allow_client_shm"),
    ),
)

BACKENDS = Group(
    "Backends",
    (
        _works("backend-directory", STR, "", "Folder of backends of your own.", "backend_directory"),
        _works("backend-config", SETTING, "", "<backend>,<key>=<value>, or <key>=<value> for all."),
        _works(
            "repoagent-directory",
            STR,
            "/opt/tritonserver/repoagents",
            "Folder of repository agents: <name>/libtritonrepoagent_<name>.so.",
            "repoagent_directory",
        ),
    ),
)

DEPRECATED = Group(
    "Deprecated",
    (
        _works("strict-model-config", BOOL, "false", "true is --disable-auto-complete-config."),
        _works("response-cache-byte-size", INT, "", "The same as --cache-config=local,size=<bytes>."),
        _works("trace-file", STR, "", "The same as --trace-config=triton,file=<path>."),
        _works("trace-level", REPEATABLE, "", "The same as --trace-config=level=<level>."),
        _works("trace-rate", INT, "1000", "The same as --trace-config=rate=<number>."),
        _works("trace-count", INT, "-1", "The same as --trace-config=count=<number>."),
        _works("trace-log-frequency", INT, "0", "The same as --trace-config=triton,log-frequency=<number>."),
    ),
)

TRITON_GROUPS = (SERVER, MODELS, HTTP, GRPC, LOGGING, CLOUD, OBSERVATION, RESOURCES, BACKENDS, DEPRECATED)
HTTP_TLS = Group(
    "HTTP over TLS, as gRPC has it; of pyruntime",
    (
        _works("http-use-ssl", BOOL, "false", "Serve HTTP over TLS."),
        _works("http-use-ssl-mutual", BOOL, "false", "Serve HTTP over TLS, to clients with a certificate."),
        _works("http-server-cert", STR, "", "File of the HTTP server's certificate, PEM."),
        _works("http-server-key", STR, "", "File of the HTTP server's key, PEM."),
        _works("http-root-cert", STR, "", "File of the certificates that sign those of HTTP's clients, PEM."),
    ),
)
PROXIES = Group(
    "Proxies, of pyruntime",
    (
        _works(
            "http-public-origin",
            REPEATABLE,
            "",
            "https://<host>[:<port>] of a proxy that shows the page to browsers; repeatable.",
            "http_public_origins",
        ),
    ),
)
LIMITS = Group(
    "Limits, of pyruntime",
    (
        _works(
            "max-pending-bytes",
            INT,
            "",
            "Bytes of requests outside of request memory, of all clients; unset: an eighth of the memory.",
            "max_pending_bytes",
        ),
    ),
)
DEVICES = Group(
    "GPUs, of pyruntime",
    (
        _works(
            "visible-gpus", STR, "all", "all, or own: the GPUs that the process of an instance sees.", "visible_gpus"
        ),
    ),
)
# Options that are not allowed in a configuration file.
OWN = Group(
    "Of pyruntime",
    (
        _works("config", STR, "", "YAML file of options; the command line wins over it."),
        _works("reload", FLAG, "", "Load a model again as soon as its files change; for development."),
        _works("debug", STR, "", "Model to run at this terminal, for breakpoint() and debuggers.", "debug_model"),
        _works("no-fast-path", FLAG, "", "Have Python read and write all requests; slower, to find faults."),
    ),
)
GROUPS = (*TRITON_GROUPS, HTTP_TLS, PROXIES, LIMITS, DEVICES, OWN)

OPTIONS: dict[str, Option] = {option.name: option for group in GROUPS for option in group.options}

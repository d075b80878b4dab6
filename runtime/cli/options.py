# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The table of all options of `pyruntime serve`: the one source for parsing, help and documentation. (pure)

The 91 options of `tritonserver` are all here, because a command line written for it must start this server too. Those
without effect say so: an option whose status is not `WORKS` is accepted with one warning line. What a value means
once it is parsed is the business of `settings.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What an option's argument looks like."""

    FLAG = "flag"  # takes no argument
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STR = "str"
    REPEATABLE = "repeatable"  # every occurrence adds one string
    SETTING = "setting"  # repeatable `[<name>,]<key>=<value>`; the last one of a key counts


class Status(Enum):
    """Whether an option does something."""

    WORKS = "works"
    LATER = "later"
    NO_OP = "no-op"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `default` is text, as a user would write it; "" where nothing is set.

    `field` is the field of ServerSettings that it sets, where it sets exactly one; `note` says why it has no effect;
    `alias_of` names the option that this is another name for.
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
    """Options that stand together in the help."""

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

_GRPC = "there is no gRPC endpoint yet"
_METRICS = "there are no metrics yet but those that models make"
_TRACE = "requests are not traced yet"
_POLL = "repositories are not polled yet"
_CACHE = "responses are not cached yet"
_RATE = "instances are not limited by resources yet"
_ONE_LOOP = "one event loop serves every connection"
_SAGEMAKER = "pyruntime has no SageMaker endpoint"
_VERTEX = "pyruntime has no Vertex AI endpoint"
_DEVICE = "the server itself holds no GPU memory; models do, in their own processes"

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
        _works("model-control-mode", STR, "none", "none or explicit; poll does as none for now.", "model_control_mode"),
        _later("repository-poll-secs", INT, "15", "Seconds between two looks at the repositories.", _POLL),
        _works("load-model", REPEATABLE, "", "Model to load at the start in explicit mode; * is all.", "load_models"),
        _works("model-config-name", STR, "", "Use configs/<name>.pbtxt where a model has it.", "model_config_name"),
        _works("model-load-thread-count", INT, "4", "Models that load at the same time.", "model_load_thread_count"),
        _later("model-load-retry-count", INT, "0", "Further tries to load a model.", "a failed load is final"),
        _later("model-namespacing", BOOL, "false", "One namespace per repository.", "model names must be unique"),
    ),
)

HTTP = Group(
    "HTTP",
    (
        _works("allow-http", BOOL, "true", "Serve HTTP.", "allow_http"),
        _works("http-address", STR, "0.0.0.0", "Address to listen at.", "http_address"),
        _works("http-port", INT, "8000", "Port to listen at.", "http_port"),
        _works("reuse-http-port", BOOL, "false", "Let several servers share the port.", "reuse_http_port"),
        _later("http-header-forward-pattern", STR, "", "Headers to hand to models.", "no header is handed to models"),
        _no_op("http-thread-count", INT, "8", "Threads that serve HTTP.", _ONE_LOOP),
        _works("http-max-input-size", INT, "67108864", "Largest request body in bytes.", "http_max_input_size"),
        _later("http-restricted-api", REPEATABLE, "", "APIs that need a header.", "every API is open to every client"),
    ),
)

GRPC = Group(
    "gRPC",
    (
        _later("allow-grpc", BOOL, "true", "Serve gRPC.", _GRPC, "allow_grpc"),
        _later("grpc-address", STR, "0.0.0.0", "Address to listen at.", _GRPC, "grpc_address"),
        _later("grpc-port", INT, "8001", "Port to listen at.", _GRPC, "grpc_port"),
        _later("reuse-grpc-port", BOOL, "false", "Let several servers share the port.", _GRPC),
        _later("grpc-header-forward-pattern", STR, "", "Headers to hand to models.", _GRPC),
        _no_op("grpc-infer-thread-count", INT, "2", "Threads that serve inference.", _ONE_LOOP),
        _no_op("grpc-infer-allocation-pool-size", INT, "8", "Request objects kept for reuse.", _ONE_LOOP),
        _later("grpc-max-response-pool-size", INT, "2147483647", "Responses buffered for a stream.", _GRPC),
        _later("grpc-use-ssl", BOOL, "false", "Serve over TLS.", _GRPC),
        _later("grpc-use-ssl-mutual", BOOL, "false", "Serve over TLS and ask clients for a certificate.", _GRPC),
        _later("grpc-server-cert", STR, "", "File of the server's certificate, PEM.", _GRPC),
        _later("grpc-server-key", STR, "", "File of the server's key, PEM.", _GRPC),
        _later("grpc-root-cert", STR, "", "File of the certificates that sign the clients', PEM.", _GRPC),
        _later("grpc-infer-response-compression-level", STR, "none", "none, low, medium or high.", _GRPC),
        _later("grpc-keepalive-time", INT, "7200000", "Milliseconds of silence before a ping.", _GRPC),
        _later("grpc-keepalive-timeout", INT, "20000", "Milliseconds to wait for the answer to a ping.", _GRPC),
        _later("grpc-keepalive-permit-without-calls", BOOL, "false", "Ping connections without calls.", _GRPC),
        _later("grpc-http2-max-pings-without-data", INT, "2", "Pings sent between two data frames.", _GRPC),
        _later(
            "grpc-http2-min-recv-ping-interval-without-data",
            INT,
            "300000",
            "Milliseconds that clients leave between pings.",
            _GRPC,
        ),
        _later("grpc-http2-max-ping-strikes", INT, "2", "Pings too many before a client is sent away.", _GRPC),
        _later("grpc-max-connection-age", INT, "", "Milliseconds after which a connection is closed.", _GRPC),
        _later("grpc-max-connection-age-grace", INT, "", "Milliseconds that its calls then still have.", _GRPC),
        _later("grpc-restricted-protocol", REPEATABLE, "", "Protocols that need a header.", _GRPC),
    ),
)

LOGGING = Group(
    "Logging",
    (
        _works("log-verbose", INT, "0", "Above 0: verbose lines too.", "log_verbose"),
        _works("log-info", BOOL, "true", "Information lines.", "log_info"),
        _works("log-warning", BOOL, "true", "Warning lines.", "log_warning"),
        _works("log-error", BOOL, "true", "Error lines.", "log_error"),
        _works("log-format", STR, "default", "default or ISO8601.", "log_format"),
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
        _later("allow-gpu-metrics", BOOL, "true", "Metrics of GPUs.", _METRICS),
        _later("allow-cpu-metrics", BOOL, "true", "Metrics of processors and memory.", _METRICS),
        _works("metrics-address", STR, "", "Address to listen at; that of HTTP if unset.", "metrics_address"),
        _works("metrics-port", INT, "8002", "Port to listen at.", "metrics_port"),
        _later("metrics-interval-ms", FLOAT, "2000", "Milliseconds between two readings of devices.", _METRICS),
        _later("metrics-config", SETTING, "", "<key>=<value>: which latency metrics there are.", _METRICS),
        _later("trace-config", SETTING, "", "[<mode>,]<key>=<value> of tracing.", _TRACE),
    ),
)

RESOURCES = Group(
    "Caches, limits and devices",
    (
        _later("cache-config", SETTING, "", "<cache>,<key>=<value>, such as local,size=1048576.", _CACHE),
        _no_op("cache-directory", STR, "", "Folder of cache libraries.", "cache libraries are not loaded"),
        _later("rate-limit", STR, "off", "off or execution_count.", _RATE),
        _later("rate-limit-resource", REPEATABLE, "", "<name>:<count>[:<device>].", _RATE),
        _no_op("enable-peer-access", BOOL, "true", "Let GPUs read each other's memory.", _DEVICE),
        _no_op("pinned-memory-pool-byte-size", INT, "268435456", "Bytes of pinned memory.", _DEVICE),
        _no_op("cuda-memory-pool-byte-size", REPEATABLE, "", "<device>:<bytes> of CUDA memory.", _DEVICE),
        _no_op("cuda-virtual-address-size", REPEATABLE, "", "<device>:<bytes> of address space.", _DEVICE),
        _no_op("min-supported-compute-capability", FLOAT, "6.0", "GPUs below it are not used.", _DEVICE),
        _no_op("buffer-manager-thread-count", INT, "0", "Threads that copy tensors.", "tensors are not copied"),
        _no_op("host-policy", SETTING, "", "<policy>,<key>=<value>.", "the system places the processes of models"),
        _no_op("model-load-gpu-limit", REPEATABLE, "", "<device>:<fraction> that models may fill.", _DEVICE),
        _later("allow-client-shm", BOOL, "false", "Clients may pass shared memory.", "client memory is not read yet"),
    ),
)

BACKENDS = Group(
    "Backends",
    (
        _works("backend-directory", STR, "", "Folder of backends of your own.", "backend_directory"),
        _works("backend-config", SETTING, "", "<backend>,<key>=<value>, or <key>=<value> for all."),
        _no_op("repoagent-directory", STR, "", "Folder of repository agents.", "repository agents are not loaded"),
    ),
)

DEPRECATED = Group(
    "Deprecated",
    (
        _works("strict-model-config", BOOL, "false", "true is --disable-auto-complete-config."),
        _later("response-cache-byte-size", INT, "0", "The same as --cache-config=local,size=<bytes>.", _CACHE),
        _later("trace-file", STR, "", "See --trace-config.", _TRACE),
        _later("trace-level", REPEATABLE, "", "See --trace-config.", _TRACE),
        _later("trace-rate", INT, "1000", "See --trace-config.", _TRACE),
        _later("trace-count", INT, "-1", "See --trace-config.", _TRACE),
        _later("trace-log-frequency", INT, "0", "See --trace-config.", _TRACE),
    ),
)

TRITON_GROUPS = (SERVER, MODELS, HTTP, GRPC, LOGGING, CLOUD, OBSERVATION, RESOURCES, BACKENDS, DEPRECATED)
OWN = Group(
    "Of pyruntime",
    (
        _works("config", STR, "", "YAML file of options; the command line wins over it."),
        _works("debug", STR, "", "Model to run at this terminal, for breakpoint() and debuggers.", "debug_model"),
    ),
)
GROUPS = (*TRITON_GROUPS, OWN)

OPTIONS: dict[str, Option] = {option.name: option for group in GROUPS for option in group.options}

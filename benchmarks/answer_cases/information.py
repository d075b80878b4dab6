# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Health, metadata and configurations."""

from answer_steps import Http, call, case, explain, get

from answer_cases import reasons

MODELS = (
    "every", "variable", "batched", "reshaped", "strings", "scores", "versions", "documented", "optional", "repeat",
    "sequence_direct", "sequence_oldest", "completed",
)  # fmt: skip
# Paths below /v2/models/<model>, with the procedures that are the same.
ABOUT = {"": "ModelMetadata", "/config": "ModelConfig", "/ready": "ModelReady"}
# Models and versions that are not served.
UNSERVED = {
    "an unknown model": ("nobody", ""), "an unknown version": ("variable", "7"), "a version that is a word":
    ("variable", "x"), "version 0": ("variable", "0"), "a version that the policy leaves out": ("versions", "2"),
    "a model that did not load": ("broken", ""), "a model that is not loaded": ("later", ""),
    "a configuration that cannot be read": ("unreadable", ""),
}  # fmt: skip


def _path(model, version, what):
    return f"/v2/models/{model}{f'/versions/{version}' if version else ''}{what}"


CASES = [
    case("live", get("/v2/health/live")),
    case("ready", get("/v2/health/ready")),
    case("the server", get("/v2")),
    case("the server, with a slash", get("/v2/")),
    case("live, grpc", call("ServerLive")),
    case("ready, grpc", call("ServerReady")),
    case("the server, grpc", call("ServerMetadata")),
    *(
        case(f"{model}: {procedure}", get(_path(model, "", what)), call(procedure, name=model))
        for model in MODELS
        for what, procedure in ABOUT.items()
    ),
    *(
        case(f"{name}: {procedure}", get(_path(model, version, what)))
        for name, (model, version) in UNSERVED.items()
        for what, procedure in ABOUT.items()
    ),
    *(
        case(f"{name}: {procedure}, grpc", call(procedure, name=model, version=version))
        for name, (model, version) in UNSERVED.items()
        for procedure in ABOUT.values()
    ),
    case("a version: ModelMetadata", get("/v2/models/versions/versions/1")),
    case("a version: ModelReady", get("/v2/models/versions/versions/1/ready")),
    case("no name: ModelMetadata, grpc", call("ModelMetadata")),
    *(
        case(f"{method} {path}", Http(method, path))
        for method in ("POST", "PUT", "DELETE")
        for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/variable", "/v2/models/variable/config",
                     "/v2/models/variable/ready")
    ),
    *(
        case(f"GET {path}", get(path))
        for path in ("/", "/v3", "/v2/nobody", "/v2/models", "/v2/models/", "/v2/models/variable/nobody",
                     "/v2/models/variable/versions", "/v2/models/variable/versions/1/nobody", "/v2/health",
                     "/v2/models/variable/infer", "/v2/models/a%20b/ready", "/v2/models/variable/", "/V2/health/live",
                     "//v2/health/live", "/v2/health/live?a=b", "/metrics")
    ),
]  # fmt: skip

DIFFERENT = {
    reasons.EXTENSIONS: ("the server", "the server, grpc",),
    reasons.NOT_READY: (
        "an unknown *: ModelReady", "a version that the policy leaves out: ModelReady", "a model that *: ModelReady",
        "a configuration that cannot be read: ModelReady", "GET /v2/models/a%20b/ready",
    ),
    reasons.VERSIONS: ("version 0: *",),
    reasons.PAGE: ("GET /",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The operations that are the same whatever models there are: all but inference. (pure)"""

from __future__ import annotations

from pyruntime.runtime.frontends.http.openapi.operations import (
    Operation,
    Paths,
    answer,
    body,
    content,
    operation,
    parameter,
    ref,
)
from pyruntime.runtime.frontends.http.openapi.tensors import Schema

_DONE = answer("Done.")
_MODEL = [parameter("Model")]
_REGION = [parameter("Region")]


def _json(description: str, schema: str) -> Schema:
    return answer(description, content(ref(schema)))


def _yes_or_no(name: str, summary: str, no: Schema) -> Operation:
    made = operation("health", name, summary, answer("Yes."), (503,))
    made["responses"]["400"] = no
    return made


def _of_server() -> Paths:
    live = operation("health", "server_live", "Whether the server is there", answer("Yes."))
    described = operation(
        "metadata", "openapi", "This document",
        answer("The document.", content({"type": "object"})),
    )  # fmt: skip
    metadata = operation(
        "metadata", "server_metadata", "What the server is", _json("Name, version, extensions.", "ServerMetadata")
    )
    return {
        "/v2": {"get": metadata},
        "/v2/health/live": {"get": live},
        "/v2/health/ready": {"get": _yes_or_no("server_ready", "Whether the server is ready", answer("No."))},
        "/openapi.json": {"get": described},
    }


def _of_models() -> Paths:
    statistics = _json("The statistics.", "Statistics")
    paths = {
        "/v2/models/stats": {
            "get": operation("statistics", "all_statistics", "Statistics of all models", statistics),
        }
    }
    for suffix, name, parameters in (
        ("", "model", _MODEL),
        ("/versions/{version}", "version", [*_MODEL, parameter("Version")]),
    ):
        path = "/v2/models/{model}" + suffix
        ready = _yes_or_no(f"{name}_ready", f"Whether a {name} is ready", _json("No.", "Error"))
        ready["responses"]["404"] = {"$ref": "#/components/responses/NotFound"}
        ready["parameters"] = parameters
        paths[path] = {
            "get": operation(
                "metadata", f"{name}_metadata", f"Inputs and outputs of a {name}",
                _json("Names, datatypes and shapes.", "ModelMetadata"), (400, 404, 503), parameters=parameters,
            )
        }  # fmt: skip
        paths[f"{path}/ready"] = {"get": ready}
        paths[f"{path}/config"] = {
            "get": operation(
                "model-config", f"{name}_config", f"Configuration of a {name}",
                _json("The configuration.", "ModelConfig"), (400, 404, 503), parameters=parameters,
            )
        }  # fmt: skip
        paths[f"{path}/stats"] = {
            "get": operation(
                "statistics",
                f"{name}_statistics",
                f"Statistics of a {name}",
                statistics,
                (400, 404),
                parameters=parameters,
            )
        }
    return paths


def _of_repository() -> Paths:
    api, model = "model-repository", [parameter("AnyModel")]
    paths = {
        "/v2/repository/index": {
            "post": operation(
                api, "repository_index", "Every model there is, and its state",
                _json("The index.", "RepositoryIndex"), (400, 501), request=body(content(ref("IndexRequest")), False),
            )
        }
    }  # fmt: skip
    for verb, summary in (("load", "Load a model, or load it again"), ("unload", "Unload a model")):
        request = body(content(ref(f"{verb.title()}Request")), required=False)
        paths[f"/v2/repository/models/{{model}}/{verb}"] = {
            "post": operation(
                api, f"{verb}_model", summary, _DONE, (400, 404, 500, 501, 503), parameters=model, request=request
            )
        }
    return paths


def _of_memory(kind: str, title: str, device: str) -> Paths:
    api, path, named = "shared-memory", f"/v2/{kind}sharedmemory", f"/v2/{kind}sharedmemory/region/{{region}}"
    status = _json("The regions.", f"{title}Regions")
    forget_all = f"Forget all regions of {device}"
    register = operation(
        api, f"register_{kind}_memory", f"Register a region of {device}", _DONE, (400, 404, 500, 501, 503),
        parameters=_REGION, request=body(content(ref(f"{title}Region"))),
    )  # fmt: skip
    return {
        f"{path}/status": {"get": operation(api, f"{kind}_memory", f"All regions of {device}", status)},
        f"{named}/status": {
            "get": operation(
                api, f"{kind}_memory_region", f"One region of {device}", status, (404,), parameters=_REGION
            )
        },
        f"{named}/register": {"post": register},
        f"{named}/unregister": {
            "post": operation(
                api, f"unregister_{kind}_memory", f"Forget a region of {device}", _DONE, (400, 501), parameters=_REGION
            )
        },
        f"{path}/unregister": {"post": operation(api, f"unregister_all_{kind}_memory", forget_all, _DONE, (400, 501))},
    }


def _of_settings() -> Paths:
    paths: Paths = {}
    for path, api, name, what, errors, parameters in (
        ("/v2/trace/setting", "trace", "trace_settings", "how requests are traced", (), []),
        ("/v2/models/{model}/trace/setting", "trace", "model_trace_settings", "how a model's are", (400,), _MODEL),
        ("/v2/logging", "logging", "log_settings", "what is logged", (), []),
    ):
        title = f"{api.removesuffix('ging').title()}"
        shown = _json("All settings, as they are now.", f"{title}Settings")
        request = body(content(ref(f"{title}Update")))
        paths[path] = {
            "get": operation(api, name, f"Say {what}", shown, errors, parameters=parameters),
            "post": operation(
                api, f"update_{name}", f"Change {what}", shown, (400, 501), parameters=parameters, request=request
            ),
        }
    return paths


def server_paths() -> Paths:
    """Every path, and what is there."""
    memory = _of_memory("system", "System", "shared memory") | _of_memory("cuda", "Cuda", "a GPU's memory")
    return _of_server() | _of_models() | _of_repository() | memory | _of_settings()

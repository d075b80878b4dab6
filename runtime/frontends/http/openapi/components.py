# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The components of the document that are the same whatever models there are. (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from pyruntime.runtime.frontends.common.request_parameters import INT64_MAX, INT64_MIN, PARAMETERS_MAX, UINT64_MAX
from pyruntime.runtime.frontends.http.openapi.operations import ERRORS, content, ref
from pyruntime.runtime.frontends.http.openapi.tensors import Schema
from pyruntime.runtime.repository.versions import VERSION_MAX
from pyruntime.runtime.settings import LOG_FORMATS, LOG_VERBOSE_MAX, TRACE_LEVELS
from pyruntime.runtime.tracing.values import OFF

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_UNSIGNED: Schema = {"type": "integer", "minimum": 0, "maximum": UINT64_MAX}
_SHAPE: Schema = {"type": "array", "items": {"type": "integer"}}
_PLACE: dict[str, Schema] = {
    "shared_memory_region": {"type": "string", "description": "The name of a region that the client has registered."},
    "shared_memory_offset": _UNSIGNED,
    "shared_memory_byte_size": _UNSIGNED,
}
_TENSORS: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": _TEXT, "datatype": _TEXT, "shape": _SHAPE},
        "required": ["name", "datatype", "shape"],
    },
}
_NULL: Schema = {"type": "null"}
_LEVEL: Schema = {"type": "string", "enum": [OFF, *TRACE_LEVELS]}
_TRACE_LEVEL: Schema = {"anyOf": [_LEVEL, {"type": "array", "items": _LEVEL}, _NULL]}
# A number as text, which may be the only one of a list.
_NUMBER: Schema = {"type": "string", "pattern": "^[+-]?[0-9]{1,40}$"}
_TRACE_NUMBER: Schema = {"anyOf": [_NUMBER, {"type": "array", "items": _NUMBER, "maxItems": 1}, _NULL]}


def _object(properties: dict[str, Schema], *required: str, description: str = "") -> Schema:
    more: Schema = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties} | more | ({"description": description} if description else {})


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _durations(*names: str) -> dict[str, Schema]:
    return dict.fromkeys(names, ref("Duration"))


_COMPUTE = _durations("compute_input", "compute_infer", "compute_output")
_RESPONSES = _durations("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")

SCHEMAS: dict[str, Schema] = {
    "Error": _object({"error": _TEXT}, "error"),
    "Parameter": {
        "anyOf": [
            _TEXT,
            {"type": "integer", "minimum": INT64_MIN, "maximum": INT64_MAX},
            {"type": "number"},
            _FLAG,
        ]
    },
    "Parameters": _object(
        {
            "sequence_id": {"anyOf": [_TEXT, _UNSIGNED]},
            "sequence_start": _FLAG,
            "sequence_end": _FLAG,
            "priority": _UNSIGNED,
            "timeout": _UNSIGNED | {"description": "in microseconds"},
            "binary_data_output": _FLAG | {"description": "whether outputs are binary unless they say otherwise"},
        },
        description="What else there is goes to the model as it is.",
    )
    | {
        "propertyNames": {"not": {"pattern": "^triton_"}},
        "maxProperties": PARAMETERS_MAX,
        "additionalProperties": ref("Parameter"),
    },
    "InputParameters": _object(
        {"binary_data_size": _UNSIGNED | {"description": "bytes behind the JSON that are the contents"}, **_PLACE}
    ),
    "OutputParameters": _object(
        {
            "binary_data": _FLAG,
            "classification": _UNSIGNED | {"description": "how many classes are wanted in place of the contents"},
            **_PLACE,
        }
    ),
    "OutputPlace": _object({"binary_data_size": _UNSIGNED, **_PLACE}),
    "ClassifiedOutput": _object(
        {
            "name": _TEXT,
            "datatype": {"const": "BYTES"},
            "shape": _SHAPE,
            "data": _list(_TEXT | {"description": "<value>:<index>, and :<label> if there are labels"}),
            "parameters": ref("OutputPlace"),
        },
        "name", "datatype", "shape",
    ),
    "ServerMetadata": _object(
        {"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}, "name", "version", "extensions"
    ),
    "ModelMetadata": _object(
        {"name": _TEXT, "versions": _list(_TEXT), "platform": _TEXT, "inputs": _TENSORS, "outputs": _TENSORS},
        "name", "platform", "inputs", "outputs",
    ),
    "ModelConfig": _object(
        {
            "name": _TEXT,
            "backend": _TEXT,
            "platform": _TEXT,
            "max_batch_size": {"type": "integer", "minimum": 0},
            "input": _list({"type": "object"}),
            "output": _list({"type": "object"}),
        },
        "name", "max_batch_size", "input", "output",
        description="A ModelConfig as Triton's model_config.proto has it, with the fields' names as they are there.",
    ),
    "Duration": _object({"count": _UNSIGNED, "ns": _UNSIGNED}, "count", "ns"),
    "Statistics": _object({"model_stats": _list(ref("ModelStatistics"))}, "model_stats"),
    "ModelStatistics": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": _UNSIGNED | {"description": "in milliseconds since 1970"},
            "inference_count": _UNSIGNED,
            "execution_count": _UNSIGNED,
            "inference_stats": _object(
                _durations("success", "fail", "queue", "cache_hit", "cache_miss") | _COMPUTE
            ),
            "batch_stats": _list(_object({"batch_size": _UNSIGNED, **_COMPUTE})),
            "response_stats": {"type": "object", "additionalProperties": _object(_RESPONSES)},
            "memory_usage": _list(_object({"type": _TEXT, "id": {"type": "integer"}, "byte_size": _UNSIGNED})),
        },
        "name", "version", "inference_stats",
    ),
    "RepositoryIndex": _list(
        _object(
            {
                "name": _TEXT,
                "version": _TEXT,
                "state": {"enum": ["UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"]},
                "reason": _TEXT,
            },
            "name",
        )
    ),
    "IndexRequest": _object({"ready": _FLAG | {"description": "whether to leave out what is not ready"}}),
    "LoadRequest": _object(
        {
            "parameters": _object(
                {"config": _TEXT | {"description": "a configuration, in JSON, to take the place of the repository's"}}
            )
            | {
                "propertyNames": {"pattern": "^(config$|file:)"},
                "additionalProperties": _TEXT | {"contentEncoding": "base64", "description": "file:<path>: a file"},
            }
        }
    ),
    "UnloadRequest": _object({"parameters": _object({"unload_dependents": _FLAG})}),
    "SystemRegions": _list(
        _object({"name": _TEXT, "key": _TEXT, "offset": _UNSIGNED, "byte_size": _UNSIGNED}, "name", "key")
    ),
    "SystemRegion": _object({"key": _TEXT, "offset": _UNSIGNED, "byte_size": _UNSIGNED}, "key", "byte_size"),
    "CudaRegions": _list(_object({"name": _TEXT, "device_id": _UNSIGNED, "byte_size": _UNSIGNED}, "name")),
    "CudaRegion": _object(
        {
            "raw_handle": _object({"b64": _TEXT | {"contentEncoding": "base64"}}, "b64"),
            "device_id": _UNSIGNED,
            "byte_size": _UNSIGNED,
        },
        "raw_handle", "device_id", "byte_size",
    ),
    "TraceSettings": {"type": "object", "additionalProperties": {"type": ["string", "array"], "items": _TEXT}},
    "TraceUpdate": _object(
        {"trace_level": _TRACE_LEVEL}
        | dict.fromkeys(("trace_rate", "trace_count", "log_frequency"), _TRACE_NUMBER),
        description="What is null, or an empty list, is cleared. The file cannot be changed.",
    )
    | {"propertyNames": {"not": {"const": "trace_file"}}},
    "LogSettings": {"type": "object", "additionalProperties": {"type": ["boolean", "integer", "string"]}},
    "LogUpdate": _object(
        {
            **{name: {"type": ["boolean", "null"]} for name in ("log_info", "log_warning", "log_error")},
            "log_verbose_level": {"type": ["integer", "null"], "minimum": 0, "maximum": LOG_VERBOSE_MAX},
            "log_format": {"enum": [*LOG_FORMATS, None]},
        },
        description="What is null stays as it is. The file cannot be changed.",
    )
    | {"propertyNames": {"not": {"const": "log_file"}}},
}  # fmt: skip

RESPONSES: dict[str, Schema] = {
    name: {"description": description, "content": content(ref("Error"))} for name, description in ERRORS.values()
}


def parameters(models: Iterable[str]) -> dict[str, Schema]:
    """The parameters of operations, where these are the models that are served."""
    names = sorted(models)
    return {
        "Model": _in_path("model", {"type": "string", "minLength": 1} | ({"enum": names} if names else {})),
        "Version": _in_path("version", {"type": "integer", "minimum": 1, "maximum": VERSION_MAX}),
        "AnyModel": _in_path("model", {"type": "string", "minLength": 1}),
        "Region": _in_path("region", {"type": "string", "minLength": 1}),
        "HeaderLength": {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "description": (
                "How many bytes of a body with binary contents are JSON. 0 where the body is nothing but the contents "
                "of the model's only input."
            ),
            "schema": {"type": "integer", "minimum": 0},
        },
    }


def _in_path(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}

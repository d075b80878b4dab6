# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about one model: its readiness, metadata, configuration and statistics.

All raise InferenceError: INVALID_ARG for a malformed version, and the errors of the state for unknown models.
"""

from __future__ import annotations

from google.protobuf import json_format

from pyruntime.runtime.app.slices import in_slices
from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.config.schema import new_model_config
from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.frontends.common.readiness import check_model_ready
from pyruntime.runtime.frontends.grpc.method import Reply
from pyruntime.runtime.frontends.grpc.schema import (
    Message,
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelReadyResponse,
    ModelStatisticsResponse,
    TensorMetadata,
)
from pyruntime.runtime.repository.versions import parse_version
from pyruntime.utils.errors import Code, InferenceError


def model_ready(state: ServerState, request: Message, reply: Reply) -> None:
    """Reply whether the model is ready. An unknown model is not ready, and no error."""

    def checked(ready: bool) -> None:
        reply(ModelReadyResponse(ready=ready))

    version = parse_version(request.version)
    try:
        check_model_ready(state, request.name, version, checked)
    except InferenceError as exc:
        if exc.code is not Code.NOT_FOUND:
            raise
        checked(False)


def model_metadata(state: ServerState, request: Message) -> Message:
    """The metadata, with the same contents as over HTTP."""
    version = parse_version(request.version)
    spec = state.resolve(request.name, version).spec
    return ModelMetadataResponse(
        name=spec.name,
        versions=map(str, state.table.ready_versions(request.name, version)),
        platform=spec.platform,
        inputs=map(_tensor, spec.inputs.values()),
        outputs=map(_tensor, spec.outputs.values()),
    )


def model_config(state: ServerState, request: Message) -> Message:
    """The configuration that models get and HTTP shows, as a message."""
    spec = state.resolve(request.name, parse_version(request.version)).spec
    return ModelConfigResponse(config=json_format.Parse(spec.json, new_model_config()))


def model_statistics(state: ServerState, request: Message, reply: Reply) -> None:
    """Statistics of one version, of all versions of a model, or of all models for no name, with any version."""
    version = parse_version(request.version)
    parts = state.statistics_parts(request.name, version) if request.name else state.statistics_parts()
    response = ModelStatisticsResponse()

    def add(entry: dict[str, object]) -> None:
        json_format.ParseDict(entry, response.model_stats.add())

    def made(parts: list[None] | InferenceError) -> None:
        reply(parts if isinstance(parts, InferenceError) else response)

    in_slices(lambda: state.tasks, map(add, parts), made, "read the statistics")


def _tensor(tensor: TensorSpec) -> Message:
    return TensorMetadata(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)

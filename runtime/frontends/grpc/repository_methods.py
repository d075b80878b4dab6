# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the model repositories: their index, and loading and unloading."""

from __future__ import annotations

from collections.abc import Mapping

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc.method import Reply, reply_after
from pyruntime.runtime.frontends.grpc.schema import (
    FieldValue,
    Message,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadResponse,
)
from pyruntime.runtime.native._http2 import count_fields
from pyruntime.utils.errors import Code, InferenceError

# The most fields of a request to load a model, with those of its parameters: a file takes four.
LOAD_FIELDS_MAX = 16384
# The number of the field that holds the parameters.
_PARAMETERS = 3

_FILE_PREFIX = "file:"


def check_control(state: ServerState) -> None:
    """Raise InferenceError unless requests may load and unload models."""
    state.control.check_explicit()


def repository_index(state: ServerState, request: Message) -> Message:
    """The index, with the same contents as over HTTP."""
    _check_repository(request)
    response = RepositoryIndexResponse()
    for row in state.index(request.ready):
        response.models.add(name=row.name, version=row.version, state=row.state, reason=row.reason)
    return response


def parse_load(message: bytes) -> Message:
    """The request in a message, which may hold whole files. It is counted before protobuf makes objects of it.

    Raises DecodeError, and InferenceError for too many parameters.
    """
    fields = count_fields(message, _PARAMETERS)
    if fields is not None and fields > LOAD_FIELDS_MAX:
        raise InferenceError(f"the request has {fields} fields, expected at most {LOAD_FIELDS_MAX}", Code.INVALID_ARG)
    return RepositoryModelLoadRequest.FromString(message)


def load(state: ServerState, request: Message, reply: Reply) -> None:
    """Reply once the model is loaded. The load goes on if the client does not wait for it."""
    _check_repository(request)
    config, files = _read_load_parameters(request.parameters)
    loading = state.control.load(request.model_name, config, files)
    state.tasks.create_task(reply_after(loading, RepositoryModelLoadResponse(), reply))


def unload(state: ServerState, request: Message, reply: Reply) -> None:
    """Reply once the model accepts no more requests."""
    _check_repository(request)
    unload_dependents = _read_unload_dependents(request.parameters)
    unloading = state.control.unload(request.model_name, unload_dependents)
    state.tasks.create_task(reply_after(unloading, RepositoryModelUnloadResponse(), reply))


def _check_repository(request: Message) -> None:
    if request.repository_name:
        raise InferenceError("'repository_name' specification is not supported", Code.UNSUPPORTED)


def _read_load_parameters(parameters: Mapping[str, Message]) -> tuple[str, dict[str, bytes]]:
    """(configuration, files) that replace those of the repository."""
    config, files = "", {}
    for name, value in parameters.items():
        if name == "config":
            config = _read(value, "string_param", f"load parameter '{name}'")
        elif name.startswith(_FILE_PREFIX):
            files[name] = _read(value, "bytes_param", f"load parameter '{name}'")
        else:
            raise InferenceError(f"unrecognized load parameter '{name}'.", Code.INVALID_ARG)
    return config, files


def _read_unload_dependents(parameters: Mapping[str, Message]) -> bool:
    # As in Triton, all other parameters are ignored.
    if "unload_dependents" not in parameters:
        return False
    return bool(_read(parameters["unload_dependents"], "bool_param", "'unload_dependents' parameter"))


def _read(value: Message, kind: str, what: str) -> FieldValue:
    if value.WhichOneof("parameter_choice") != kind:
        raise InferenceError(f"invalid value type for {what}, expected {kind}.", Code.INVALID_ARG)
    return getattr(value, kind)

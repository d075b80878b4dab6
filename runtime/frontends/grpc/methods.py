# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every remote procedure except inference, by its path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.descriptor import MethodDescriptor

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.frontends.grpc import (
    health,
    memory_methods,
    model_methods,
    repository_methods,
    server_methods,
)
from pyruntime.runtime.frontends.grpc.call import MESSAGE_BYTES_MAX
from pyruntime.runtime.frontends.grpc.method import REQUEST_BYTES_MAX, Method, Reply, StreamMethod
from pyruntime.runtime.frontends.grpc.reflection import Reflection
from pyruntime.runtime.frontends.grpc.schema import HEALTH, INFERENCE, REFLECTIONS, Message, class_of

_Act = Callable[[ServerState, Message, Reply], None]


def _at_once(answer: Callable[[ServerState, Message], Message]) -> _Act:
    def act(state: ServerState, request: Message, reply: Reply) -> None:
        reply(answer(state, request))

    return act


_ACTS: dict[str, tuple[str, _Act]] = {
    "ServerLive": ("health", _at_once(server_methods.server_live)),
    "ServerReady": ("health", server_methods.server_ready),
    "ModelReady": ("health", model_methods.model_ready),
    "ServerMetadata": ("metadata", _at_once(server_methods.server_metadata)),
    "ModelMetadata": ("metadata", _at_once(model_methods.model_metadata)),
    "ModelConfig": ("model-config", _at_once(model_methods.model_config)),
    "ModelStatistics": ("statistics", model_methods.model_statistics),
    "RepositoryIndex": ("model-repository", _at_once(repository_methods.repository_index)),
    "RepositoryModelLoad": ("model-repository", repository_methods.load),
    "RepositoryModelUnload": ("model-repository", repository_methods.unload),
    "SystemSharedMemoryStatus": ("shared-memory", _at_once(memory_methods.system_status)),
    "SystemSharedMemoryRegister": ("shared-memory", _at_once(memory_methods.system_register)),
    "SystemSharedMemoryUnregister": ("shared-memory", memory_methods.system_unregister),
    "CudaSharedMemoryStatus": ("shared-memory", _at_once(memory_methods.cuda_status)),
    "CudaSharedMemoryRegister": ("shared-memory", memory_methods.cuda_register),
    "CudaSharedMemoryUnregister": ("shared-memory", memory_methods.cuda_unregister),
    "TraceSetting": ("trace", _at_once(server_methods.trace_setting)),
    "LogSettings": ("logging", _at_once(server_methods.log_settings)),
}


def _anybody(state: ServerState) -> None:
    """No condition but those of the head."""


# The conditions of methods, and the methods whose requests may be long.
_CHECKS = dict.fromkeys(("RepositoryModelLoad", "RepositoryModelUnload"), repository_methods.check_control)
_LONG = {"RepositoryModelLoad": repository_methods.parse_load}


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _methods() -> dict[str, Method]:
    found = {INFERENCE.methods_by_name[name]: act for name, act in _ACTS.items()}
    found[HEALTH.methods_by_name["Check"]] = ("health", health.check)
    return {_path(method): _method(method, api, act) for method, (api, act) in found.items()}


def _method(method: MethodDescriptor, api: str, act: _Act) -> Method:
    request = class_of(method.input_type)
    check = _CHECKS.get(method.name, _anybody)
    if method.name in _LONG:
        return Method(api, request, act, check, MESSAGE_BYTES_MAX, _LONG[method.name])
    return Method(api, request, act, check, REQUEST_BYTES_MAX, request.FromString)


def _streams() -> dict[str, StreamMethod]:
    watch = HEALTH.methods_by_name["Watch"]
    streams = {_path(watch): StreamMethod("health", class_of(watch.input_type), health.Watch)}
    for service in REFLECTIONS:
        method = service.methods_by_name["ServerReflectionInfo"]
        factory = partial(Reflection, class_of(method.output_type))
        # It says what the server speaks, which is part of what it is.
        streams[_path(method)] = StreamMethod("metadata", class_of(method.input_type), factory)
    return streams


METHODS = _methods()
STREAMS = _streams()

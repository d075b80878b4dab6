# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The gRPC services and the classes of their messages, from the *.binpb files beside this module.

They are in the pool of config/schema.py, which explains why that is not protobuf's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from pyruntime.runtime.config.schema import POOL

# A message of any class, a class of messages, and the value of a field. Their attributes are made at run time, hence a
# type checker cannot know them.
Message: TypeAlias = Any
MessageClass: TypeAlias = Message
FieldValue: TypeAlias = Message

_FILES = ("grpc_service", "health", "reflection", "reflection_v1alpha")


def _load_files() -> None:
    folder = Path(__file__).parent
    for name in _FILES:
        for file in FileDescriptorSet.FromString(folder.joinpath(f"{name}.binpb").read_bytes()).file:
            POOL.Add(file)


_load_files()

INFERENCE: ServiceDescriptor = POOL.FindServiceByName("inference.GRPCInferenceService")
HEALTH: ServiceDescriptor = POOL.FindServiceByName("grpc.health.v1.Health")
REFLECTIONS: tuple[ServiceDescriptor, ...] = (
    POOL.FindServiceByName("grpc.reflection.v1.ServerReflection"),
    POOL.FindServiceByName("grpc.reflection.v1alpha.ServerReflection"),
)
SERVICES = (INFERENCE, HEALTH, *REFLECTIONS)


def class_of(descriptor: Descriptor) -> MessageClass:
    """The class of messages with this descriptor."""
    return GetMessageClass(descriptor)


def _inference(name: str) -> MessageClass:
    return class_of(POOL.FindMessageTypeByName(f"inference.{name}"))


ServerLiveResponse = _inference("ServerLiveResponse")
ServerReadyResponse = _inference("ServerReadyResponse")
ModelReadyResponse = _inference("ModelReadyResponse")
ServerMetadataResponse = _inference("ServerMetadataResponse")
ModelMetadataResponse = _inference("ModelMetadataResponse")
# Not an attribute of the class above where protobuf is the one in pure Python.
TensorMetadata = _inference("ModelMetadataResponse.TensorMetadata")
ModelInferRequest = _inference("ModelInferRequest")
ModelInferResponse = _inference("ModelInferResponse")
ModelStreamInferResponse = _inference("ModelStreamInferResponse")
ModelConfigResponse = _inference("ModelConfigResponse")
ModelStatisticsResponse = _inference("ModelStatisticsResponse")
RepositoryIndexResponse = _inference("RepositoryIndexResponse")
RepositoryModelLoadRequest = _inference("RepositoryModelLoadRequest")
RepositoryModelLoadResponse = _inference("RepositoryModelLoadResponse")
RepositoryModelUnloadResponse = _inference("RepositoryModelUnloadResponse")
SystemSharedMemoryStatusResponse = _inference("SystemSharedMemoryStatusResponse")
SystemSharedMemoryRegisterResponse = _inference("SystemSharedMemoryRegisterResponse")
SystemSharedMemoryUnregisterResponse = _inference("SystemSharedMemoryUnregisterResponse")
CudaSharedMemoryStatusResponse = _inference("CudaSharedMemoryStatusResponse")
CudaSharedMemoryRegisterResponse = _inference("CudaSharedMemoryRegisterResponse")
CudaSharedMemoryUnregisterResponse = _inference("CudaSharedMemoryUnregisterResponse")
TraceSettingResponse = _inference("TraceSettingResponse")
LogSettingsResponse = _inference("LogSettingsResponse")
HealthCheckResponse = class_of(POOL.FindMessageTypeByName("grpc.health.v1.HealthCheckResponse"))

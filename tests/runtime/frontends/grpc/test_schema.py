# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The gRPC schema has the names and numbers that public clients use."""

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import service_pb2

from pyruntime.runtime.frontends.grpc import schema

# Newer than the protocol that probes and load balancers use: all services at once.
NOT_SERVED = {"HealthListRequest", "HealthListResponse", "List"}
METHOD = ("name", "input_type", "output_type", "client_streaming", "server_streaming")


def as_proto(file):
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto


def fields(messages, prefix=""):
    """(name, number, type, label, type's name, oneof) of every field of every message, by the message's name."""
    found = {}
    for message in messages:
        name = prefix + message.name
        oneofs = [oneof.name for oneof in message.oneof_decl]
        found[name] = {
            (
                field.name,
                field.number,
                field.type,
                field.label,
                field.type_name,
                oneofs[field.oneof_index] if field.HasField("oneof_index") else "",
            )
            for field in message.field
        }
        for enum in message.enum_type:
            found[f"{name}.{enum.name}"] = {(value.name, value.number) for value in enum.value}
        found |= fields(message.nested_type, f"{name}.")
    return {name: field for name, field in found.items() if name.partition(".")[0] not in NOT_SERVED}


def services(file):
    return {
        (service.name, *(getattr(method, name) for name in METHOD))
        for service in file.service
        for method in service.method
        if method.name not in NOT_SERVED
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(schema.INFERENCE, service_pb2), (schema.HEALTH, health_pb2), (schema.REFLECTIONS[1], reflection_pb2)],
    ids=["inference", "health", "reflection"],
)
def test_is_that_of_the_public_service(ours, theirs):
    """Every field of every message, every value of every enum and every remote procedure."""
    ours, theirs = as_proto(ours.file), as_proto(theirs.DESCRIPTOR)
    assert ours.package == theirs.package
    assert fields(ours.message_type) == fields(theirs.message_type)
    assert services(ours) == services(theirs)
    assert services(ours)


def test_reflection_has_two_names():
    """The two versions of reflection differ only in their names."""
    first, alpha = (as_proto(service.file) for service in schema.REFLECTIONS)
    renamed = FileDescriptorProto.FromString(alpha.SerializeToString())
    renamed.name, renamed.package = "reflection.proto", "grpc.reflection.v1"
    for described in [*_fields_of(renamed), *renamed.service[0].method]:
        for name in ("type_name", "input_type", "output_type"):
            if hasattr(described, name) and getattr(described, name):
                setattr(described, name, getattr(described, name).replace(".v1alpha.", ".v1."))
    assert renamed == first


def _fields_of(file):
    return [field for message in file.message_type for field in message.field]


def test_twenty_remote_procedures():
    """As many as Triton has."""
    assert len(schema.INFERENCE.methods) == 20


def test_messages_of_both_are_the_same_on_the_wire():
    """A client's request is read, and it reads our response."""
    request = service_pb2.ModelInferRequest(model_name="m", id="1")
    request.inputs.add(name="IN", datatype="FP32", shape=[2])
    request.parameters["p"].uint64_param = 2**64 - 1
    ours = schema.ModelInferRequest.FromString(request.SerializeToString())
    assert ours.inputs[0].shape == [2]
    assert ours.parameters["p"].uint64_param == 2**64 - 1
    assert service_pb2.ModelInferRequest.FromString(ours.SerializeToString()) == request

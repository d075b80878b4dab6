# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reflection: the services and messages that the server describes."""

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from pyruntime.runtime.frontends.grpc.schema import SERVICES
from pyruntime.runtime.frontends.grpc.status import Status

VERSIONS = ["v1", "v1alpha"]


@pytest.fixture(params=VERSIONS)
def ask(request, open_stream):
    """Asks one question, on a call of its own, and gives the answer."""
    path = f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo"

    def ask(**fields):
        call = open_stream(path)
        (answer,) = call(**fields)
        assert call.end == []
        call.stream.client_ended()
        assert call.end == [None]
        return answer

    return ask


def files(answer):
    found = [FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto]
    return [file.name for file in found]


def test_services(ask):
    """All that there are, each by its full name."""
    answer = ask(list_services="", host="h")
    assert [service.name for service in answer.list_services_response.service] == [
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    assert (answer.valid_host, answer.original_request.host) == ("h", "h")
    assert answer.original_request.WhichOneof("message_request") == "list_services"


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("inference.GRPCInferenceService", ["grpc_service.proto", "model_config.proto"]),
        ("inference.GRPCInferenceService.ModelInfer", ["grpc_service.proto", "model_config.proto"]),
        ("inference.ModelInferRequest", ["grpc_service.proto", "model_config.proto"]),
        ("inference.DataType", ["model_config.proto"]),
        ("grpc.health.v1.Health.Watch", ["health.proto"]),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", ["health.proto"]),
        ("grpc.reflection.v1.ServerReflection", ["reflection.proto"]),
        ("grpc.reflection.v1alpha.ServerReflection", ["reflection_v1alpha.proto"]),
    ],
)
def test_files_of_symbols(ask, symbol, expected):
    """The file that declares the symbol comes first, then its imports."""
    assert files(ask(file_containing_symbol=symbol)) == expected


def test_files_by_name(ask):
    """As imports name them."""
    assert files(ask(file_by_filename="model_config.proto")) == ["model_config.proto"]


def test_a_tool_can_build_all_it_needs(ask):
    """A tool can build the services from the answers alone."""
    for service in SERVICES:
        pool = DescriptorPool()
        answer = ask(file_containing_symbol=service.full_name)
        for each in reversed(answer.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(each)
        found = pool.FindServiceByName(service.full_name)
        assert [method.name for method in found.methods] == [method.name for method in service.methods]


def test_extensions(ask):
    """Messages have no extensions."""
    answer = ask(all_extension_numbers_of_type="inference.ModelInferRequest").all_extension_numbers_response
    assert (answer.base_type_name, list(answer.extension_number)) == ("inference.ModelInferRequest", [])


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ({"file_by_filename": "nope.proto"}, "nope.proto"),
        ({"file_containing_symbol": "inference.Nope"}, "inference.Nope"),
        ({"file_containing_symbol": "inference.GRPCInferenceService.Nope"}, "inference.GRPCInferenceService.Nope"),
        ({"file_containing_symbol": ""}, ""),
        ({"all_extension_numbers_of_type": "inference.GRPCInferenceService"}, "inference.GRPCInferenceService"),
        (
            {"file_containing_extension": {"containing_type": "inference.ModelConfig", "extension_number": 1}},
            "inference.ModelConfig 1",
        ),
        ({"file_by_filename": "x" * 1000}, "x" * 200),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_there_is_not(ask, question, named):
    """The answer is an error, and the call goes on."""
    error = ask(**question).error_response
    assert (error.error_code, error.error_message) == (Status.NOT_FOUND, f"not found: {named}")


def test_no_question(ask):
    """An error as well."""
    assert ask(host="h").error_response.error_code == Status.INVALID_ARGUMENT


def test_questions_are_answered_in_their_order(open_stream):
    """On one call."""
    call = open_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    kinds = []
    for question in ({"list_services": "*"}, {"file_by_filename": "nope"}, {"file_by_filename": "health.proto"}):
        (answer,) = call(**question)
        kinds.append(answer.WhichOneof("message_response"))
    assert kinds == ["list_services_response", "error_response", "file_descriptor_response"]

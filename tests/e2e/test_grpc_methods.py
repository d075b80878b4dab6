# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every remote procedure but inference, by Triton's own clients and by gRPC's own for health and reflection."""

import asyncio
import json
import os
import signal
from contextlib import closing, contextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as client_memory
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from .harness.waiting import LIMIT_S

# Its only output is a number that its code has.
CONSTANT = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{}]))]) for request in requests]
"""
# Ready as long as there is a file.
AS_IT_LIKES = """
class TritonPythonModel:
    def initialize(self, args):
        self.path = args["model_repository"] + "/ready"

    def is_ready(self):
        return os.path.exists(self.path)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""
STATUSES = health_pb2.HealthCheckResponse


@pytest.fixture(params=["sync", "aio"])
def ask(request):
    """`ask(server, method, ...)`: the result of a method of Triton's client, for each of its two flavours."""

    def ask(server, method, *arguments, **options):
        with closing(server.grpc()) as client:
            return getattr(client, method)(*arguments, **options)

    def ask_aio(server, method, *arguments, **options):
        async def run():
            async with triton_aio.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
                return await getattr(client, method)(*arguments, **options)

        return asyncio.run(run())

    return ask if request.param == "sync" else ask_aio


@pytest.fixture
def refusal(ask):
    """`refusal(server, method, ...)`: status and message of the error that a call ends with."""

    def refusal(*arguments, **options):
        with pytest.raises(InferenceServerException) as caught:
            ask(*arguments, **options)
        return caught.value.status().removeprefix("StatusCode."), caught.value.message()

    return refusal


@contextmanager
def channel_to(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def raw_refusal(server, method, request):
    """Status and message of the error that a call ends with that Triton's client would not make."""
    with channel_to(server) as channel, pytest.raises(grpc.RpcError) as caught:
        getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)(request, timeout=LIMIT_S)
    return caught.value.code().name, caught.value.details()


@pytest.fixture
def explicit(model, serve):
    """A server with explicit control and one loaded model."""
    model("m", CONSTANT.format(1))
    return serve("--model-control-mode=explicit", "--load-model=m")


class TestServer:
    def test_live_and_ready(self, samples, ask):
        """Both are so."""
        assert ask(samples, "is_server_live") is True
        assert ask(samples, "is_server_ready") is True

    def test_metadata(self, samples, ask):
        """It is what HTTP says."""
        found = ask(samples, "get_server_metadata", as_json=True)
        assert found == json.loads(samples.request("GET", "/v2").body)


class TestModel:
    def test_ready(self, samples, ask):
        """A missing model or version is not ready, which is not an error."""
        assert ask(samples, "is_model_ready", "add_sub") is True
        assert ask(samples, "is_model_ready", "add_sub", "1") is True
        assert ask(samples, "is_model_ready", "add_sub", "2") is False
        assert ask(samples, "is_model_ready", "nobody") is False

    def test_metadata(self, samples, ask):
        """It is what HTTP says."""
        found = ask(samples, "get_model_metadata", "strings", "1", as_json=True)
        expected = json.loads(samples.request("GET", "/v2/models/strings").body)
        for tensor in found["inputs"] + found["outputs"]:
            tensor["shape"] = list(map(int, tensor["shape"]))  # protobuf's JSON has them as texts
        assert found == expected

    def test_config(self, samples, ask):
        """It is what HTTP says, as a message."""
        found = ask(samples, "get_model_config", "add_sub").config
        expected = json.loads(samples.request("GET", "/v2/models/add_sub/config").body)
        assert found == json_format.ParseDict(expected, type(found)())
        assert [tensor.name for tensor in found.input] == ["INPUT0", "INPUT1"]

    def test_statistics(self, explicit, ask):
        """The statistics equal those over HTTP, and count the requests."""
        for _ in range(3):
            explicit.infer("m", {"IN": np.array([1])})
        for arguments in ((), ("m",), ("m", "1")):
            (found,) = ask(explicit, "get_inference_statistics", *arguments).model_stats
            assert (found.name, found.version, found.inference_count) == ("m", "1", 3)
            (expected,) = json.loads(explicit.request("GET", "/v2/models/m/stats").body)["model_stats"]
            assert found == json_format.ParseDict(expected, type(found)())
        assert found.inference_stats.success.count == 3

    @pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config"])
    def test_unknown(self, samples, refusal, method):
        """Triton's words."""
        assert refusal(samples, method, "nobody") == ("NOT_FOUND", "Request for unknown model: 'nobody' is not found")
        assert refusal(samples, method, "add_sub", "7") == (
            "NOT_FOUND",
            "Request for unknown model: 'add_sub' version 7 is not found",
        )

    def test_statistics_of_unknown(self, samples, refusal):
        """Triton's words."""
        method = "get_inference_statistics"
        assert refusal(samples, method, "nobody") == ("INVALID_ARGUMENT", "requested model 'nobody' is not available")
        assert refusal(samples, method, "add_sub", "7") == (
            "INVALID_ARGUMENT",
            "requested model version is not available for model 'add_sub'",
        )

    @pytest.mark.parametrize(
        "method", ["is_model_ready", "get_model_metadata", "get_model_config", "get_inference_statistics"]
    )
    def test_no_version(self, samples, refusal, method):
        """A text that is not a version is refused."""
        status, message = refusal(samples, method, "add_sub", "latest")
        assert status == "INVALID_ARGUMENT"
        assert message.startswith("failed to get model version from specified version string 'latest'")


class TestRepository:
    def test_index(self, explicit, ask, model):
        """The index has the models that are loaded, and those that the server found when it last looked."""
        model("other", CONSTANT.format(2))
        rows = ask(explicit, "get_model_repository_index").models
        assert [(row.name, row.version, row.state) for row in rows] == [("m", "1", "READY")]

    def test_load_and_unload(self, explicit, ask, wait_until):
        """A model goes and comes."""
        ask(explicit, "unload_model", "m", unload_dependents=True)
        wait_until(lambda: ask(explicit, "get_model_repository_index").models[0].state == "UNAVAILABLE")
        assert ask(explicit, "is_model_ready", "m") is False
        ask(explicit, "load_model", "m")
        assert ask(explicit, "is_model_ready", "m") is True

    def test_load_with_configuration(self, explicit, ask):
        """One takes the place of the model's own, with or without files."""
        config = json.loads(explicit.request("GET", "/v2/models/m/config").body) | {"max_batch_size": 4}
        ask(explicit, "load_model", "m", config=json.dumps(config))
        assert ask(explicit, "get_model_config", "m").config.max_batch_size == 4
        code = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + CONSTANT.format(7)
        ask(explicit, "load_model", "m", config=json.dumps(config), files={"file:3/model.py": code.encode()})
        assert ask(explicit, "get_model_metadata", "m").versions == ["3"]
        assert explicit.infer("m", {"IN": np.array([[1]])}).as_numpy("OUT").tolist() == [7]

    def test_load_that_fails(self, explicit, refusal, model):
        """The reason comes back."""
        assert refusal(explicit, "load_model", "nobody") == (
            "INTERNAL",
            "failed to load 'nobody', failed to poll from model repository",
        )
        model("broken", "raise ValueError('no such luck')\n")
        status, message = refusal(explicit, "load_model", "broken")
        assert status == "INVALID_ARGUMENT"
        assert message.startswith("load failed for model 'broken': version 1 is at UNAVAILABLE state: ")
        assert "no such luck" in message

    def test_unload_what_there_is_not(self, explicit, ask):
        """It is not there already."""
        ask(explicit, "unload_model", "nobody")

    def test_without_explicit_control(self, samples, refusal):
        """Triton's words."""
        words = "explicit model load / unload is not allowed if polling is enabled"
        assert refusal(samples, "load_model", "add_sub") == ("UNAVAILABLE", words)
        assert refusal(samples, "unload_model", "add_sub") == ("UNAVAILABLE", words)

    @pytest.mark.parametrize("name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
    def test_one_of_the_repositories(self, serve, name):
        """A request cannot name one of several repositories."""
        request = getattr(service_pb2, f"{name}Request")(repository_name="r")
        expected = ("UNIMPLEMENTED", "'repository_name' specification is not supported")
        assert raw_refusal(serve("--model-control-mode=explicit"), name, request) == expected

    def test_parameters_of_loads(self, serve):
        """Triton's words."""
        request = service_pb2.RepositoryModelLoadRequest(model_name="add_sub")
        request.parameters["config"].int64_param = 1
        assert raw_refusal(serve("--model-control-mode=explicit"), "RepositoryModelLoad", request) == (
            "INVALID_ARGUMENT",
            "invalid value type for load parameter 'config', expected string_param.",
        )

    def test_a_client_that_does_not_wait(self, tmp_path, model, serve, ask, wait_until):
        """Its load goes on without it."""
        model("m", CONSTANT.format(1))
        server = serve("--model-control-mode=explicit")
        with channel_to(server) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            load = stub.RepositoryModelLoad.future(service_pb2.RepositoryModelLoadRequest(model_name="m"))
            wait_until(lambda: [row.state for row in ask(server, "get_model_repository_index").models] != [""])
            load.cancel()
            wait_until(lambda: ask(server, "is_model_ready", "m"))


class TestMemory:
    def test_system(self, model, serve, ask):
        """Registered, shown, used up, forgotten."""
        server = serve("--allow-client-shm=true")
        key = f"/grpc_methods_of_a_test_{os.getpid()}"
        region = client_memory.create_shared_memory_region("mine", key, 64)
        try:
            ask(server, "register_system_shared_memory", "mine", key, 32, offset=16)
            for name in ("", "mine"):
                (row,) = ask(server, "get_system_shared_memory_status", name).regions.values()
                assert (row.name, row.key, row.offset, row.byte_size) == ("mine", key, 16, 32)
            ask(server, "unregister_system_shared_memory", "mine")
            ask(server, "unregister_system_shared_memory")
            assert len(ask(server, "get_system_shared_memory_status").regions) == 0
        finally:
            client_memory.destroy_shared_memory_region(region)

    def test_what_is_refused(self, serve, refusal):
        """Triton's words."""
        server = serve("--allow-client-shm=true")
        assert refusal(server, "register_system_shared_memory", "r", "/no_such_object", 8) == (
            "INTERNAL",
            "Unable to open shared memory region: '/no_such_object'",
        )
        assert refusal(server, "get_system_shared_memory_status", "r") == (
            "NOT_FOUND",
            "Unable to find system shared memory region: 'r'",
        )
        assert refusal(server, "get_cuda_shared_memory_status", "r") == (
            "NOT_FOUND",
            "Unable to find cuda shared memory region: 'r'",
        )
        assert refusal(server, "register_cuda_shared_memory", "r", b"", 0, 8)[0] == "INVALID_ARGUMENT"

    def test_where_it_is_not_allowed(self, samples, ask, refusal):
        """It is not, by default; the status is empty."""
        words = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        for kind in ("system", "cuda"):
            assert len(ask(samples, f"get_{kind}_shared_memory_status").regions) == 0
            assert refusal(samples, f"unregister_{kind}_shared_memory") == ("UNIMPLEMENTED", words)
        assert refusal(samples, "register_system_shared_memory", "r", "/k", 8) == ("UNIMPLEMENTED", words)


class TestTrace:
    def test_layers(self, explicit, ask):
        """A model's settings stand above those of all, until they are cleared."""

        def rate(model=None):
            return list(ask(explicit, "get_trace_settings", model).settings["trace_rate"].value)

        before = rate()
        ask(explicit, "update_trace_settings", settings={"trace_rate": "7"})
        updated = ask(explicit, "update_trace_settings", "m", {"trace_rate": "8", "trace_level": ["TIMESTAMPS"]})
        assert list(updated.settings["trace_rate"].value) == ["8"]
        assert list(updated.settings["trace_level"].value) == ["TIMESTAMPS"]
        assert (rate(), rate("m")) == (["7"], ["8"])
        ask(explicit, "update_trace_settings", "m", {"trace_rate": None})
        assert rate("m") == ["7"]
        ask(explicit, "update_trace_settings", settings={"trace_rate": []})
        assert rate("m") == rate() == before

    def test_what_is_refused(self, samples, refusal):
        """Triton's words."""
        assert refusal(samples, "get_trace_settings", "nobody") == (
            "INVALID_ARGUMENT",
            "Request for unknown model : nobody",
        )
        assert refusal(samples, "update_trace_settings", settings={"trace_file": "x"}) == (
            "UNIMPLEMENTED",
            "trace file location can not be updated through network protocol",
        )
        assert refusal(samples, "update_trace_settings", settings={"trace_rate": "x"}) == (
            "INVALID_ARGUMENT",
            "Unable to parse 'trace_rate', got: x",
        )
        assert refusal(samples, "update_trace_settings", settings={"trace_rate": ["1", "2"]}) == (
            "INVALID_ARGUMENT",
            "expect only 1 value for 'trace_rate'",
        )


class TestLog:
    def test_changing(self, explicit, ask):
        """A change is returned, and stays."""
        changes = {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
        for found in (ask(explicit, "update_log_settings", changes), ask(explicit, "get_log_settings")):
            settings = found.settings
            assert settings["log_info"].bool_param is False
            assert settings["log_error"].bool_param is True
            assert settings["log_verbose_level"].uint32_param == 1
            assert settings["log_format"].string_param == "ISO8601"
            assert settings["log_file"].string_param == ""

    def test_what_is_refused(self, samples, refusal):
        """Triton's words."""
        assert refusal(samples, "update_log_settings", {"log_format": "x"}) == (
            "INVALID_ARGUMENT",
            "invalid argument for log_format, got: x",
        )
        for value in ("x", None):
            assert refusal(samples, "update_log_settings", {"log_file": value}) == (
                "UNIMPLEMENTED",
                "log file location can not be updated through network protocol",
            )

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("log_info", {"uint32_param": 1}, "expect boolean for 'log_info'"),
            ("log_warning", {}, "expect boolean for 'log_warning'"),
            ("log_verbose_level", {"bool_param": True}, "expect int32 for 'log_verbose_level'"),
            ("log_format", {"bool_param": True}, "expect string for 'log_format'"),
        ],
    )
    def test_other_types(self, samples, name, value, message):
        """Triton's words."""
        request = service_pb2.LogSettingsRequest()
        request.settings[name].CopyFrom(request.SettingValue(**value))
        assert raw_refusal(samples, "LogSettings", request) == ("INVALID_ARGUMENT", message)


class TestHealth:
    def test_check(self, samples):
        """Every service is serving, as in Triton."""
        with channel_to(samples) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for service in ("", "inference.GRPCInferenceService", "another"):
                request = health_pb2.HealthCheckRequest(service=service)
                assert stub.Check(request, timeout=LIMIT_S).status == STATUSES.SERVING

    def test_watch(self, tmp_path, model, serve):
        """The status comes at once, and when a model changes its mind; at last the server says that it stops."""
        ready = model("m", AS_IT_LIKES) / "ready"
        ready.touch()
        server = serve()
        with channel_to(server) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == STATUSES.SERVING
            ready.unlink()
            assert next(watch).status == STATUSES.NOT_SERVING
            ready.touch()
            assert next(watch).status == STATUSES.SERVING
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as caught:
                next(watch)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert server.wait_exit() == 0, server.log

    def test_watch_of_another_service(self, samples):
        """An unknown service is reported as such."""
        with channel_to(samples) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="another"))
            assert next(watch).status == STATUSES.SERVICE_UNKNOWN
            watch.cancel()


class TestReflection:
    def test_by_the_client_of_grpc(self, samples):
        """A client finds services and methods by reflection alone."""
        with channel_to(samples) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            assert set(database.get_services()) == {
                "inference.GRPCInferenceService",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            }
            pool = DescriptorPool(database)
            method = pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName("ModelInfer")
            assert method.input_type.fields_by_name["raw_input_contents"].number == 7
            with pytest.raises(KeyError):
                pool.FindServiceByName("inference.Nothing")

    def test_of_the_first_version(self, samples):
        """Under its other name: the messages are the same."""
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_by_filename="health.proto"),
            reflection_pb2.ServerReflectionRequest(file_by_filename="nothing.proto"),
        ]
        with channel_to(samples) as channel:
            call = channel.stream_stream(
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            answers = list(call(iter(requests), timeout=LIMIT_S))
        assert [answer.WhichOneof("message_response") for answer in answers] == [
            "list_services_response", "file_descriptor_response", "error_response",
        ]  # fmt: skip
        assert [answer.original_request for answer in answers] == requests


def test_a_method_that_there_is_not(samples):
    """An unknown method is UNIMPLEMENTED."""
    with channel_to(samples) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=LIMIT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_is_no_message(samples):
    """It cannot be parsed, and the server goes on."""
    with channel_to(samples) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")(b"\xff", timeout=LIMIT_S)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=LIMIT_S) == b"\x08\x01"


def test_protobuf_in_pure_python(serve, model, monkeypatch):
    """Some packages choose protobuf's slower implementation for their process and all that it starts."""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    model("constant", CONSTANT.format(7))
    server = serve("--model-control-mode=explicit", "--load-model=constant")
    with closing(server.grpc()) as client:
        assert [each.name for each in client.get_model_metadata("constant").outputs] == ["OUT"]
        assert client.get_model_config("constant").config.name == "constant"
        assert client.get_inference_statistics("constant").model_stats[0].name == "constant"
        assert [each.state for each in client.get_model_repository_index().models] == ["READY"]
        assert client.get_trace_settings("constant").settings["trace_rate"].value == ["1000"]
        assert client.update_log_settings({"log_verbose_level": 1}).settings["log_verbose_level"].uint32_param == 1
        client.unload_model("constant")
        client.load_model("constant")
    assert server.infer("constant", {"IN": np.array([1])}).as_numpy("OUT").tolist() == [7]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's client in its four flavours, each through every method that it has, and a client of gRPC that has no stubs.

Other tests cover the methods in detail; this one calls each method of each client.
"""

import asyncio
import base64
import inspect
import json
import os
import queue
from collections import Counter
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from .harness.models import COUNT
from .harness.waiting import LIMIT_S

FLAVOURS = [tritonclient.http, tritonclient.http.aio, tritonclient.grpc, tritonclient.grpc.aio]
SERVICE = "inference.GRPCInferenceService"
# Gives back its input, and says what else it was told.
TOLD = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUT", request.inputs()[0].as_numpy()),
            pb_utils.Tensor("TOLD", np.array([json.dumps({
                "id": request.request_id(), "correlation": request.correlation_id(), "flags": request.flags(),
                "timeout": request.timeout(), "parameters": json.loads(request.parameters()),
            }).encode()], dtype=np.object_)),
        ]) for request in requests]
"""
AND_TOLD = 'output [ { name: "TOLD" data_type: TYPE_STRING dims: [ 1 ] } ]'
# Each of its requests is answered as often as it says.
NOTHING_TOLD = {"id": "", "correlation": 0, "flags": 0, "timeout": 0, "parameters": {}}
SEQUENCE_START = 1


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("flavours")
    write_model(repository, "told", TOLD, more=AND_TOLD)
    write_model(repository, "count", COUNT, more="model_transaction_policy { decoupled: true }")
    options = ["--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true"]
    options += [f"--{protocol}-header-forward-pattern=x-.*" for protocol in ("http", "grpc")]
    with serving(repository, *options) as server:
        yield server


def methods_of(flavour):
    """The name of every method that clients have."""
    return {name for name, _ in inspect.getmembers(flavour.InferenceServerClient, callable) if not name.startswith("_")}


class Asking:
    """`await ask(method, ...)` calls a method of a client of any flavour; `ask.called` are those that were."""

    def __init__(self, flavour, server):
        self.flavour, self.server, self.called = flavour, server, set()
        self.speaks_grpc = flavour.__name__.startswith("tritonclient.grpc")
        self.client = flavour.InferenceServerClient(
            f"127.0.0.1:{server.grpc_port if self.speaks_grpc else server.port}"
        )

    async def __call__(self, method, *arguments, **options):
        self.called.add(method)
        call = getattr(self.client, method)
        if "as_json" in inspect.signature(call).parameters:
            options["as_json"] = True
        answer = call(*arguments, **options)
        return await answer if inspect.isawaitable(answer) else answer

    async def infer(self, *values, **options):
        """The output of the model, and the request as the model saw it."""
        return read(await self("infer", "told", self.inputs(*values), **options))

    def inputs(self, *values):
        array = np.array(values, np.int64)
        return [self.flavour.InferInput("IN", list(array.shape), "INT64").set_data_from_numpy(array)]


@asynccontextmanager
async def asking(flavour, server):
    ask = Asking(flavour, server)
    try:
        yield ask
    finally:
        await ask("close")


def read(result):
    (told,) = result.as_numpy("TOLD")
    return result.as_numpy("OUT").tolist(), json.loads(told)


# Methods that a client of every flavour has. Documents of gRPC are those that its client makes of messages.


async def check_server(ask):
    assert await ask("is_server_live") is True
    assert await ask("is_server_ready") is True
    found = await ask("get_server_metadata")
    assert found == json.loads(ask.server.request("GET", "/v2").body)


async def check_model(ask):
    assert await ask("is_model_ready", "told") is True
    assert await ask("is_model_ready", "told", "2") is False
    metadata = await ask("get_model_metadata", "told", "1")
    assert (metadata["name"], metadata["platform"], metadata["versions"]) == ("told", "python", ["1"])
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["OUT", "TOLD"]
    config = await ask("get_model_config", "told")
    config = config["config"] if ask.speaks_grpc else config
    assert (config["name"], config["backend"]) == ("told", "python")
    before, _, after = [
        (await ask("get_inference_statistics", "told"))["model_stats"][0]["inference_stats"]["success"].get("count", 0),
        await ask.infer(1),
        (await ask("get_inference_statistics", "told"))["model_stats"][0]["inference_stats"]["success"]["count"],
    ]
    assert int(after) == int(before) + 1


async def check_repository(ask):
    rows = await ask("get_model_repository_index")
    rows = rows["models"] if ask.speaks_grpc else rows
    assert ("told", "1", "READY") in [(row["name"], row["version"], row["state"]) for row in rows]
    config = await ask("get_model_config", "told")
    await ask("unload_model", "told", unload_dependents=True)
    assert await ask("is_model_ready", "told") is False
    # As it is sent, and as it is in the repository.
    config = json.dumps(config["config"] if ask.speaks_grpc else config)
    code = b"import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n" + TOLD.encode()
    await ask("load_model", "told", config=config, files={"file:3/model.py": code})
    assert (await ask("get_model_metadata", "told"))["versions"] == ["3"]
    await ask("load_model", "told")
    assert (await ask("get_model_metadata", "told"))["versions"] == ["1"]
    with pytest.raises(InferenceServerException, match="failed to load 'nobody', failed to poll from model repository"):
        await ask("load_model", "nobody")


async def check_settings(ask):
    def plain(answer):
        if not ask.speaks_grpc:
            return answer
        settings = {name: next(iter(value.values())) for name, value in answer["settings"].items() if value}
        return {name: value[0] if name == "trace_rate" else value for name, value in settings.items()}

    for model in (None, "told"):
        assert plain(await ask("get_trace_settings", model))["trace_rate"] == "1000"
        assert plain(await ask("update_trace_settings", model, {"trace_rate": "9"}))["trace_rate"] == "9"
        assert plain(await ask("get_trace_settings", model))["trace_rate"] == "9"
        assert plain(await ask("update_trace_settings", model, {"trace_rate": None}))["trace_rate"] == "1000"
    assert plain(await ask("get_log_settings"))["log_warning"] is True
    assert plain(await ask("update_log_settings", {"log_warning": False}))["log_warning"] is False
    assert plain(await ask("get_log_settings"))["log_warning"] is False
    assert plain(await ask("update_log_settings", {"log_warning": True}))["log_warning"] is True


async def check_system_memory(ask):
    def rows(answer):
        found = answer.get("regions", {}).values() if ask.speaks_grpc else answer
        return [(row["name"], row["key"], int(row.get("offset", 0)), int(row["byte_size"])) for row in found]

    array = np.array([3, 4])
    key = f"/flavours_of_a_test_{os.getpid()}"
    region = shm.create_shared_memory_region("mine", key, 64)
    try:
        shm.set_shared_memory_region(region, [array])
        await ask("register_system_shared_memory", "mine", key, 64, offset=0)
        expected = [("mine", key, 0, 64)]
        assert rows(await ask("get_system_shared_memory_status")) == expected
        assert rows(await ask("get_system_shared_memory_status", "mine")) == expected
        (tensor,) = ask.inputs(*array)
        tensor.set_shared_memory("mine", array.nbytes)
        output = ask.flavour.InferRequestedOutput("OUT")
        output.set_shared_memory("mine", array.nbytes, offset=array.nbytes)
        await ask("infer", "told", [tensor], outputs=[output])
        assert shm.get_contents_as_numpy(region, np.int64, [2], array.nbytes).tolist() == [3, 4]
        await ask("unregister_system_shared_memory", "mine")
        await ask("unregister_system_shared_memory")
        assert rows(await ask("get_system_shared_memory_status")) == []
    finally:
        shm.destroy_shared_memory_region(region)


async def check_cuda_memory(ask):
    """There are no CUDA regions."""
    with pytest.raises(InferenceServerException, match=r"failed to register .*shared memory region"):
        await ask("register_cuda_shared_memory", "theirs", base64.b64encode(bytes(64)), 0, 64)
    status = await ask("get_cuda_shared_memory_status")
    assert not (status.get("regions") if ask.speaks_grpc else status)
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'theirs'"):
        await ask("get_cuda_shared_memory_status", "theirs")
    await ask("unregister_cuda_shared_memory", "theirs")
    await ask("unregister_cuda_shared_memory")


async def check_plugin(ask):
    class Plugin(tritonclient.grpc.InferenceServerClientPlugin):
        def __call__(self, request):
            request.headers["x-plugin"] = "was here"

    plugin = Plugin()
    await ask("register_plugin", plugin)
    assert await ask("plugin") is plugin
    _, told = await ask.infer(1, headers={"x-call": "was here too"})
    assert told["parameters"] == {"x-plugin": "was here", "x-call": "was here too"}
    await ask("unregister_plugin")
    assert await ask("plugin") is None
    assert await ask.infer(1) == ([1], NOTHING_TOLD)


async def check_infer(ask):
    """The properties of a request besides its tensors reach the model, with and without compression."""
    assert await ask.infer(1, 2) == ([1, 2], NOTHING_TOLD)
    options = {"compression_algorithm": "gzip", "client_timeout": LIMIT_S} if ask.speaks_grpc else {
        "request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate", "query_params": {"a": "b"}
    }  # fmt: skip
    sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": False}
    parameters = {"one": 1, "half": 0.5, "text": "grün", "truth": True}
    options |= sequence | {"model_version": "1", "request_id": "r", "timeout": LIMIT_S * 10**6, "priority": 3}
    assert await ask.infer(5, **options, parameters=parameters) == (
        [5],
        {
            "id": "r",
            "correlation": 7,
            "flags": SEQUENCE_START,
            "timeout": LIMIT_S * 10**6,
            "parameters": parameters,
        },
    )
    result = await ask("infer", "told", ask.inputs(1), outputs=[ask.flavour.InferRequestedOutput("OUT")])
    assert (result.as_numpy("OUT").tolist(), result.as_numpy("TOLD")) == ([1], None)
    assert (await ask.infer(1, sequence_id="a" * 128))[1]["correlation"] == "a" * 128
    with pytest.raises(InferenceServerException, match="string correlation ID cannot be longer than 128 characters"):
        await ask.infer(1, sequence_id="a" * 129)
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nobody' is not found"):
        await ask("infer", "nobody", ask.inputs(1))


# Methods that only some clients have.


async def check_bodies(ask):
    """A body can be made, and be read, where another client carries it."""
    body, length = await ask("generate_request_body", ask.inputs(1, 2), request_id="carried")
    head = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    answer = ask.server.request("POST", "/v2/models/told/infer", body, head)
    assert answer.status == 200
    length = answer.headers["Inference-Header-Content-Length"]
    result = await ask("parse_response_body", answer.body, header_length=None if length is None else int(length))
    assert read(result) == ([1, 2], NOTHING_TOLD | {"id": "carried"})


async def check_async_infer_of_http(ask):
    calls = [await ask("async_infer", "told", ask.inputs(number)) for number in range(5)]
    assert [read(call.get_result())[0] for call in calls] == [[number] for number in range(5)]


async def check_async_infer_of_grpc(ask):
    answers = queue.Queue()
    for number in range(5):
        await ask(
            "async_infer",
            "told",
            ask.inputs(number),
            lambda result, error: answers.put((result, error)),
            request_id="r",
        )
    found = [answers.get(timeout=LIMIT_S) for _ in range(5)]
    assert [error for _, error in found] == [None] * 5
    assert sorted(read(result)[0] for result, _ in found) == [[number] for number in range(5)]


def to_numbers(results):
    """The responses to a stream of requests, by ID; the ID of each request is its number."""
    numbers = {}
    for result in results:
        assert result.get_response().id in {"0", "1", "2"}
        found = result.as_numpy("OUT")
        numbers.setdefault(result.get_response().id, []).append(None if found is None else found.tolist())
    return numbers


NUMBERS = {"1": [[0]], "2": [[0], [1]]}
# The same if responses are wanted that say nothing but that there are no more.
NUMBERS_AND_ENDS = {"0": [None], "1": [[0], None], "2": [[0], [1], None]}


async def check_stream_of_sync(ask):
    answers = queue.Queue()
    for compression in (None, "gzip"):
        await ask(
            "start_stream",
            lambda result, error: answers.put((result, error)),
            headers={"x-a": "b"},
            compression_algorithm=compression,
        )
        for count in range(3):
            options = {"request_id": str(count), "enable_empty_final_response": True}
            await ask("async_stream_infer", "count", ask.inputs(count), **options)
        found = [answers.get(timeout=LIMIT_S) for _ in range(6)]
        assert [error for _, error in found] == [None] * 6
        assert to_numbers(result for result, _ in found) == NUMBERS_AND_ENDS
        await ask("stop_stream")
    assert answers.empty()


async def check_stream_of_aio(ask):
    async def requests():
        for count in range(3):
            yield {"model_name": "count", "inputs": ask.inputs(count), "request_id": str(count)}

    for compression in (None, "gzip"):
        found = []
        async with asyncio.timeout(LIMIT_S):
            answers = await ask("stream_infer", requests(), headers={"x-a": "b"}, compression_algorithm=compression)
            async for result, error in answers:
                assert error is None
                found.append(result)
        assert to_numbers(found) == NUMBERS


CHECKS = [
    check_server,
    check_model,
    check_repository,
    check_settings,
    check_system_memory,
    check_cuda_memory,
    check_plugin,
    check_infer,
]
CHECKS_OF = {
    tritonclient.http: [check_bodies, check_async_infer_of_http],
    tritonclient.http.aio: [check_bodies],
    tritonclient.grpc: [check_async_infer_of_grpc, check_stream_of_sync],
    tritonclient.grpc.aio: [check_stream_of_aio],
}


@pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda flavour: flavour.__name__)
def test_every_method(server, flavour, wait_until):
    """Each method works, and none was left out."""
    wait_until(server.is_ready)  # as long as a model of another test unloads it is not

    async def run():
        async with asking(flavour, server) as ask:
            for check in CHECKS + CHECKS_OF[flavour]:
                await check(ask)
        assert ask.called == methods_of(flavour)

    asyncio.run(run())


def test_metrics(server):
    """Requests of every flavour are counted, and Prometheus' parser can read the counts."""

    def counts():
        samples = Counter()
        for family in text_string_to_metric_families(
            server.request("GET", "/metrics", port=server.metrics_port).body.decode()
        ):
            for sample in family.samples:
                if sample.labels.get("model") == "told":
                    samples[sample.name, sample.labels.get("reason")] += sample.value
        return samples

    async def run():
        for flavour in FLAVOURS:
            async with asking(flavour, server) as ask:
                assert (await ask.infer(1))[0] == [1]
                with pytest.raises(InferenceServerException):
                    await ask("infer", "told", [])

    before = counts()
    asyncio.run(run())
    more = counts() - before
    assert more["nv_inference_request_success_total", None] == len(FLAVOURS)
    assert more["nv_inference_count_total", None] == len(FLAVOURS)
    assert more["nv_inference_exec_count_total", None] == len(FLAVOURS)


class TestBareGrpc:
    """A client that only knows the server's own descriptors."""

    @pytest.fixture
    def channel(self, server):
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            yield channel

    @pytest.fixture
    def service(self, channel):
        return DescriptorPool(ProtoReflectionDescriptorDatabase(channel)).FindServiceByName(SERVICE)

    @staticmethod
    def call(channel, method, *requests):
        """The answers of a method to requests, as a list of messages."""
        kind = channel.stream_stream if method.client_streaming else channel.unary_unary
        answer = message_factory.GetMessageClass(method.output_type)
        call = kind(f"/{SERVICE}/{method.name}", lambda message: message.SerializeToString(), answer.FromString)
        if method.client_streaming:
            return list(call(iter(requests), timeout=LIMIT_S))
        return [call(request, timeout=LIMIT_S) for request in requests]

    @pytest.mark.parametrize(("method", "model"), [("ModelInfer", "told"), ("ModelStreamInfer", "count")])
    def test_infer(self, channel, service, method, model):
        """A tensor goes in and others come out."""
        found = service.FindMethodByName(method)
        request = message_factory.GetMessageClass(found.input_type)(model_name=model, id="bare")
        request.inputs.add(name="IN", datatype="INT64", shape=[1])
        request.raw_input_contents.append(np.array([2]).tobytes())
        answers = self.call(channel, found, request)
        answers = [getattr(answer, "infer_response", answer) for answer in answers]
        assert {answer.id for answer in answers} == {"bare"}
        numbers = [np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() for answer in answers]
        assert numbers == ([[2]] if model == "told" else [[0], [1]])

    def test_every_method(self, channel, service):
        """Each method exists, whatever its error for an empty message."""
        known = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
        assert {method.name for method in service.methods} >= {method.name for method in known}
        codes = set()
        for method in service.methods:
            try:
                self.call(channel, method, message_factory.GetMessageClass(method.input_type)())
            except grpc.RpcError as exc:
                codes.add(exc.code())
        assert grpc.StatusCode.UNIMPLEMENTED not in codes

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every endpoint of HTTP but inference, by Triton's clients: metadata, loading, shared memory, settings."""

import asyncio
import base64
import json
from contextlib import closing

import numpy as np
import pytest
import tritonclient.http.aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from .harness.models import ECHO

DOUBLE = ECHO.replace(".as_numpy()", ".as_numpy() * 2")
# Answers with the parameters of its requests.
PARAMETERS = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([request.parameters()], dtype=object))])
                for request in requests]
"""
PARAMETERS_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CONFIG = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]}],
    }
)
EVERY_API = "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging"
ASKED = {"IN": np.array([1, 2])}


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("endpoints")
    write_model(repository, "plain", ECHO)
    write_model(repository, "other", ECHO)
    options = ("--model-control-mode=explicit", "--load-model=plain", "--allow-client-shm=true")
    with serving(repository, *options) as server:
        yield server


@pytest.fixture
def client(server):
    with closing(server.client()) as client:
        yield client


def refusal(server, method, path, document=None, headers=None):
    """Status and message of the error that a request must end with."""
    answer = server.request(method, path, None if document is None else json.dumps(document), headers)
    assert answer.headers["Content-Type"] == "application/json"
    (message,) = json.loads(answer.body).values()
    return answer.status, message


def test_server(client):
    """The server is live and ready, and lists its extensions."""
    assert client.is_server_live()
    assert client.is_server_ready()
    extensions = client.get_server_metadata()["extensions"]
    assert {"model_repository", "system_shared_memory", "trace", "logging", "classification"} <= set(extensions)


def test_model(client):
    """A model is ready, and described."""
    assert client.is_model_ready("plain")
    assert client.get_model_metadata("plain")["versions"] == ["1"]
    assert client.get_model_config("plain")["name"] == "plain"
    assert client.get_inference_statistics("plain")["model_stats"][0]["name"] == "plain"


class TestRepository:
    def test_load_and_unload(self, client, server):
        """A loaded model is in the index and ready, an unloaded one is not ready."""
        rows = {row["name"]: row.get("state") for row in client.get_model_repository_index()}
        assert rows["plain"] == "READY"
        client.load_model("other")
        assert client.is_model_ready("other")
        answer = server.request("POST", "/v2/repository/index", json.dumps({"ready": True}))
        assert {row["name"] for row in json.loads(answer.body)} >= {"plain", "other"}
        client.unload_model("other", unload_dependents=True)
        assert not client.is_model_ready("other")
        client.unload_model("other")
        client.unload_model("nobody")

    def test_override(self, client, server):
        """A model may come with the request, as Triton's client sends it."""
        client.load_model(
            "sent",
            config=CONFIG,
            files={"file:1/model.py": b"import triton_python_backend_utils as pb_utils\n" + DOUBLE.encode()},
        )
        assert server.infer("sent", ASKED).as_numpy("OUT").tolist() == [2, 4]
        client.unload_model("sent")

    def test_load_of_nothing(self, server):
        """The response has the reason, with Triton's status."""
        path = "/v2/repository/models/{}/load"
        message = "failed to load 'nobody', failed to poll from model repository"
        assert refusal(server, "POST", path.format("nobody")) == (500, message)
        assert refusal(server, "POST", path.format("%20"))[0] == 400
        assert refusal(server, "POST", path.format("..%2Fother")) == (
            400, "invalid model name '../other', model name must not contain path traversal characters",
        )  # fmt: skip
        assert refusal(server, "POST", path.format("other"), {"parameters": {"file:1/model.py": "eA=="}})[0] == 400

    def test_a_repository_cannot_be_named(self, server):
        """As in Triton."""
        for path in ("index", "models/plain/load", "models/plain/unload"):
            expected = (501, "'repository_name' specification is not supported")
            assert refusal(server, "POST", f"/v2/repository/any/{path}") == expected

    def test_where_it_is_not_allowed(self, samples):
        """Models that were all loaded at the start stay."""
        message = "explicit model load / unload is not allowed if polling is enabled"
        for verb in ("load", "unload"):
            assert refusal(samples, "POST", f"/v2/repository/models/add_sub/{verb}") == (503, message)


class TestMemory:
    def test_system(self, client, server):
        """Regions are registered, shown, and forgotten one by one or all together."""
        key = f"/pyruntime_endpoints_{server.port}"
        region = shm.create_shared_memory_region("data", key, 64)
        try:
            client.register_system_shared_memory("my data", key, 32, offset=8)
            client.register_system_shared_memory("other", key, 64)
            row = {"name": "my data", "key": key, "offset": 8, "byte_size": 32}
            assert client.get_system_shared_memory_status("my data") == [row]
            assert len(client.get_system_shared_memory_status()) == 2
            client.unregister_system_shared_memory("my data")
            with pytest.raises(InferenceServerException, match="Unable to find system shared memory region: 'my data'"):
                client.get_system_shared_memory_status("my data")
            client.unregister_system_shared_memory()
            assert client.get_system_shared_memory_status() == []
        finally:
            shm.destroy_shared_memory_region(region)

    def test_cuda(self, client, server):
        """There are no CUDA regions, and the messages are Triton's."""
        assert client.get_cuda_shared_memory_status() == []
        client.unregister_cuda_shared_memory()
        with pytest.raises(InferenceServerException, match="failed to register CUDA shared memory region: 'gpu'"):
            client.register_cuda_shared_memory("gpu", base64.b64encode(bytes(64)), 0, 64)
        message = "Unable to find cuda shared memory region: 'gpu'"
        assert refusal(server, "GET", "/v2/cudasharedmemory/region/gpu/status") == (404, message)

    def test_where_it_is_not_allowed(self, samples):
        """Registering is refused, and no region is listed."""
        disabled = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        document = {"key": "/any", "byte_size": 1}
        path = "/v2/systemsharedmemory/region/any/register"
        assert refusal(samples, "POST", path, document) == (501, disabled)
        assert refusal(samples, "POST", "/v2/systemsharedmemory/unregister") == (501, disabled)
        assert json.loads(samples.request("GET", "/v2/systemsharedmemory/status").body) == []


class TestSettings:
    def test_trace(self, client):
        """Those of a model stand above the server's own until they are cleared."""
        assert client.get_trace_settings()["trace_rate"] == "1000"
        assert client.update_trace_settings(settings={"trace_rate": "5"})["trace_rate"] == "5"
        assert client.update_trace_settings("plain", {"trace_rate": "7"})["trace_rate"] == "7"
        assert client.get_trace_settings("plain")["trace_rate"] == "7"
        assert client.update_trace_settings("plain", {"trace_rate": None})["trace_rate"] == "5"
        assert client.update_trace_settings(settings={"trace_rate": None})["trace_rate"] == "1000"
        with pytest.raises(InferenceServerException, match="Request for unknown model : nobody"):
            client.get_trace_settings("nobody")

    def test_logging(self, client):
        """They are the server's, and hold at once."""
        before = client.get_log_settings()
        assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
        assert client.update_log_settings({"log_verbose_level": before["log_verbose_level"]}) == before


@pytest.mark.parametrize(
    "path",
    [
        "repository/models/plain/unload",
        "repository/models/plain/load",
        "logging",
        "trace/setting",
        "models/plain/trace/setting",
        "systemsharedmemory/unregister",
        "systemsharedmemory/region/a/register",
        "cudasharedmemory/unregister",
    ],
)
def test_pages_of_other_sites(client, server, path):
    """What a browser sends for them changes nothing; they may ask for inference, whose answer they cannot read."""
    foreign = {"Origin": "http://evil.example", "Content-Type": "text/plain"}
    answer = server.request("POST", f"/v2/{path}", "{}", foreign)
    assert answer.status == 403
    assert "a web page of another site" in json.loads(answer.body)["error"]
    assert client.is_model_ready("plain")
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.request("POST", "/v2/logging", "{}", own).status == 200
    assert server.request("POST", "/v2/models/plain/infer", "{}", foreign).status == 400


def test_asyncio_client(server):
    """The other one of Triton's clients gets the same."""

    async def check():
        async with tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            assert await client.is_server_ready()
            assert await client.is_model_ready("plain")
            await client.load_model("other")
            assert await client.is_model_ready("other")
            await client.unload_model("other")
            assert not await client.is_model_ready("other")
            assert {row["name"] for row in await client.get_model_repository_index()} >= {"plain", "other"}
            assert await client.get_system_shared_memory_status() == []
            assert await client.get_cuda_shared_memory_status() == []
            await client.unregister_system_shared_memory()
            assert (await client.get_trace_settings())["trace_level"] == ["OFF"]
            assert (await client.update_trace_settings("plain", {"trace_rate": "9"}))["trace_rate"] == "9"
            assert (await client.update_trace_settings("plain", {"trace_rate": None}))["trace_rate"] == "1000"
            assert (await client.get_log_settings())["log_info"] is True
            assert (await client.update_log_settings({"log_info": True}))["log_info"] is True
            with pytest.raises(InferenceServerException):
                await client.load_model("nobody")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/repository/models/plain/load"),
        ("DELETE", "/v2/logging"),
        ("PUT", "/v2/trace/setting"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/region/r/register"),
        ("OPTIONS", "/v2"),
    ],
)
def test_wrong_verbs(server, method, path):
    """An endpoint answers to its own verbs only."""
    assert refusal(server, method, path) == (405, "Method Not Allowed")
    assert server.request(method, path).headers["allow"] in ("GET", "POST", "GET, POST")
    answer = server.request("HEAD", path)
    assert (answer.status, answer.body) == (405, b"")
    assert answer.headers["allow"] in ("GET", "POST", "GET, POST")


@pytest.fixture(scope="module")
def restricted(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("restricted")
    write_model(repository, "plain", ECHO)
    with serving(repository, f"--http-restricted-api={EVERY_API}:triton-key=secret", ready=False) as server:
        yield server


class TestRestricted:
    HEADERS = {"triton-Key": "secret"}

    def test_without_the_header(self, restricted, wait_until):
        """Without the header, or with a wrong value, every request is refused."""
        wait_until(lambda: "| Model " in restricted.log)
        expected = (403, "This API is restricted, expecting header 'triton-key'")
        for method, path in (
            ("GET", "/v2"), ("GET", "/v2/health/ready"), ("POST", "/v2/models/plain/infer"),
            ("GET", "/v2/models/plain/config"), ("GET", "/v2/models/stats"), ("POST", "/v2/repository/index"),
            ("POST", "/v2/repository/models/plain/load"), ("GET", "/v2/systemsharedmemory/status"),
            ("GET", "/v2/trace/setting"), ("POST", "/v2/logging"), ("POST", "/v2/models/plain/generate_stream"),
        ):  # fmt: skip
            assert refusal(restricted, method, path) == expected
            assert refusal(restricted, method, path, {"x": 1}, {"triton-key": "Secret"}) == expected

    def test_with_the_header(self, restricted, wait_until):
        """With the header, requests are served."""
        wait_until(lambda: "| Model " in restricted.log)
        with closing(restricted.client()) as client:
            assert client.is_server_ready(headers=self.HEADERS)
            assert client.get_server_metadata(headers=self.HEADERS)["name"] == "triton"
            tensor = tritonclient.http.InferInput("IN", [2], "INT64").set_data_from_numpy(ASKED["IN"])
            for _ in range(2):
                assert client.infer("plain", [tensor], headers=self.HEADERS).as_numpy("OUT").tolist() == [1, 2]
            with pytest.raises(InferenceServerException, match="This API is restricted, expecting header"):
                client.infer("plain", [tensor])


def test_forwarded_headers(tmp_path, model, serve):
    """Headers that the operator named are parameters of requests, of both kinds."""
    model("parameters", PARAMETERS, PARAMETERS_CONFIG)
    server = serve("--http-header-forward-pattern=^x-|timeout")
    with closing(server.client()) as client:
        tensor = tritonclient.http.InferInput("IN", [1], "INT64").set_data_from_numpy(np.array([1]))
        for value in ("a", "b"):
            found = client.infer("parameters", [tensor], headers={"X-Tenant": value, "Other": "c"}, parameters={"d": 1})
            assert json.loads(found.as_numpy("OUT")[0]) == {"X-Tenant": value, "d": 1}
        assert json.loads(client.infer("parameters", [tensor]).as_numpy("OUT")[0]) == {}
        with pytest.raises(InferenceServerException, match="Header 'timeout' is reserved for Triton usage"):
            client.infer("parameters", [tensor], headers={"timeout": "1"})
    answer = server.request("POST", "/v2/models/parameters/generate", json.dumps({"IN": 1}), {"x-tenant": "d"})
    assert json.loads(json.loads(answer.body)["OUT"]) == {"x-tenant": "d"}

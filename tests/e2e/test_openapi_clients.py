# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that generators make of a server's OpenAPI document, and what the server answers them.

The generators are fetched once and kept in the user's folder of caches.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from .harness.models import COUNT

PYTHON_GENERATOR = "openapi-python-client==0.29.1"
TYPESCRIPT = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9")
# For a registry that does not answer.
LIMIT_S = 300

DECOUPLED = "model_transaction_policy { decoupled: true }"
CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT16 dims: [ 3 ] }, { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT16 dims: [ 3 ] }, { name: "HELLO" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            names = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()
            hello = pb_utils.Tensor("HELLO", np.array([[b"hello " + name] for (name,) in names], np.object_))
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numbers * 2), hello]))
        return made
"""
# A configuration for a load.
COUNTING = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT64", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT64", "dims": [-1]}],
    "model_transaction_policy": {"decoupled": True},
}
INPUTS = [
    {"name": "IN", "datatype": "INT16", "shape": [1, 3], "data": [1, 2, 3]},
    {"name": "NAME", "datatype": "BYTES", "shape": [1, 1], "data": ["you"]},
]

PYTHON = """
import json, sys
from made import AuthenticatedClient, Client, models
from made.api.health import server_ready
from made.api.inference import generate_greeter, infer_greeter, infer_greeter_1, stream_generate_count
from made.api.logging import update_log_settings
from made.api.model_repository import load_model, repository_index, unload_model
from made.api.statistics import model_statistics
from made.types import File

url, inputs, config = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
client = AuthenticatedClient(url, token="secret", auth_header_name="key", prefix="")
inferred = infer_greeter.sync(client=client, body=models.InferRequestGreeter1.from_dict({"inputs": inputs}))
generated = generate_greeter.sync(
    client=client, body=models.GenerateRequestGreeter1.from_dict({"IN": [1, 2, 3], "NAME": "you"})
)
lacking = infer_greeter_1.sync_detailed(client=client, body=models.InferRequestGreeter1.from_dict({"inputs": []}))
document = json.dumps({"inputs": inputs}).encode()
binary = infer_greeter.sync_detailed(
    client=client, body=File(document + b"", mime_type="application/octet-stream"),
    inference_header_content_length=len(document),
)
streamed = stream_generate_count.sync(client=client, body=models.GenerateRequestCount1.from_dict({"IN": 3}))
unloaded = unload_model.sync_detailed("count", client=client, body=models.UnloadRequest.from_dict({}))
loaded = load_model.sync_detailed(
    "count", client=client, body=models.LoadRequest.from_dict({"parameters": {"config": config}})
)
print(json.dumps({
    "inferred": [output.to_dict()["data"] for output in inferred.outputs],
    "generated": [generated.out, generated.hello],
    "lacking": [lacking.status_code, "error" in lacking.parsed.to_dict()],
    "binary": [binary.status_code, binary.parsed.to_dict()["outputs"][0]["data"]],
    "streamed": streamed.count("data: "),
    "control": [unloaded.status_code, loaded.status_code],
    "index": sorted(row.name for row in repository_index.sync(client=client)),
    "logged": update_log_settings.sync(client=client, body=models.LogUpdate(log_info=True)).to_dict()["log_info"],
    "ready": server_ready.sync_detailed(client=client).status_code,
    "statistics": model_statistics.sync("greeter", client=client).model_stats[0].inference_stats.success.count > 0,
    "closed": update_log_settings.sync_detailed(client=Client(url), body=models.LogUpdate()).status_code,
}))
"""
TYPED = """
import createClient from "openapi-fetch";
import type { components, paths } from "./made";

const [url, inputs, config] = process.argv.slice(2) as [string, string, string];
const body = { inputs: JSON.parse(inputs) } as components["schemas"]["InferRequest-greeter-1"];
const client = createClient<paths>({ baseUrl: url, headers: { key: "secret" } });
const inferred = await client.POST("/v2/models/greeter/infer", { body });
if (!inferred.data || typeof inferred.data === "string") throw inferred.error;
const generated = await client.POST("/v2/models/greeter/generate", { body: { IN: [1, 2, 3], NAME: "you" } });
const lacking = await client.POST("/v2/models/greeter/infer", { body: { inputs: [] } });
const streamed = await client.POST("/v2/models/count/generate_stream", { body: { IN: 3 }, parseAs: "text" });
const path = { model: "count" };
const unloaded = await client.POST("/v2/repository/models/{model}/unload", { params: { path }, parseAs: "text" });
const loaded = await client.POST("/v2/repository/models/{model}/load", {
  params: { path },
  body: { parameters: { config } },
  parseAs: "text",
});
const index = await client.POST("/v2/repository/index");
const logged = await client.POST("/v2/logging", { body: { log_info: true } });
const ready = await client.GET("/v2/health/ready", { parseAs: "text" });
const statistics = await client.GET("/v2/models/{model}/stats", { params: { path: { model: "greeter" } } });
const closed = await createClient<paths>({ baseUrl: url }).POST("/v2/logging", { body: {} });
console.log(JSON.stringify({
  inferred: inferred.data.outputs.map((output) => output.data),
  generated: [generated.data?.OUT, generated.data?.HELLO],
  lacking: [lacking.response.status, typeof lacking.error?.error === "string"],
  streamed: String(streamed.data).split("data: ").length - 1,
  control: [unloaded.response.status, loaded.response.status],
  index: index.data?.map((row) => row.name).sort(),
  logged: logged.data?.log_info,
  ready: ready.response.status,
  statistics: statistics.data?.model_stats[0]?.inference_stats.success?.count! > 0,
  closed: closed.response.status,
}));
"""
ANSWERS = {
    "inferred": [[2, 4, 6], ["hello you"]],
    "generated": [[2, 4, 6], "hello you"],
    "lacking": [400, True],
    "streamed": 3,
    "control": [200, 200],
    "index": ["count", "greeter"],
    "logged": True,
    "ready": 200,
    "statistics": True,
    "closed": 403,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server whose log settings are for those who have the key."""
    repository = tmp_path_factory.mktemp("documented")
    write_model(repository, "greeter", MODEL, CONFIG)
    write_model(repository, "count", COUNT, more=DECOUPLED)
    options = ("--model-control-mode=explicit", "--load-model=*", "--http-restricted-api=logging:key=secret")
    with serving(repository, *options) as server:
        yield server


def kept(name, command):
    """A folder that `command` has filled once: its last argument is the folder. Skips the test if it cannot."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyruntime" / "tests"
    folder = caches / name
    if not folder.is_dir():
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as scratch:
            made = Path(scratch) / name
            made.mkdir()
            try:
                done = subprocess.run([*command, made], cwd=made, capture_output=True, text=True, timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                pytest.skip(f"{' '.join(command[:3])} took longer than {LIMIT_S} s")
            if done.returncode:
                pytest.skip(f"cannot fetch {name}: {(done.stderr or done.stdout).strip()[-300:]}")
            try:
                made.rename(folder)
            except OSError:  # another process was faster
                assert folder.is_dir()
    return folder


def run(command, folder, **options):
    """What a command writes, which must succeed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def arguments(server):
    """Those of the programs."""
    return f"http://127.0.0.1:{server.port}", json.dumps(INPUTS), json.dumps(COUNTING)


def write_document(server, folder):
    document = folder / "openapi.json"
    document.write_bytes(server.request("GET", "/openapi.json").body)
    return document


def test_python(server, tmp_path):
    """All operations are in the client, none is left out with a warning, and it gets what the server answers."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]
    packages = kept(PYTHON_GENERATOR, [*install, "--only-binary=:all:", PYTHON_GENERATOR, "--target"])
    document = write_document(server, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    generate = [sys.executable, "-m", "openapi_python_client", "generate", "--meta=none"]
    said = run([*generate, f"--path={document}", f"--output-path={tmp_path / 'made'}"], tmp_path, env=environment)
    assert "will not be generated" not in said
    assert "Unable to process" not in said
    modules = [path for path in (tmp_path / "made" / "api").glob("*/*.py") if path.name != "__init__.py"]
    assert len(modules) == sum(len(each) for each in json.loads(document.read_bytes())["paths"].values())
    answers = json.loads(run([sys.executable, "-c", PYTHON, *arguments(server)], tmp_path, env=environment))
    assert answers == ANSWERS | {"binary": [200, [2, 4, 6]]}


def test_typescript(server, tmp_path):
    """The types compile with the calls that use them, and the client gets what the server answers."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("there is no npm here: apt-get install npm")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", *TYPESCRIPT, "--prefix"]
    packages = kept("+".join(TYPESCRIPT), install)
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "main.ts").write_text(TYPED)
    (tmp_path / "tsconfig.json").write_text(
        json.dumps(
            {
                "compilerOptions": {
                    "strict": True,
                    "skipLibCheck": True,
                    "target": "es2022",
                    "module": "es2022",
                    "moduleResolution": "bundler",
                    "lib": ["es2022", "dom"],
                    "types": [],
                },
                "files": ["main.ts", "process.d.ts"],
            }
        )
    )
    (tmp_path / "process.d.ts").write_text("declare const process: { argv: string[] };\n")
    document = write_document(server, tmp_path)
    run(["node", "node_modules/openapi-typescript/bin/cli.js", document, "-o", "made.d.ts"], tmp_path)
    run(["node", "node_modules/typescript/bin/tsc"], tmp_path)
    answers = json.loads(run(["node", "main.js", *arguments(server)], tmp_path))
    assert answers == ANSWERS

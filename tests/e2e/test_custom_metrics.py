# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics that models make, read off the metrics port as Prometheus reads them."""

import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

COUNTER = """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("shared", "Requests", pb_utils.MetricFamily.COUNTER)
        self.counter = self.family.Metric({"by": "all"})

    def execute(self, requests):
        self.counter.increment(len(requests))
        out = pb_utils.Tensor("OUT", np.array([self.counter.value()], dtype=np.int64))
        return [pb_utils.InferenceResponse([out])] * len(requests)
"""
# Runs the code in a request, and answers with its variable `answer`.
ANYTHING = """
class TritonPythonModel:
    def initialize(self, args):
        self.kept = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            names = {"kept": self.kept, "pb_utils": pb_utils, "answer": None, "threading": threading}
            try:
                exec(code, names)
                answer = str(names["answer"])
            except pb_utils.TritonModelException as error:
                answer = str(error)
            out = pb_utils.Tensor("ANSWER", np.array([answer.encode()], dtype=np.object_))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
"""
CODE_ANSWER = """
backend: "python"
input [ { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "ANSWER" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
ONE = {"IN": np.array([1])}


def samples_of(page):
    """The metrics of models on a page: {name or (name, labels): value}.

    The parser gives counters a `_total` that they have not.
    """
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        if family.name.startswith(("nv_", "pyruntime_")):
            continue
        for sample in family.samples:
            name = sample.name.removesuffix("_total") if family.type == "counter" else sample.name
            found[name, *sorted(sample.labels.items())] = sample.value
    return found


def scrape(server):
    answer = server.request("GET", "/metrics", port=server.metrics_port)
    assert (answer.status, answer.headers["Content-Type"]) in [
        (200, "text/plain; charset=utf-8"), (200, None),
    ]  # fmt: skip
    return samples_of(answer.body)


def count(server, model):
    """Send one request to a COUNTER; the count in its response."""
    return server.infer(model, ONE).as_numpy("OUT").item()


def run(server, code):
    """Have model `m` execute `code`; its variable `answer`, or the message of the error."""
    return server.infer("m", {"CODE": np.array([code], dtype=np.object_)}).as_numpy("ANSWER")[0].decode()


@pytest.fixture(scope="module")
def anything(serving, write_model, tmp_path_factory):
    """A server of the model that executes code from requests. Tests share it, so each has its own family names."""
    repository = tmp_path_factory.mktemp("anything")
    write_model(repository, "m", ANYTHING, CODE_ANSWER)
    with serving(repository) as server:
        yield server


def test_sample(samples):
    """The sample's three metrics, of all three kinds, with what its README shows."""
    labels = (("model", "metrics"), ("version", "1"))
    before = scrape(samples)
    for values in ([1.0, 2.0, 3.5], list(range(50))):
        samples.infer("metrics", {"INPUT": np.array(values, dtype=np.float32)})
    after = scrape(samples)

    def grown(name, *more):
        key = (name, *sorted([*labels, *more]))
        return after[key] - before[key]

    assert grown("accumulator_values") == 53
    assert grown("accumulator_total") == 6.5 + sum(range(50))
    assert [grown("accumulator_size_bucket", ("le", le)) for le in ("1", "10", "100", "+Inf")] == [0, 1, 2, 2]
    assert (grown("accumulator_size_sum"), grown("accumulator_size_count")) == (53, 2)


def test_sample_answers_with_the_gauge(samples):
    """The value that the model reads includes all of its changes."""
    totals = [samples.infer("metrics", {"INPUT": np.array([2.0], np.float32)}).as_numpy("TOTAL") for _ in range(3)]
    assert np.diff(np.concatenate(totals)).tolist() == [2.0, 2.0]


def test_shared_by_models_and_instances(model, serve):
    """One counter for all who name it: several instances of one model, and another model."""
    model("two", COUNTER, more="instance_group [ { count: 2 kind: KIND_CPU } ]")
    model("one", COUNTER)
    server = serve()
    counts = [count(server, name) for name in ("two", "one", "two", "two", "one")]
    assert counts == [1, 2, 3, 4, 5]
    assert scrape(server) == {("shared", ("by", "all")): 5}


def test_instance_that_dies(model, serve, wait_until):
    """A metric of one stub ends with it, and the next one's begins at 0; what another stub has too goes on."""
    model("alone", COUNTER.replace('"shared"', '"alone"'))
    model("one", COUNTER)
    model("other", COUNTER)
    server = serve()
    assert [count(server, name) for name in ("alone", "one", "other")] == [1, 1, 2]
    for name in ("alone_0", "one_0"):
        stub = server.stub(name)
        os.kill(stub.pid, signal.SIGKILL)
        wait_until(lambda gone=stub: not gone.is_alive())
    wait_until(server.is_ready)
    assert [count(server, name) for name in ("alone", "one", "other")] == [1, 3, 4]
    assert scrape(server) == {("alone", ("by", "all")): 1, ("shared", ("by", "all")): 4}


def test_end_of_objects(anything):
    """The page has a metric as long as the model has the object; without its family it cannot be used."""

    def shown():
        return {key[1:]: value for key, value in scrape(anything).items() if key[0] == "ending"}

    run(anything, "kept['f'] = pb_utils.MetricFamily('ending', '', pb_utils.MetricFamily.GAUGE)")
    assert shown() == {}
    run(anything, "kept['g'] = kept['f'].Metric({'a': 'x \"y\" \\\\ \\n'}); kept['g'].set(float('inf'))")
    assert shown() == {(("a", 'x "y" \\ \n'),): np.inf}
    run(anything, "kept['h'] = kept['f'].Metric(); del kept['g']")
    assert run(anything, "answer = kept['h'].value()") == "0.0"
    assert shown() == {(): 0}
    assert run(anything, "del kept['f']; kept['h'].increment(1)") == (
        "Failed to increment metric value: Invalid metric operation as the corresponding 'MetricFamily' has been "
        "deleted. The 'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been "
        "deleted."
    )
    # This question comes after the message that the family has ended.
    run(anything, "pb_utils.MetricFamily('another', '', pb_utils.MetricFamily.GAUGE)")
    assert shown() == {}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("family('taken', GAUGE)", "Failed to create metric family. metric family 'taken' is a counter already"),
        ("family('not a name', GAUGE)", "Failed to create metric family. the name of a metric family has letters"),
        ("family('h', HISTOGRAM).Metric()", "Failed to create metric. Missing required buckets."),
        (
            "family('h', HISTOGRAM).Metric(buckets=[2, 1])",
            "Failed to create metric. Bucket Boundaries must be strictly",
        ),
        ("family('c', COUNTER).Metric({'__a': ''})", "Failed to create metric. the name of a label has letters"),
        ("family('c', COUNTER).Metric({'a': '\\udcff' * 5000})", "Failed to create metric. "),
    ],
)
def test_refusals(anything, code, message):
    """A metric that cannot be made is an exception in the model, with the reason; the model goes on."""
    kinds = "from triton_python_backend_utils import MetricFamily; COUNTER = MetricFamily.COUNTER; "
    kinds += "GAUGE = MetricFamily.GAUGE; HISTOGRAM = MetricFamily.HISTOGRAM; "
    kinds += "family = lambda name, kind: MetricFamily(name, '', kind); taken = family('taken', COUNTER); "
    before = scrape(anything)
    assert run(anything, kinds + code).startswith(message)
    assert run(anything, "answer = 1") == "1"
    assert scrape(anything) == before


def test_by_many_threads(anything):
    """Increments of a model's threads all count."""
    answer = run(
        anything,
        """
family = pb_utils.MetricFamily("threads", "", pb_utils.MetricFamily.COUNTER)
counter = family.Metric()
kept["threads"] = [family, counter]

def work():
    for _ in range(500):
        counter.increment(1)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer = counter.value()
""",
    )
    assert answer == "2000.0"
    assert scrape(anything)[("threads",)] == 2000


def test_metrics_port(model, serve):
    """The page is there before models have any; other paths have nothing, other methods are refused."""
    model("m", ANYTHING, CODE_ANSWER)
    server = serve()
    found = [server.request("GET", path, port=server.metrics_port) for path in ("/metrics", "/metrics/", "/v2")]
    assert [(answer.status, samples_of(answer.body)) for answer in found] == [(200, {})] * 3
    assert [answer.body == b"" for answer in found] == [False, False, True]
    assert server.request("POST", "/metrics", port=server.metrics_port).status == 405
    assert server.request("GET", "/metrics").status == 404
    assert f"Started Metrics Service at 127.0.0.1:{server.metrics_port}" in server.log


def test_no_metrics_port(model, serve):
    """--allow-metrics=false: the port is closed, and models can make metrics all the same."""
    model("one", COUNTER)
    server = serve("--allow-metrics=false")
    assert count(server, "one") == 1
    with pytest.raises(ConnectionRefusedError):
        server.request("GET", "/metrics", port=server.metrics_port)


def test_metrics_address(model, serve):
    """--metrics-address: elsewhere than HTTP."""
    model("one", COUNTER)
    server = serve("--metrics-address=127.0.0.2")
    with pytest.raises(ConnectionRefusedError):
        server.request("GET", "/metrics", port=server.metrics_port)
    with socket.create_connection(("127.0.0.2", server.metrics_port)) as sock:
        sock.sendall(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
        with sock.makefile("rb") as stream:
            assert b'shared{by="all"} 0\n' in stream.read()


def test_port_that_is_taken(model, serve):
    """The server does not start, and says which port of which service it could not have."""
    model("one", COUNTER)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = serve(f"--metrics-port={port}", ready=False)
        assert server.wait_exit() == 1
    assert f"Metrics cannot be served at 127.0.0.1:{port}: " in server.log


def test_folder_of_the_model(anything):
    """get_model_dir() is the folder of the version."""
    folder = Path(run(anything, "answer = pb_utils.get_model_dir()"))
    assert folder.parts[-2:] == ("m", "1")
    assert (folder / "model.py").is_file()

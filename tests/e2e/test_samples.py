# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every sample model does, by tritonclient, what its README says."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferInput

ROOT = Path(__file__).resolve().parents[2]

NUMBERS = {
    "BOOL": np.array([True, False, True]),
    **{f"UINT{bits}": np.array([0, 1, 2**bits - 1], dtype=f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{
        f"INT{bits}": np.array([-(2 ** (bits - 1)), 0, 2 ** (bits - 1) - 1], dtype=f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"FP{bits}": np.array([-0.0, 1.5, np.inf, np.nan], dtype=f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.array([-0.0, 1.5, np.inf, 3e38], dtype=ml_dtypes.bfloat16),
}
TEXTS = np.array([b"", b"any", b"\x00bytes\xff", "straße".encode()], dtype=np.object_)
DATATYPES = {**NUMBERS, "BYTES": TEXTS}
NO_JSON = ("FP16", "BF16")


def text(*strings):
    return np.array(strings, dtype=np.object_)


def test_add_sub(samples):
    """Two inputs, their sum and their difference."""
    a, b = np.arange(16, dtype=np.float32), np.ones(16, dtype=np.float32)
    result = samples.infer("add_sub", {"INPUT0": a, "INPUT1": b})
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_identity_in_binary(samples, datatype):
    """A tensor of each of the fourteen datatypes comes back bit by bit as it was sent."""
    sent = DATATYPES[datatype]
    result = samples.infer("identity", {f"INPUT_{datatype}": sent})
    (output,) = result.get_response()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == (f"OUTPUT_{datatype}", datatype, [len(sent)])
    returned = result.as_numpy(f"OUTPUT_{datatype}")
    assert returned.dtype == sent.dtype
    assert returned.tolist() == sent.tolist() if datatype == "BYTES" else returned.tobytes() == sent.tobytes()


@pytest.mark.parametrize("datatype", [each for each in DATATYPES if each not in NO_JSON])
def test_identity_in_json(samples, datatype):
    """A tensor of each datatype that has a JSON form comes back as it was sent, NaN and infinity included."""
    sent = text(b"", "straße".encode()) if datatype == "BYTES" else DATATYPES[datatype]
    result = samples.infer("identity", {f"INPUT_{datatype}": sent}, binary=False, outputs=[f"OUTPUT_{datatype}"])
    (output,) = result.get_response()["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [len(sent)])
    assert "parameters" not in output
    expected = [each.decode() for each in sent] if datatype == "BYTES" else sent
    np.testing.assert_array_equal(result.as_numpy(f"OUTPUT_{datatype}"), expected)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_identity_of_nothing(samples, datatype):
    """A tensor without elements comes back without elements, with its shape and its datatype."""
    result = samples.infer("identity", {f"INPUT_{datatype}": DATATYPES[datatype][:0]})
    (output,) = result.get_response()["outputs"]
    assert (output["datatype"], output["shape"]) == (datatype, [0])
    assert result.as_numpy(f"OUTPUT_{datatype}").shape == (0,)


def test_identity_of_everything(samples):
    """A request may bring all optional inputs at once, and gets all of them back."""
    result = samples.infer("identity", {f"INPUT_{datatype}": array for datatype, array in DATATYPES.items()})
    for datatype, sent in NUMBERS.items():
        assert result.as_numpy(f"OUTPUT_{datatype}").tobytes() == sent.tobytes()
    assert result.as_numpy("OUTPUT_BYTES").tolist() == TEXTS.tolist()


def test_identity_without_any_input(samples):
    """A model whose inputs are all optional may be asked with none of them."""
    assert samples.infer("identity", {}).get_response()["outputs"] == []


def test_strings(samples):
    """Text travels as UTF-8 both ways."""
    result = samples.infer("strings", {"TEXT": text("stone", "straße")})
    assert [each.decode() for each in result.as_numpy("UPPER")] == ["STONE", "STRASSE"]
    assert result.as_numpy("LENGTHS").tolist() == [5, 6]


def test_auto_complete(samples):
    """A model without config.pbtxt has the configuration that it completed itself, and is batched by it."""
    with closing(samples.client()) as client:
        config = client.get_model_config("auto_complete")
        metadata = client.get_model_metadata("auto_complete")
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    assert metadata["inputs"] == [{"name": "INPUT", "datatype": "FP32", "shape": [-1, 4]}]
    result = samples.infer("auto_complete", {"INPUT": np.array([[1, 2, 3, 4]], dtype=np.float32)})
    assert result.as_numpy("OUTPUT").tolist() == [[1, 4, 9, 16]]


def test_batched(samples):
    """Every row of requests that may have been computed together is the softmax of its own row."""
    rows = np.random.default_rng(1).normal(size=(8, 1, 4)).astype(np.float32)
    with closing(samples.client(concurrency=8)) as client:
        pending = []
        for row in rows:
            tensor = InferInput("INPUT", [1, 4], "FP32").set_data_from_numpy(row)
            pending.append(client.async_infer("batched", [tensor]))
        results = [each.get_result() for each in pending]
    for row, result in zip(rows, results, strict=True):
        expected = np.exp(row) / np.exp(row).sum()
        np.testing.assert_allclose(result.as_numpy("OUTPUT"), expected, rtol=1e-5)
        assert 1 <= result.as_numpy("BATCH_SIZE").item() <= 8


def test_scaled(samples):
    """A model without code is executed by the Python-based backend that it names."""
    result = samples.infer("scaled", {"INPUT": np.array([1, 2, 3], dtype=np.float32)})
    assert result.as_numpy("OUTPUT").tolist() == [2.5, 5, 7.5]


@pytest.mark.parametrize(("command", "answer"), [("ok", b"ok"), ("print", b"printed")])
def test_faulty_that_works(samples, command, answer):
    """Faulty answers what does not fail."""
    assert samples.infer("faulty", {"COMMAND": text(command)}).as_numpy("OUTPUT").tolist() == [answer]


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("error", 400, "refused on purpose"),
        (
            "raise",
            500,
            "Failed to process the request(s) for model 'faulty_0_0', message: ValueError: raised on purpose",
        ),
    ],
)
def test_faulty_that_fails(samples, command, status, message):
    """Faulty fails one request at a time, each in its own way."""
    found, text_found = samples.refusal("faulty", {"COMMAND": text(command)})
    assert (found, text_found[: len(message)]) == (status, message)


@pytest.mark.parametrize(("version", "output", "served"), [("1", 11, 1), ("3", 110, 3), ("", 110, 3)])
def test_versions(samples, version, output, served):
    """Each version answers for itself; the highest one where the request names none."""
    result = samples.infer("versions", {"INPUT": np.array([10])}, model_version=version)
    assert result.as_numpy("OUTPUT").tolist() == [output]
    assert result.as_numpy("VERSION").tolist() == [served]
    assert result.get_response()["model_version"] == str(served)


def test_decoupled(samples):
    """Each word is a response of its own, in order, and several requests are streamed at a time."""
    words = ["to", "be", "or", "not", "to", "be"]
    with ThreadPoolExecutor(4) as clients:
        streams = [clients.submit(samples.stream, "decoupled", TEXT=" ".join(words), REPEAT=2) for _ in range(4)]
        for stream in streams:
            events = [(event["INDEX"], event["TOKEN"]) for event in stream.result()]
            assert events == list(enumerate(words * 2))


def test_decoupled_hung_up(samples, wait_until):
    """A client that hangs up is noticed; the stream would last for minutes otherwise."""
    with samples.streaming("decoupled", TEXT="on and on", REPEAT=10_000) as events:
        assert [next(events)["TOKEN"] for _ in range(4)] == ["on", "and", "on", "on"]
    wait_until(lambda: "decoupled_0_0: the client hung up after " in samples.log)


def test_bls(samples):
    """The sum is add_sub's, and scaled by scaled."""
    a, b = np.arange(16, dtype=np.float32), np.ones(16, dtype=np.float32)
    result = samples.infer("bls", {"INPUT0": a, "INPUT1": b})
    assert result.as_numpy("OUTPUT").tolist() == ((a + b) * 2.5).tolist()


def test_running_mean(samples):
    """The server keeps the states of each sequence: the mean of all that it has sent."""
    means = {7: [], 8: []}
    for index, value in enumerate((4, 2, 9)):
        for id, factor in ((7, 1), (8, 10)):
            place = {"sequence_id": id, "sequence_start": index == 0, "sequence_end": index == 2}
            result = samples.infer("running_mean", {"VALUE": np.array([[factor * value]], np.float32)}, **place)
            means[id].append(result.as_numpy("MEAN").item())
    assert means == {7: [4.0, 3.0, 5.0], 8: [40.0, 30.0, 50.0]}


def test_bls_async(samples):
    """Each output is the result of one of three models."""
    array = np.arange(16, dtype=np.float32)
    result = samples.infer("bls_async", {"INPUT": array})
    assert result.as_numpy("SUM").tolist() == (array * 2).tolist()
    assert result.as_numpy("SCALED").tolist() == (array * 2.5).tolist()
    assert result.as_numpy("SQUARES").tolist() == (array**2).reshape(4, 4).tolist()


def test_thread_instances(samples):
    """Four requests are executed at a time, in one process."""
    vector = np.array([1, 2, 3, 4], dtype=np.float32)
    with ThreadPoolExecutor(4) as clients:
        pending = [clients.submit(samples.infer, "thread_instances", {"INPUT": vector}) for _ in range(12)]
        results = [each.result() for each in pending]
    assert all(result.as_numpy("OUTPUT").tolist() == [3, 6, 9, 12] for result in results)
    assert 1 < max(result.as_numpy("AT_ONCE").item() for result in results) <= 4
    assert len([each for each in samples.stubs() if "thread_instances" in each.title]) == 1


def test_every_sample_is_ready(samples):
    """The server names itself, and every sample is ready and has its version in the index."""
    with closing(samples.client()) as client:
        assert client.is_server_live()
        assert client.get_server_metadata()["name"] == "triton"
        index = client.get_model_repository_index()
        assert {(row["name"], row["version"]) for row in index} == {
            ("add_sub", "1"), ("auto_complete", "1"), ("batched", "1"), ("bls", "1"), ("bls_async", "1"),
            ("decoupled", "1"), ("faulty", "1"), ("identity", "1"), ("metrics", "1"), ("scaled", "1"),
            ("running_mean", "1"), ("strings", "1"), ("thread_instances", "1"), ("versions", "1"), ("versions", "3"),
        }  # fmt: skip
        assert all(row["state"] == "READY" for row in index)
        assert all(client.is_model_ready(row["name"], row["version"]) for row in index)
        assert client.get_model_metadata("versions")["versions"] == ["1", "3"]
        assert client.get_model_metadata("versions", "3")["versions"] == ["3"]


def test_json_and_binary_inputs_in_one_request(samples):
    """Inputs in JSON are read from their own request, however often the same header comes."""
    with closing(samples.client()) as client:
        for number in range(5):
            small = InferInput("INPUT_UINT8", [700], "UINT8")
            small.set_data_from_numpy(np.full(700, 7, np.uint8), binary_data=False)
            large = InferInput("INPUT_FP32", [1], "FP32")
            large.set_data_from_numpy(np.array([number], np.float32))
            other = InferInput("INPUT_UINT8", [900], "UINT8")
            other.set_data_from_numpy(np.full(900, 9, np.uint8))
            result = client.infer("identity", [small, large])
            assert result.as_numpy("OUTPUT_UINT8").tolist() == [7] * 700
            assert result.as_numpy("OUTPUT_FP32").tolist() == [number]
            assert client.infer("identity", [other]).as_numpy("OUTPUT_UINT8").tolist() == [9] * 900


def test_environment(tmp_path, serve):
    """Runs with a package that the server does not have, in an environment that is made for it and kept."""
    (tmp_path / "environment").symlink_to(ROOT / "model_repository" / "environment")
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    (row,) = json.loads(server.request("POST", "/v2/repository/index").body)
    if row["state"] != "READY" and "No matching distribution" in row["reason"]:
        pytest.skip(f"a package index is out of reach: {row['reason']}")
    assert row["state"] == "READY", row
    result = server.infer("environment", {"TEXT": text("straße", "señor".encode(), "Ελλάδα")})
    assert result.as_numpy("ASCII").tolist() == [b"strasse", b"senor", b"Ellada"]

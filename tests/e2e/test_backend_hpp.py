# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The headers for backends in C++, used by tests/native/hpp/backend.cc: inputs, outputs, senders, errors."""

import shutil
from contextlib import closing

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

NUMPY = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "FP64": np.float64, "BYTES": np.object_,
}  # fmt: skip


def tensor(name, datatype, dims="-1", more=""):
    kind = "STRING" if datatype == "BYTES" else datatype
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] {more} }}'


def config(does, inputs, outputs, more=""):
    return (
        f'backend: "everything" input [ {", ".join(inputs)} ] output [ {", ".join(outputs)} ] {more}'
        f' parameters {{ key: "does" value {{ string_value: "{does}" }} }} instance_group [ {{ kind: KIND_CPU }} ]'
    )


BATCHED = (
    "max_batch_size: 8 dynamic_batching {{ preferred_batch_size: [ {} ] max_queue_delay_microseconds: 600000000 }}"
)
CONFIGS = {
    "identity": config(
        "identity",
        [tensor(f"IN_{each}", each, more="optional: true") for each in NUMPY],
        [tensor(f"OUT_{each}", each) for each in NUMPY],
    ),
    "double": config(
        "double", [tensor("IN", "FP32")], [tensor("OUT", "FP32"), tensor("ROWS", "INT32", "1")], BATCHED.format(6)
    ),
    "ragged": config(
        "double",
        [tensor("IN", "FP32", more="allow_ragged_batch: true")],
        [tensor("OUT", "FP32"), tensor("ROWS", "INT32", "1")],
        BATCHED.format(6),
    ),
    "double_alone": config("double", [tensor("IN", "FP32", "2")], [tensor("OUT", "FP32"), tensor("ROWS", "INT32")]),
    "capitals": config("capitals", [tensor("TEXT", "BYTES")], [tensor("UPPER", "BYTES")], BATCHED.format(3)),
    "tell": config(
        "tell",
        [tensor("NAME", "BYTES", "1")],
        [tensor("VALUE", "BYTES", "1"), tensor("MORE", "INT32", "1")],
        "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '
            for key, value in (("half", "0.5"), ("five", "5"), ("true", "true"))
        ),
    ),
    "count": config(
        "count",
        [tensor("IN", "INT32", "1"), tensor("HOW", "BYTES", "1")],
        [tensor("OUT", "INT32", "1")],
        "model_transaction_policy { decoupled: true }",
    ),
    "count_once": config(
        "count", [tensor("IN", "INT32", "1"), tensor("HOW", "BYTES", "1")], [tensor("OUT", "INT32", "1")]
    ),
    "fail": config("fail", [tensor("HOW", "BYTES", "1")], [tensor("OUT", "INT32", "1")]),
    "broken": config("not load", [tensor("IN", "FP32")], [tensor("OUT", "FP32")]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, compile_library):
    """A server of one model for each thing that the backend does."""
    folder = tmp_path_factory.mktemp("everything")
    (folder / "backends/everything").mkdir(parents=True)
    shutil.copy(compile_library("hpp/backend.cc"), folder / "backends/everything/libtriton_everything.so")
    for name, text in CONFIGS.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(text)
    options = [f"--backend-directory={folder / 'backends'}", "--exit-on-error=false", "--strict-readiness=false"]
    with serving(folder / "models", *options) as server:
        yield server


def text(*strings):
    return np.array(strings, dtype=np.object_)


def at_once(server, model, arrays, name):
    """The outcomes for the arrays, each in a request of its own, with all in flight together: results or messages."""
    with closing(server.client(concurrency=len(arrays))) as client:
        pending = []
        for array in arrays:
            datatype = "BYTES" if array.dtype.kind == "O" else "FP32"
            sent = InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)
            pending.append(client.async_infer(model, [sent]))
        return [outcome(each) for each in pending]


def outcome(request):
    try:
        return request.get_result()
    except InferenceServerException as error:
        return error.message()


def stream(server, how, count=3):
    """The responses of the decoupled model: numbers, and the error that ended them if one did."""
    found = []
    for event in server.stream("count", IN=count, HOW=how):
        found.append(event["error"] if "error" in event else event["OUT"])
    return found


@pytest.mark.parametrize("datatype", NUMPY)
def test_datatypes(server, datatype):
    """Elements of every datatype, and none."""
    values = ["", "any", b"\x00\xff"] if datatype == "BYTES" else [0, 1, 1]
    for sent in (np.array(values, dtype=NUMPY[datatype]), np.array([], dtype=NUMPY[datatype])):
        result = server.infer("identity", {f"IN_{datatype}": sent})
        expected = [each.encode() if isinstance(each, str) else each for each in sent.tolist()]
        assert result.as_numpy(f"OUT_{datatype}").tolist() == expected
        assert len(result.get_response()["outputs"]) == 1


def test_unaligned(server):
    """Behind other bytes of the same request."""
    arrays = {
        "IN_UINT8": np.arange(3, dtype=np.uint8),
        "IN_FP64": np.array([0.5, 1e300]),
        "IN_INT16": np.array([7], "<i2"),
    }
    result = server.infer("identity", arrays)
    for name, sent in arrays.items():
        assert result.as_numpy(name.replace("IN_", "OUT_")).tolist() == sent.tolist()


def test_gather_and_scatter(server):
    """One batch of three requests: each gets its own rows."""
    arrays = [np.full((rows, 2), rows, np.float32) for rows in (1, 2, 3)]
    for sent, result in zip(arrays, at_once(server, "double", arrays, "IN"), strict=True):
        assert result.as_numpy("OUT").tolist() == (2 * sent).tolist()
        assert result.as_numpy("ROWS").tolist() == [[6]] * len(sent)


def test_failed_before_gathering(server):
    """A refused request does not disturb the others of its batch, nor does a batch of refused requests only."""
    arrays = [np.full((rows, 2), value, np.float32) for rows, value in ((1, 1), (3, -1), (2, 2))]
    first, refused, last = at_once(server, "double", arrays, "IN")
    assert refused == "there is a negative number"
    assert first.as_numpy("OUT").tolist() == [[2, 2]]
    assert last.as_numpy("OUT").tolist() == [[4, 4]] * 2
    assert last.as_numpy("ROWS").tolist() == [[3]] * 2
    assert at_once(server, "double", [np.full((6, 2), -1, np.float32)], "IN") == ["there is a negative number"]


def test_shapes_that_do_not_fit(server):
    """Requests that cannot be put together fail together, where the server lets them come together at all."""
    arrays = [np.ones((3, columns), np.float32) for columns in (1, 2)]
    for result in at_once(server, "ragged", arrays, "IN"):
        assert result == "input 'IN' has shapes in one batch that do not fit together: [3,1] and [3,2]"


def test_scatter_of_strings(server):
    """As above, with texts of any length."""
    arrays = [text("one", "").reshape(1, 2), text("three", "fo\0ur").reshape(1, 2), text("x" * 300, "y").reshape(1, 2)]
    for sent, result in zip(arrays, at_once(server, "capitals", arrays, "TEXT"), strict=True):
        assert result.as_numpy("UPPER").tolist() == [[each.upper().encode() for each in sent[0]]]


def test_gather_without_batches(server):
    """A model that is not batched gets its one request as it is."""
    result = server.infer("double_alone", {"IN": np.array([1, 2], np.float32)})
    assert (result.as_numpy("OUT").tolist(), result.as_numpy("ROWS").tolist()) == ([2, 4], [[1], [1]])


def test_statistics(server, wait_until):
    """Requests, failures and batches are counted, once they have been answered."""

    def counts():
        found = statistics(server, "fail")
        return (*(found["inference_stats"][each]["count"] for each in ("success", "fail")), found["execution_count"])

    successes, failures, batches = counts()
    server.infer("fail", {"HOW": text("")})
    server.refusal("fail", {"HOW": text("error")})
    wait_until(lambda: counts() == (successes + 1, failures + 1, batches + 2))


def statistics(server, model):
    with closing(server.client()) as client:
        (found,) = client.get_inference_statistics(model)["model_stats"]
    return found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", "seven"),
        ("correlation_id", "5"),
        ("sequence", "10"),
        ("wants", "11"),
        ("cancelled", "0"),
        ("model", "tell 1"),
        ("otherwise", "otherwise"),
        ("half", "0.500000"),
        ("five", "5"),
        ("true", "1"),
        ("inputs", "NAME"),
        ("instance", "tell_0_0 1"),
        ("of text", "a text"),
        ("of number", "12"),
        ("of boolean", "1"),
        ("of none", "nothing"),
    ],
)
def test_what_is_known(server, name, value):
    """Of a request, its model and its instance."""
    parameters = {"of text": "a text", "of number": 12, "of boolean": True}
    options = {"request_id": "seven", "sequence_id": 5, "sequence_start": True, "parameters": parameters}
    assert server.infer("tell", {"NAME": text(name)}, **options).as_numpy("VALUE").tolist() == [value.encode()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half of five", "parameter 'half' of model 'tell' cannot be '0.5'"),
        ("none of five", "model 'tell' needs a parameter 'none' in its configuration"),
    ],
)
def test_parameters_that_are_none(server, name, message):
    """A parameter that the configuration does not have, or has with another kind of value, is refused."""
    assert server.refusal("tell", {"NAME": text(name)}) == (400, message)


def test_version_folder(server):
    """Where files of the model are."""
    value = server.infer("tell", {"NAME": text("folder")}).as_numpy("VALUE")[0].decode()
    assert value.endswith("/models/tell/1")


def test_correlation_id_of_text(server):
    """Texts as well as numbers."""
    result = server.infer("tell", {"NAME": text("correlation_id")}, sequence_id="some", sequence_start=True)
    assert result.as_numpy("VALUE").tolist() == [b"some"]


def test_unwanted_output(server):
    """An output that was not requested is written, and not sent."""
    result = server.infer("tell", {"NAME": text("wants")}, outputs=["VALUE"])
    assert [each["name"] for each in result.get_response()["outputs"]] == ["VALUE"]
    assert result.as_numpy("VALUE").tolist() == [b"10"]


def test_parameters_of_a_response(server):
    """Four types."""
    parameters = server.infer("tell", {"NAME": text("")}).get_response()["parameters"]
    assert parameters.items() >= {"number": 7, "text": "seven", "yes": True, "half": 0.5}.items()


@pytest.mark.parametrize("how", ["", "end", "last", "twice"])
def test_stream(server, how):
    """From another thread, with the end said in all ways that there are."""
    assert stream(server, how) == [3, 2, 1]


@pytest.mark.parametrize("how", ["", "end"])
def test_empty_stream(server, how):
    """No response at all."""
    assert stream(server, how, 0) == []


def test_stream_of_one(server):
    """A decoupled model may answer as others do."""
    assert stream(server, "without a sender", 9) == [9]


def test_failed_streams(server):
    """An error is the last that comes."""
    assert stream(server, "fail") == [3, 2, 1, "failed on purpose"]
    assert stream(server, "throw") == ["thrown on purpose"]


def test_response_statistics(server, wait_until):
    """Each response is counted, by its place."""
    stream(server, "end", 20)

    def all_counted():
        responses = statistics(server, "count")["response_stats"]
        return "20" in responses and [responses[str(each)]["success"]["count"] for each in range(3, 20)] == [1] * 17

    wait_until(all_counted)
    assert statistics(server, "count")["response_stats"]["20"]["empty_response"]["count"] == 1


@pytest.mark.parametrize("how", ["", "last"])
def test_sender_of_one_response(server, how):
    """A model that is not decoupled may answer later, from another thread."""
    result = server.infer("count_once", {"IN": np.array([1], np.int32), "HOW": text(how)})
    assert result.as_numpy("OUT").tolist() == [1]


def test_sender_without_a_response(server):
    """A client is not left waiting."""
    inputs = {"IN": np.array([0], np.int32), "HOW": text("")}
    assert server.refusal("count_once", inputs) == (500, "the model has dropped the request without a response")
    result = server.infer("count_once", {**inputs, "HOW": text("end")})
    assert "outputs" not in result.get_response() or result.get_response()["outputs"] == []


@pytest.mark.parametrize(
    ("how", "status", "message"),
    [
        ("error", 503, "refused on purpose"),
        ("exception", 500, "out of range on purpose"),
        ("nothing sensible", 500, "the backend threw something that is no std::exception"),
        ("datatype", 400, "input 'HOW' is of BYTES, the backend wants it to be of FP32"),
        ("input", 400, "NONE"),
        ("shape", 400, "shape [-1] is no shape of a tensor"),
        ("strings", 500, "output 'OUT' has 1 strings, which is not shape [3]"),
        ("drop", 500, "the model has dropped the request without a response"),
        ("all", 404, "all of them"),
    ],
)
def test_errors(server, how, status, message):
    """An exception fails the request with its own message."""
    found, said = server.refusal("fail", {"HOW": text(how)})
    assert found == status
    assert message in said


def test_error_at_the_load(server):
    """An exception of the constructor is the reason why the model is not loaded."""
    with closing(server.client()) as client:
        (row,) = [row for row in client.get_model_repository_index() if row["name"] == "broken"]
    assert row["state"] == "UNAVAILABLE"
    assert "not loaded on purpose" in row["reason"]


def test_log(server):
    """Lines of a backend are in the server's log, with the place they are from."""
    (line,) = [line for line in server.log.splitlines() if "does capitals" in line]
    assert "backend.cc" in line


def test_unwanted_rows(server):
    """Outputs that are asked for one by one."""
    with closing(server.client()) as client:
        sent = InferInput("IN", [6, 1], "FP32").set_data_from_numpy(np.ones((6, 1), np.float32))
        result = client.infer("double", [sent], outputs=[InferRequestedOutput("ROWS")])
    assert result.as_numpy("ROWS").tolist() == [[6]] * 6
    with pytest.raises(InferenceServerException):
        server.infer("double", {"IN": np.ones((9, 1), np.float32)})

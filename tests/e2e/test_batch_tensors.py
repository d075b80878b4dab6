# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Batch inputs and batch outputs: the backend reads them in its configuration, and makes them of a batch's requests."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)
# Three rows are a batch of the preferred size, which waits for nothing else.
CONFIG = """
backend: "batch_tensors" max_batch_size: 3
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 600000000 }
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1, -1 ] }, { name: "AGAIN" data_type: TYPE_FP32 dims: [ -1, -1 ] },
         { name: "SHAPES" data_type: TYPE_STRING dims: [ 1 ] } ]
batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: [ "OUT", "AGAIN" ] source_input: "IN" } ]
"""
PROCESS = 'parameters { key: "EXECUTION_MODE" value { string_value: "process" } }\n'


def batch_input(kind, datatype="TYPE_FP32", source="IN"):
    return f'batch_input {{ kind: {kind} target_name: "{kind}" data_type: {datatype} source_input: "{source}" }}\n'


ALL_KINDS = "".join(batch_input(kind, ("TYPE_FP32", "TYPE_INT32")[index % 2]) for index, kind in enumerate(KINDS))


def expected(first, second):
    """What the backend makes of the shapes of a batch, in the order of its two requests."""
    counts = [int(np.prod(shape)) for shape in (first, second)]
    items = [dim for shape in (first, second) for _ in range(shape[0]) for dim in shape[1:]]
    values = (
        ([2], counts),
        ([2], [counts[0], sum(counts)]),
        ([3], [0, counts[0], sum(counts)]),
        ([max(counts)], []),
        ([3, 2], items),
        ([6], items),
    )

    def text(numbers):
        return ",".join(map(str, numbers))

    datatypes = ("TYPE_FP32", "TYPE_INT32") * 3
    return "".join(
        f"{kind}: {datatype} [{text(shape)}] {text(numbers)}; "
        for kind, datatype, (shape, numbers) in zip(KINDS, datatypes, values, strict=True)
    )


@pytest.fixture(scope="module")
def folder(install_backends):
    """The folder of the backend."""
    return install_backends("batch_tensors")


@pytest.mark.parametrize("more", ["", PROCESS], ids=["in the server", "in a process"])
def test_every_kind(serve, model, folder, more):
    """Two requests of different shapes are one batch; the outputs have the shapes of the inputs."""
    model("m", None, CONFIG + ALL_KINDS + more)
    server = serve(f"--backend-directory={folder}")
    shapes = [(2, 2, 3), (1, 4, 1)]
    arrays = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(lambda array: server.infer("m", {"IN": array}), arrays))
    texts = {answer.as_numpy("SHAPES").item().decode() for answer in answers}
    assert len(texts) == 1
    assert texts <= {expected(*shapes), expected(*reversed(shapes))}
    for array, answer in zip(arrays, answers, strict=True):
        for name in ("OUT", "AGAIN"):
            assert answer.as_numpy(name).tolist() == (array * 2).tolist()


def test_refused(serve, model, folder):
    """The index has the reason, in Triton's words."""
    model("sources", None, CONFIG + batch_input(KINDS[0], source="NO"))
    model("datatypes", None, CONFIG + batch_input(KINDS[0], "TYPE_INT64"))
    model("right", None, CONFIG + batch_input(KINDS[0]))
    server = serve(f"--backend-directory={folder}", "--exit-on-error=false", "--strict-readiness=false")
    with closing(server.client()) as client:
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
        shown = client.get_model_config("right")
    assert reasons == {
        "sources": "Invalid argument: unknown source input name 'NO' for sources",
        "datatypes": "Invalid argument: batch input data type must be TYPE_INT32 or TYPE_FP32 for datatypes",
        "right": "",
    }
    assert shown["batch_input"] == [
        {"kind": KINDS[0], "target_name": [KINDS[0]], "data_type": "TYPE_FP32", "source_input": ["IN"]}
    ]
    assert shown["batch_output"] == [
        {"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "target_name": ["OUT", "AGAIN"], "source_input": ["IN"]}
    ]

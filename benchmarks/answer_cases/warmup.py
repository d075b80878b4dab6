# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Warm-up: a model says what it has executed; others are loaded with samples that cannot be."""

import base64
import json
from pathlib import Path

from answer_steps import Settled, case, explain, get, infer, post, tensor

from answer_cases import reasons

SOURCE = (Path(__file__).parent.parent / "answer_models" / "warm" / "1" / "model.py").read_bytes()
ASK = infer("warm_later", tensor("IN", "INT32", [1], [1, 1]))
UNLOAD = post("/v2/repository/models/warm_later/unload")


def _sample(data="zero_data", value=True, *, name="s", key="IN", datatype="TYPE_INT32", dims=(2,), size=1, **more):
    inputs = {key: {"data_type": datatype, "dims": list(dims), **({data: value} if data else {})}}
    return {"name": name, "batch_size": size, "inputs": inputs, **more}


def _load(*samples, source=SOURCE, files=None, **more):
    """Load a model with these samples."""
    config = {
        "name": "warm_later", "backend": "python", "max_batch_size": 4,
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]}],
        "model_warmup": list(samples), **more,
    }  # fmt: skip
    contents = {"1/model.py": source, **(files or {})}
    parameters = {f"file:{name}": base64.b64encode(each).decode() for name, each in contents.items()}
    body = {"parameters": {"config": json.dumps(config), **parameters}}
    return post("/v2/repository/models/warm_later/load", body)


def _loaded(*samples, **more):
    return _load(*samples, **more), ASK, Settled(get("/v2/models/warm_later/stats")), UNLOAD


CASES = [
    case("samples", infer("warm", tensor("IN", "INT32", [1], [1, 1]))),
    case("statistics", Settled(get("/v2/models/warm/stats"))),
    case("configuration", get("/v2/models/warm/config")),
    case("zeros", *_loaded(_sample())),
    case("a count", *_loaded(_sample(count=3))),
    case("a batch", *_loaded(_sample(size=3))),
    case("a batch above the model's", *_loaded(_sample(size=6))),
    case("no requests", *_loaded(_sample(size=0))),
    case("two samples", *_loaded(_sample(), _sample(name="t", dims=(3,)))),
    case("two instances", *_loaded(_sample(), instance_group=[{"count": 2}])),
    case("a file", *_loaded(_sample("input_data_file", "data"), files={"warmup/data": bytes(8)})),
    case("a file that is too long", *_loaded(_sample("input_data_file", "data"), files={"warmup/data": bytes(99)})),
    case("a file that is too short", _load(_sample("input_data_file", "data"), files={"warmup/data": bytes(3)})),
    case("no data", _load(_sample(""))),
    case("a variable shape", _load(_sample(dims=(-1,)))),
    case("another rank", _load(_sample(dims=(2, 2)))),
    case("another datatype", _load(_sample(datatype="TYPE_FP32"))),
    case("another name", _load(_sample(key="ELSE"))),
]  # fmt: skip

DIFFERENT = {
    reasons.LARGE_SAMPLE: ("a batch above the model's",),
}
CASES = explain(CASES, DIFFERENT)

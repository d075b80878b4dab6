# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads of models whose instances need resources: the servers have 4 of R, 2 of S on device 0, and 1 of T."""

import json

from answer_steps import case, explain, get, infer, post, tensor

from answer_cases import reasons

CONFIG = {
    "name": "later", "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]}],
}  # fmt: skip
UNLOAD = post("/v2/repository/models/later/unload")
# Without the models that cases of other groups have left behind.
INDEX = post("/v2/repository/index", {"ready": True})
ASK = infer("later", tensor("IN", "INT32", [1]))


def _needs(name, count=1, **more):
    return {"name": name, "count": count, **more}


def _load(*resources, name="later", count=1, **limiter):
    group = {"count": count, "kind": "KIND_CPU", "rate_limiter": {"resources": resources, **limiter}}
    config = json.dumps({**CONFIG, "name": name, "instance_group": [group]})
    return post(f"/v2/repository/models/{name}/load", {"parameters": {"config": config}})


def _case(name, *resources, **more):
    return case(name, _load(*resources, **more), ASK, get("/v2/models/later/config"), UNLOAD)


CASES = [
    _case("enough", _needs("R")),
    _case("all of it", _needs("R", 4)),
    _case("several instances", _needs("R", 3), count=3),
    _case("several resources", _needs("R", 2), _needs("S", 2), _needs("T")),
    _case("a priority", _needs("R"), priority=3),
    _case("a priority and no resources", priority=3),
    _case("too much", _needs("R", 5)),
    _case("one of two is too much", _needs("R"), _needs("S", 3)),
    _case("one that is not listed", _needs("U")),
    _case("another case", _needs("r")),
    _case("a global one", _needs("T", 1, **{"global": True})),
    _case("a global one that is given for a device", _needs("S", 2, **{"global": True})),
    _case("too much of a global one", _needs("T", 2, **{"global": True})),
    _case("nothing of one that is not listed", _needs("U", 0)),
    _case("one twice, the larger one first", _needs("R", 5), _needs("R", 1)),
    _case("one twice, the smaller one first", _needs("R", 1), _needs("R", 5)),
    _case("one without a name", _needs("")),
    _case("a count below 0", _needs("R", -1)),
    case("too much for a model that serves", _load(_needs("R")), _load(_needs("R", 9)), ASK, INDEX, UNLOAD),
    case("more for a model that serves", _load(_needs("R")), _load(_needs("R", 4), count=2), ASK, INDEX, UNLOAD),
    # Behind it Triton loads nothing that needs R: it keeps the needs of a model that it has refused.
    case("global and of devices", _load(_needs("R")), _load(_needs("R", 1, **{"global": True}), name="told"), UNLOAD),
]  # fmt: skip

DIFFERENT = {
    reasons.BROKEN_CONFIG: ("a count below 0",),
    reasons.OLDER_SERVES: ("too much for a model that serves",),
}
CASES = explain(CASES, DIFFERENT)

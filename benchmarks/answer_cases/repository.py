# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The index, and loads and unloads."""

import base64
import json

from answer_steps import PARAMETER, Settled, call, call_infer, case, explain, get, infer, post, raw_input, tensor

from answer_cases import reasons

INDEX = post("/v2/repository/index")
UNLOAD = post("/v2/repository/models/later/unload")
LOAD = post("/v2/repository/models/later/load")
ASK = infer("later", tensor("IN", "INT32", [1]))
CONFIG = {
    "name": "later", "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [2]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [2]}],
}  # fmt: skip
SOURCE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * array)]) for array in arrays]
"""


def _load(name="later", **parameters):
    return post(f"/v2/repository/models/{name}/load", {"parameters": parameters})


def _file(name="later", path="1/model.py", config=CONFIG, source=SOURCE):
    text = base64.b64encode(source.encode()).decode()
    return _load(name, **{"config": json.dumps(config), f"file:{path}": text})


def _call_load(name="later", **parameters):
    made = {key: PARAMETER(**{kind: value}) for key, (kind, value) in parameters.items()}
    return call("RepositoryModelLoad", model_name=name, parameters=made)


_TEXT = json.dumps(CONFIG)

CASES = [
    case("index", INDEX),
    case("index of what is ready", post("/v2/repository/index", {"ready": True})),
    case("index, grpc", call("RepositoryIndex")),
    case("index of what is ready, grpc", call("RepositoryIndex", ready=True)),
    case("index of a repository", call("RepositoryIndex", repository_name="mine")),
    case("index: GET", get("/v2/repository/index")),
    case("index: no JSON", post("/v2/repository/index", b"hello")),
    case("index: ready is a text", post("/v2/repository/index", {"ready": "yes"})),
    case("load and unload", LOAD, ASK, INDEX, UNLOAD, ASK),
    case("load and unload, grpc", call("RepositoryModelLoad", model_name="later"),
         call_infer("later", raw_input("IN", "INT32", [1])), call("RepositoryModelUnload", model_name="later"),
         call_infer("later", raw_input("IN", "INT32", [1]))),
    case("load twice", LOAD, LOAD, ASK, UNLOAD),
    case("load an unknown model", _load("nobody")),
    case("load an unknown model, grpc", _call_load("nobody")),
    case("load a model that cannot load", _load("broken"), INDEX),
    case("load a model that cannot load, grpc", _call_load("broken")),
    case("load an unreadable configuration", _load("unreadable")),
    case("load with a configuration", _load(config=_TEXT), ASK, infer("later", tensor("IN", "INT32", [1, 2])),
         get("/v2/models/later/config"), UNLOAD),
    case("load with a configuration, grpc", _call_load(config=("string_param", _TEXT)),
         infer("later", tensor("IN", "INT32", [1, 2])), UNLOAD),
    case("load with a lenient configuration",
         _load(config="{backend: 'python', maxBatchSize: '2', input: [{name: 'IN', data_type: 'type_int32', dims: [1]}"
               "], output: [{name: 'OUT', data_type: 8, dims: ['1']}],}"), get("/v2/models/later/config"), UNLOAD),
    case("load with a broken configuration", _load(config="{"), ASK),
    case("load with an unknown field", _load(config=json.dumps({**CONFIG, "nobody": 1})), ASK),
    case("load with a configuration of another name", _load(config=json.dumps({**CONFIG, "name": "nobody"})), UNLOAD),
    case("load with files", _file(), infer("later", tensor("IN", "INT32", [3, 4])), UNLOAD),
    case("load with files, with a slash", _file(path="/1/model.py"), infer("later", tensor("IN", "INT32", [3, 4])),
         UNLOAD),
    case("load a new model with files", _file("made", config={**CONFIG, "name": "made"}),
         infer("made", tensor("IN", "INT32", [3, 4])), INDEX, post("/v2/repository/models/made/unload")),
    case("load with files without a configuration",
         _load(**{"file:1/model.py": base64.b64encode(SOURCE.encode()).decode()}), ASK),
    case("load with a file outside", _file(path="../../mine.py"), ASK),
    case("load with files that are no base64", _load(**{"config": _TEXT, "file:1/model.py": "?"}), UNLOAD),
    case("load with files, grpc", _call_load(**{"config": ("string_param", _TEXT), "file:1/model.py": (
        "bytes_param", SOURCE.encode())}), infer("later", tensor("IN", "INT32", [3, 4])), UNLOAD),
    case("load: config is an object", _load(config=CONFIG)),
    case("load: an unknown parameter", _load(nobody="x")),
    case("load: an unknown parameter, grpc", _call_load(nobody=("string_param", "x"))),
    case("load: config is a number, grpc", _call_load(config=("int64_param", 1))),
    case("load: a file is a text, grpc", _call_load(**{"config": ("string_param", _TEXT), "file:1/model.py": (
        "string_param", SOURCE)})),
    case("load: parameters are a list", post("/v2/repository/models/later/load", {"parameters": []}), UNLOAD),
    case("load: no JSON", post("/v2/repository/models/later/load", b"hello")),
    case("load: an empty body", post("/v2/repository/models/later/load", b""), UNLOAD),
    case("load: GET", get("/v2/repository/models/later/load")),
    case("load: a path as a name", _load("..%2Flater")),
    case("load: a path as a name, grpc", _call_load("../later")),
    case("load: an empty name, grpc", _call_load("")),
    case("load: another repository", post("/v2/repository/nobody/models/later/load")),
    case("load: a repository, grpc", call("RepositoryModelLoad", model_name="later", repository_name="mine")),
    case("unload an unknown model", post("/v2/repository/models/nobody/unload")),
    case("unload an unknown model, grpc", call("RepositoryModelUnload", model_name="nobody")),
    case("unload twice", UNLOAD, UNLOAD),
    case("unload with dependents", post("/v2/repository/models/later/unload", {
        "parameters": {"unload_dependents": True}})),
    case("unload: unload_dependents is a text", post("/v2/repository/models/later/unload", {
        "parameters": {"unload_dependents": "yes"}})),
    case("unload: an unknown parameter", post("/v2/repository/models/later/unload", {"parameters": {"nobody": 1}})),
    case("unload: no JSON", post("/v2/repository/models/later/unload", b"hello")),
    case("index at the end", Settled(INDEX)),
]  # fmt: skip

DIFFERENT = {
    reasons.IN_INDEX: ("load a new model with files", "index at the end"),
    reasons.JSON: (
        "index: no JSON", "index: ready is a text", "load: config is an object", "load: parameters are a list",
        "load: no JSON",
    ),
    reasons.BROKEN_CONFIG: ("load an unreadable configuration", "load with a configuration of another name",),
    reasons.POLL: (
        "load with a broken configuration", "load with an unknown field", "load with files without a configuration",
        "load with a file outside",
    ),
    reasons.LOAD_BODY: ("load with files that are no base64", "load: an unknown parameter",),
    reasons.NAMES: ("load: a path as a name*", "load: an empty name, grpc",),
    reasons.UNLOAD_BODY: ("unload: unload_dependents is a text", "unload: no JSON",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)

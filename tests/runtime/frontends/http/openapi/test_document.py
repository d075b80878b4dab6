# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document agrees with its standard, with the routes, and with the requests that the server accepts."""

import json
from functools import cache

import orjson
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.frontends.common.restrictions import API_OF, OWN_ACCESS
from pyruntime.runtime.frontends.http.generate_request import decode_generate
from pyruntime.runtime.frontends.http.generate_response import encode_generate
from pyruntime.runtime.frontends.http.kserve_request import ALL_JSON, OutputOptions, decode_infer
from pyruntime.runtime.frontends.http.kserve_response import encode_infer
from pyruntime.runtime.frontends.http.long_strings import LongStrings
from pyruntime.runtime.frontends.http.openapi.document import ServedVersion, openapi_document
from pyruntime.runtime.frontends.http.repository_request import decode_load
from pyruntime.runtime.frontends.http.routes import Endpoint, match
from pyruntime.runtime.observe.log_settings import LogSettings
from pyruntime.runtime.requests.types import InferResponse, OutputTensor
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import InferenceError

from ....model_specs import spec_from

PLAIN = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 2, 2 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, 2 ] }
"""
MIXED = """
max_batch_size: 4
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "BYTES" data_type: TYPE_UINT8 dims: [ -1 ] optional: true },
  { name: "HALF" data_type: TYPE_FP16 dims: [ 1 ] optional: true }
]
output [ { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] }, { name: "BF" data_type: TYPE_BF16 dims: [ 1 ] } ]
"""
DECOUPLED = PLAIN + "model_transaction_policy { decoupled: true }"
NOTHING = "parameters { key: 'none' value { string_value: 'of it' } }"


@cache
def spec_of(name, text):
    return spec_from(f'name: "{name}" backend: "python" {text}', name)


def document(*models, restricted=()):
    """The document for models given as (name, version, configuration)."""
    versions = [ServedVersion(version, spec_of(name, text)) for name, version, text in models]
    return json.loads(openapi_document("triton", "1.2.3", versions, dict(restricted)))


MODELS = (("plain", 1, PLAIN), ("plain", 3, PLAIN), ("mixed", 2, MIXED), ("stream", 1, DECOUPLED))


@cache
def whole():
    return document(*MODELS)


def schema(name):
    """A validator of one component of `whole`."""
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": whole()["components"]})


def operations(made):
    return [(path, verb, each) for path, verbs in made["paths"].items() for verb, each in verbs.items()]


@pytest.mark.parametrize("models", [(), MODELS, (("no.thing~ at/all%é", 1, NOTHING),)])
@pytest.mark.parametrize("restricted", [{}, {"inference": "key", "health": "other key"}])
def test_is_openapi(models, restricted):
    """The document conforms to the standard for every set of models."""
    made = document(*models, restricted=restricted)
    validate(made)
    assert made["openapi"] == "3.1.0"
    assert (made["info"]["title"], made["info"]["version"]) == ("triton", "1.2.3")
    for component in made["components"]["schemas"].values():
        Draft202012Validator.check_schema(component)


def test_every_operation_is_served():
    """Each path and verb leads to an endpoint of the API that the operation says, and no endpoint is left out."""
    found = set()
    names = set()
    for path, verb, operation in operations(whole()):
        target = path.format(model="plain", version="3", region="r")
        route = match(verb.upper(), target.encode())
        assert [API_OF[route.endpoint]] == operation["tags"], path
        found.add(route.endpoint)
        names.add(operation["operationId"])
    assert len(names) == len(operations(whole()))
    beside = {Endpoint.REFUSED, Endpoint.PAGE, Endpoint.METRICS, Endpoint.NOTHING, *OWN_ACCESS}
    assert found == set(Endpoint) - beside


def test_operations_of_models():
    """Each version has its own, and a model those of its latest one; a decoupled one has no inference."""
    paths = whole()["paths"]
    execute = {path for path in paths if path.endswith(("/infer", "/generate", "/generate_stream"))}
    assert execute == {
        f"/v2/models/{model}{version}/{what}"
        for model, versions in (("plain", ("", 1, 3)), ("mixed", ("", 2)), ("stream", ("", 1)))
        for version in (f"/versions/{each}" if each else "" for each in versions)
        for what in ("infer", "generate", "generate_stream")
        if (model, what) != ("stream", "infer")
    }
    content = paths["/v2/models/plain/infer"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/InferRequest-plain-3"}
    assert whole()["components"]["parameters"]["Model"]["schema"]["enum"] == ["mixed", "plain", "stream"]


def test_names_of_any_kind():
    """A name is quoted in paths, and so that two never become the same in components."""
    made = document(("a.b", 1, NOTHING), ("a%2Eb", 1, NOTHING), ("é/~", 1, NOTHING))
    assert "/v2/models/%C3%A9%2F~/infer" in made["paths"]
    names = [name for name in made["components"]["schemas"] if name.startswith("InferRequest-")]
    assert names == ["InferRequest-a.2Eb-1", "InferRequest-a.252Eb-1", "InferRequest-.C3.A9.2F.7E-1"]


def test_restricted():
    """The document names the header that opens an API, and not the header's value."""
    made = document(*MODELS, restricted={"statistics": "x-stats"})
    assert made["components"]["securitySchemes"] == {"x-stats": {"type": "apiKey", "in": "header", "name": "x-stats"}}
    for _, _, operation in operations(made):
        is_closed = operation["tags"] == ["statistics"]
        assert operation.get("security") == ([{"x-stats": []}] if is_closed else None)
        assert ("403" in operation["responses"]) is is_closed
    assert "securitySchemes" not in whole()["components"]


def infer(*inputs, **more):
    return {"inputs": [dict(zip(("name", "datatype", "shape", "data"), each, strict=False)) for each in inputs], **more}


TEXT = ("TEXT", "BYTES", [1, 1], ["a"])
GOOD = [
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2.5, 3, 4]))),
    ("plain", infer(("IN", "FP32", [2, 2], [[1, 2], [3, 4]]), id="x", outputs=[])),
    (
        "plain",
        infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), outputs=[{"name": "OUT", "parameters": {"binary_data": True}}]),
    ),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), parameters={"sequence_id": 1, "timeout": 5, "mine": "x"})),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), unknown=[1])),
    ("mixed", infer(TEXT)),
    ("mixed", infer(("BYTES", "UINT8", [1, 3], [1, 2, 255]), TEXT)),
    ("mixed", infer(("TEXT", "BYTES", [2, 1], [["a"], ["b"]]))),
]
BAD = [
    ("plain", {}),
    ("plain", {"inputs": "none"}),
    ("plain", infer()),
    ("plain", infer(("IN", "FP32", [2, 2]))),
    ("plain", infer(("IN", "FP64", [2, 2], [1, 2, 3, 4]))),
    ("plain", infer(("IN", "FP32", [4, 1], [1, 2, 3, 4]))),
    ("plain", infer(("IN", "FP32", [4], [1, 2, 3, 4]))),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3]))),
    ("plain", infer(("IN", "FP32", [2, 2], ["1", "2", "3", "4"]))),
    ("plain", infer(("ON", "FP32", [2, 2], [1, 2, 3, 4]))),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), id=3)),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), outputs=[{"name": "ON"}])),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), parameters={"triton_x": 1})),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), parameters={"priority": -1})),
    ("plain", infer(("IN", "FP32", [2, 2], [1, 2, 3, 4]), parameters={"mine": [1]})),
    ("mixed", infer(("BYTES", "UINT8", [1, 3], [1, 2, 3]))),
    ("mixed", infer(("BYTES", "UINT8", [1, 3], [1, 2, 256]), TEXT)),
    ("mixed", infer(("TEXT", "BYTES", [5, 1], ["a"] * 5))),
    ("mixed", infer(("HALF", "FP16", [1, 1], [1.5]), TEXT)),
]


def accepts(decode, check=None):
    try:
        decoded = decode()
        if check:
            check(decoded)
    except InferenceError:
        return False
    return True


@pytest.mark.parametrize(
    ("model", "request_", "good"), [(*each, True) for each in GOOD] + [(*each, False) for each in BAD]
)
def test_infer_requests(model, request_, good):
    """The schema accepts exactly the requests that the server accepts."""
    name, version, text = next(each for each in reversed(MODELS) if each[0] == model)
    spec = spec_of(name, text)
    body = memoryview(json.dumps(request_).encode())
    assert accepts(lambda: decode_infer(body, None, spec)[0], lambda made: check_request(spec, made)) is good
    assert schema(f"InferRequest-{name}-{version}").is_valid(request_) is good


@pytest.mark.parametrize(
    ("model", "request_", "good"),
    [
        ("stream", {"IN": [1, 2, 3, 4]}, True),
        ("stream", {"IN": [[1, 2], [3, 4]], "id": "x", "mine": True, "parameters": {"other": 1.5}}, True),
        ("mixed", {"TEXT": "a"}, True),
        ("mixed", {"TEXT": ["a"], "BYTES": [1, 2]}, True),
        ("mixed", {"TEXT": "a", "BYTES": 7}, True),
        ("stream", {}, False),
        ("stream", {"IN": [1, 2, 3]}, False),
        ("stream", {"IN": 1}, False),
        ("stream", {"IN": [1, 2, 3, 4], "mine": None}, False),
        ("stream", {"IN": [1, 2, 3, 4], "parameters": {"mine": None}}, False),
        ("stream", {"IN": [1, 2, 3, 4], "mine": {"a": [None]}, "parameters": {"stop": ["a"]}}, True),
        ("mixed", {"TEXT": 1}, False),
        ("mixed", {"TEXT": "a", "BYTES": -1}, False),
    ],
)
def test_generate_requests(model, request_, good):
    """The schema for generate, whose members are the inputs, accepts what the server accepts."""
    name, version, text = next(each for each in MODELS if each[0] == model)
    spec = spec_of(name, text)
    body = json.dumps(request_).encode()
    assert accepts(lambda: decode_generate(LongStrings(body), spec), lambda made: check_request(spec, made)) is good
    assert schema(f"GenerateRequest-{name}-{version}").is_valid(request_) is good


def response(model, *outputs, **more):
    tensors = [OutputTensor(name, datatype, shape, memoryview(contents)) for name, datatype, shape, contents in outputs]
    return InferResponse(model, 1, "id", tensors, **more)


OUT = ("OUT", "FP32", [2, 2], bytes(16))


@pytest.mark.parametrize("binary", [False, True])
def test_infer_responses(binary):
    """Responses conform to the schema in each of their forms, and a response with a wrong datatype does not."""
    made, _, _ = encode_infer(response("plain", OUT, parameters={"mine": 1}), OutputOptions(default_binary=binary))
    answer = json.loads(made)
    assert schema("InferResponse-plain-1").is_valid(answer)
    answer["outputs"][0]["datatype"] = "FP64"
    assert not schema("InferResponse-plain-1").is_valid(answer)
    classes = ("OUT", "BYTES", [1], b"\x03\0\0\0a:1")
    answer = json.loads(encode_infer(response("plain", classes), ALL_JSON)[0])
    assert schema("InferResponse-plain-1").is_valid(answer)
    assert not schema("InferResponse-mixed-2").is_valid(answer)


def test_generate_responses():
    """An output with one element is a bare value."""
    made = json.loads(encode_generate(response("mixed", ("FLAG", "BOOL", [1, 1], b"\1"), parameters={"mine": "x"})))
    assert made["FLAG"] is True
    assert schema("GenerateResponse-mixed-2").is_valid(made)
    assert schema("GenerateResponse-mixed-2").is_valid(made | {"FLAG": [True, False]})
    assert not schema("GenerateResponse-mixed-2").is_valid(made | {"FLAG": 1})


def test_examples():
    """An example is a request that the server takes, where one can be written down."""
    paths = whole()["paths"]
    for name, _, text in MODELS[1:3]:
        example = paths[f"/v2/models/{name}/infer"]["post"]["requestBody"]["content"]["application/json"]["example"]
        check_request(
            spec_of(name, text), decode_infer(memoryview(json.dumps(example).encode()), None, spec_of(name, text))[0]
        )
    large = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 65 ] }'
    half = 'input { name: "IN" data_type: TYPE_FP16 dims: [ 1 ] }'
    for text in (large, half):
        made = document(("m", 1, text))["paths"]["/v2/models/m/infer"]["post"]["requestBody"]["content"]
        assert "example" not in made["application/json"]


LOG_UPDATES = [
    ({}, True),
    ({"log_info": True, "log_verbose_level": 3, "log_format": "json"}, True),
    ({"log_info": None, "log_format": None}, True),
    ({"log_info": 1}, False),
    ({"log_verbose_level": -1}, False),
    ({"log_verbose_level": 2**31}, False),
    ({"log_verbose_level": True}, False),
    ({"log_format": "text"}, False),
    ({"log_file": "/tmp/log"}, False),
    ({"of another server": 1}, True),
]
LOADS = [
    ({}, True),
    ({"parameters": {"config": "{}", "file:1/model.py": "YQ=="}}, True),
    ({"parameters": {"config": 1}}, False),
    ({"parameters": {"file:1/model.py": None}}, False),
    ({"parameters": {"files": "YQ=="}}, False),
    ({"parameters": []}, False),
]
TRACE_UPDATES = [
    ({}, True),
    ({"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": ["-1"], "log_frequency": "+5"}, True),
    ({"trace_level": [], "trace_rate": None}, True),
    ({"trace_level": "LOUD"}, False),
    ({"trace_level": 1}, False),
    ({"trace_rate": 1}, False),
    ({"trace_rate": "one"}, False),
    ({"trace_count": ["1", "2"]}, False),
    ({"trace_file": "/tmp/trace"}, False),
    ({"of another server": "1"}, True),
]


def is_taken(work):
    try:
        work()
    except InferenceError:
        return False
    return True


@pytest.mark.parametrize(("update", "taken"), LOG_UPDATES)
def test_log_settings(update, taken):
    """The schema lets through what the server takes, and nothing else."""
    settings = LogSettings(ServerSettings(("models",)))
    given = {name: value for name, value in update.items() if value is not None}  # as the endpoint does
    assert schema("LogUpdate").is_valid(update) is is_taken(lambda: settings.update(given)) is taken


@pytest.mark.parametrize(("load", "taken"), LOADS)
def test_load(load, taken):
    """The same for the parameters of a load."""
    assert schema("LoadRequest").is_valid(load) is is_taken(lambda: decode_load(orjson.dumps(load))) is taken


@pytest.mark.parametrize(("update", "taken"), TRACE_UPDATES)
def test_trace_settings(update, taken, server):
    """The same for the settings of traces."""
    path = b"POST /v2/trace/setting HTTP/1.1\r\nHost: x\r\n"
    body = orjson.dumps(update)
    transport = server.connect()
    transport.feed(b"%bContent-Length: %d\r\n\r\n%b" % (path, len(body), body))
    ((status, _, _),) = transport.responses()
    assert schema("TraceUpdate").is_valid(update) is (status == 200) is taken


def test_servers_and_security():
    """The document names the sites of proxies before its own, and says that what has no `security` is open."""
    made = document()
    assert made["servers"] == [{"url": "/", "description": "Where this document comes from."}]
    assert made["security"] == []
    versions = [ServedVersion(1, spec_of("plain", PLAIN))]
    made = json.loads(openapi_document("triton", "1", versions, {}, ("https://models.example",)))
    assert [each["url"] for each in made["servers"]] == ["https://models.example", "/"]
    restricted = document(*MODELS, restricted={"inference": "key"})
    for _, _, operation in operations(restricted):
        assert operation.get("security", []) == ([{"key": []}] if operation["tags"] == ["inference"] else [])


def test_generators_find_a_type_for_everything():
    """No list is without items, and no body without a schema: generators leave out what has one."""

    def check(node):
        if isinstance(node, dict):
            if "array" in (node.get("type"), *(node["type"] if isinstance(node.get("type"), list) else ())):
                assert "items" in node or "prefixItems" in node, node
            for media_type, content in node.get("content", {}).items() if isinstance(node.get("content"), dict) else ():
                assert content["schema"], media_type
        for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            check(each)

    check(whole())
    check(document(("nothing", 1, NOTHING)))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import base64
import json
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http import json_tensors, repository_request
from pyruntime.runtime.frontends.http.repository_request import decode_index_request, decode_load, decode_unload
from pyruntime.utils.errors import Code, InferenceError


def body(**parameters):
    return json.dumps({"parameters": parameters}).encode()


@pytest.mark.parametrize("nothing", [b"", b"{}", b'{"parameters": {}}', b'{"any": 1}'])
def test_nothing(nothing):
    """A request may say nothing."""
    assert decode_load(nothing) == ("", {})
    assert decode_unload(nothing) is False


def test_load():
    """A configuration is text, files are base64, with line breaks or without."""
    files = {"file:1/model.py": b"import x\n" * 20, "file:empty": b""}
    encoded = {name: base64.encodebytes(content).decode() for name, content in files.items()}
    assert decode_load(body(config="{}", **encoded)) == ("{}", files)


@given(st.dictionaries(st.text(), st.binary()))
def test_any_files(contents):
    """Files come as they were sent."""
    files = {f"file:{name}": content for name, content in contents.items()}
    encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
    assert decode_load(body(**encoded)) == ("", files)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"x", "failed to parse the request JSON buffer: "),
        (b"[]", "the request must be a JSON object, got a list"),
        (b'{"parameters": []}', "'parameters' must be an object, got a list"),
        (body(config=1), 'load parameter "config" must be a string, got an integer'),
        (body(config=None), 'load parameter "config" must be a string, got null'),
        (body(any="x"), 'unrecognized load parameter "any".'),
        (body(**{"file:a": 1}), 'load parameter "file:a" must be a string, got an integer'),
        (body(**{"file:a": "!"}), 'load parameter "file:a" must be the file\'s contents in base64'),
        (body(**{"file:a": "eA"}), 'load parameter "file:a" must be the file\'s contents in base64'),
        (body(**{"file:a": "é"}), 'load parameter "file:a" must be the file\'s contents in base64'),
    ],
)
def test_load_that_makes_no_sense(text, message):
    """Any other body than a load request is the client's mistake."""
    with pytest.raises(InferenceError) as caught:
        decode_load(text)
    assert caught.value.message.startswith(message)
    assert caught.value.code is Code.INVALID_ARG


def test_unload():
    """Dependents go, too, if that is what the client says; what else it says means nothing."""
    assert decode_unload(body(unload_dependents=True, any=1)) is True
    assert decode_unload(body(unload_dependents=False)) is False
    for value in (1, "true", None):
        with pytest.raises(InferenceError) as caught:
            decode_unload(body(unload_dependents=value))
        assert caught.value.message.startswith("'unload_dependents' must be true or false, got ")


@pytest.mark.parametrize(
    ("body", "ready"), [(b"", False), (b"{}", False), (b'{"ready":true}', True), (b'{"ready":false}', False)]
)
def test_index_request(body, ready):
    """The body is optional and may ask for ready models only."""
    assert decode_index_request(body) is ready


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"ready":1}', "Invalid value for 'ready': expected a boolean"),
        (b'{"ready":null}', "Invalid value for 'ready': expected a boolean"),
        (b"[]", "the request must be a JSON object, got a list"),
    ],
)
def test_index_request_that_makes_no_sense(body, message):
    """Any other body than an index request is the client's mistake."""
    with pytest.raises(InferenceError) as caught:
        decode_index_request(body)
    assert caught.value.message == message
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize("size", range(13))
@pytest.mark.parametrize("piece", [4, 5, 7])
def test_files_in_pieces(size, piece, monkeypatch):
    """A long file is decoded piece by piece, with the same outcome."""
    monkeypatch.setattr(repository_request, "LONG_FILE_BYTES", 1)
    monkeypatch.setattr(json_tensors, "STRING_BYTES", piece)
    content = bytes(range(size))
    text = base64.b64encode(content).decode()
    assert decode_load(body(**{"file:a": "\n".join(text), "file:b": text}))[1] == {"file:a": content, "file:b": content}
    if size % 3 and size > 3:
        for wrong in (text + "AAAA", text + "=", text[:-1], text.replace("A", "\\")):
            with pytest.raises(InferenceError, match="in base64"):
                decode_load(body(**{"file:a": wrong}))


def test_a_large_file_takes_no_other_memory_than_its_body():
    contents = random.Random(1).randbytes(8 << 20)
    request = bytearray(body(config="{}", **{"file:a": base64.b64encode(contents).decode(), "file:b": "eA=="}))
    tracemalloc.start()
    try:
        config, files = decode_load(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (config, files) == ("{}", {"file:a": contents, "file:b": b"x"})
    assert peak < 2 << 20


def test_only_a_short_document_is_parsed_at_once(monkeypatch):
    """The parser lets no other thread run, so it gets neither files nor what else makes a body long."""
    parsed = []
    monkeypatch.setattr(repository_request, "parse_document", lambda text: parsed.append(len(text)) or {})
    decode_load(body(**{f"file:{number}": "A" * (64 << 10) for number in range(256)}))
    assert max(parsed) < 64 << 10
    with pytest.raises(InferenceError, match="the request's document has more than 16777216 bytes, not counting"):
        decode_load(b'{"a": [' + b"1," * (8 << 20) + b"1]}")


def test_a_configuration_that_is_long():
    text = "x" * (1 << 20)
    assert decode_load(body(config=text)) == (text, {})

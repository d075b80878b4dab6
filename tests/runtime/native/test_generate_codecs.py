# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code reads requests of the generate extension as the reference does, or leaves them to it."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.inference.plain_requests import PlainRequests
from pyruntime.runtime.native._codecs import InferReader
from pyruntime.utils.dtypes import DATATYPES
from pyruntime.utils.errors import Code, InferenceError

from ..model_specs import BARE_SPEC, spec_from
from .json_values import WHATEVER, Raw, elements, mostly, nested
from .plain_bodies import IDS, OPTIONS, Members, encode, with_another_byte
from .plain_generate import is_plain, read, reference

# A model of texts, as most of those that generate are.
TEXTS = spec_from(
    "name: 'm' max_batch_size: 4 input { name: 'text' data_type: TYPE_STRING dims: 1 }"
    "input { name: 'max_tokens' data_type: TYPE_INT32 dims: 1 optional: true }"
    "input { name: 'stream' data_type: TYPE_BOOL dims: 1 optional: true }"
    "output { name: 'out' data_type: TYPE_STRING dims: -1 }"
)
# An input of each datatype, with its name, and shapes of all kinds.
SHAPES = [(-1,), (1,), (2, -1), (-1, 2), (-1, -1), (), (2, 2), (0,), (0, -1)]
MANY = replace(
    BARE_SPEC,
    inputs={
        each.name: TensorSpec(each.name, each.name, (*SHAPES, *SHAPES)[number], (*SHAPES, *SHAPES)[number])
        for number, each in enumerate(DATATYPES)
    },
    outputs={},
    required_inputs=frozenset(),
    max_batch_size=0,
)
# Names of members that mean something, and others.
NAMES = ["id", "parameters", "triton_x", "sequence_id", "", "é"]


@st.composite
def inputs(draw, tensor):
    """A value of an input: an element, or a list of as many as fit, or nearly so."""
    if draw(st.booleans()) and not tensor.shape:
        return draw(elements(tensor.datatype))
    count = 1
    for dim in tensor.shape:
        count *= 1 if dim == -1 else dim
    count = draw(mostly(st.just(count * draw(st.integers(1, 2)) if -1 in tensor.shape else count), st.integers(0, 5)))
    flat = [draw(elements(tensor.datatype)) for _ in range(count)]
    return draw(mostly(st.just(flat[0]), WHATEVER)) if count == 1 and draw(st.booleans()) else draw(nested(flat))


@st.composite
def documents(draw, spec):
    chosen = draw(st.lists(st.sampled_from(sorted(spec.inputs)), unique=True, max_size=3))
    chosen = draw(mostly(st.just(sorted({*chosen, *spec.required_inputs})), st.just(chosen)))
    document = Members((name, draw(inputs(spec.inputs[name]))) for name in chosen)
    is_unique = draw(mostly(st.just(True), st.just(False)))
    others = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=3, unique=is_unique))
    document += [(name, draw(OPTIONS[name])) for name in others]
    if draw(st.booleans()):
        document.append(("id", draw(IDS)))
    if draw(st.booleans()):
        free = [name for name in sorted(OPTIONS) if name not in others]
        within = draw(st.lists(st.sampled_from(free), max_size=3, unique=True))
        parameters = Members((name, draw(OPTIONS[name])) for name in within)
        odd = draw(mostly(st.none(), st.sampled_from([*others, *NAMES, *chosen]), rare=9))
        if odd is not None:
            parameters.append((odd, draw(WHATEVER)))
        document.append(("parameters", draw(mostly(st.just(parameters), WHATEVER))))
    odd = draw(mostly(st.none(), st.sampled_from([*chosen, *NAMES]), rare=9))
    if odd is not None:
        document.append((odd, draw(WHATEVER)))
    return draw(st.permutations(document))


@pytest.mark.parametrize("spec", [TEXTS, MANY], ids=["texts", "many"])
@given(data=st.data())
def test_a_request_is_read_as_the_reference_does(spec, data):
    """Native code accepts no request that the reference refuses, and reads none otherwise."""
    comma, colon = data.draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n\t", " :")]))
    text = encode(Members(data.draw(documents(spec))), comma, colon)
    body = data.draw(mostly(st.just(text), with_another_byte(text), rare=3))
    event(f"is plain: {is_plain(spec, body)}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", range(7))
def test_elements_get_the_shape_of_the_reference(shape, count):
    spec = replace(MANY, inputs={"X": TensorSpec("X", "INT8", shape, shape)})
    body = encode({"X": [*range(count)]})
    if not is_plain(spec, body):
        assert isinstance(reference(spec, body)[0], InferenceError) or 0 in shape


@pytest.mark.parametrize(
    "document",
    [
        {"text": "What is a rabbit?"},
        {"text": ["é\n"], "max_tokens": [20], "stream": [False]},
        {"text": ["a", "b"]},
        {"text": "a", "max_tokens": 20, "stream": True, "id": "7"},
        {"text": "a", "parameters": {"temperature": 0.7, "top_k": 50, "stop": ".", "echo": False}},
        {"text": "a", "parameters": {}, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2},
        {"parameters": {"id": "x", "sequence_id": 9}, "id": "", "text": "a"},
    ],
)
def test_requests_of_clients_are_plain(document):
    """As those for language models are."""
    assert is_plain(TEXTS, document)


@pytest.mark.parametrize(
    "document",
    [
        Raw('{"text":"a","text":"b"}'),
        Raw('{"text":"a","parameters":{"text":"b"}}'),
        Raw('{"text":"a","x":1,"x":1}'),
        Raw('{"text":"a","x":1,"parameters":{"x":1}}'),
        Raw('{"text":"a","parameters":{"x":1,"x":1}}'),
        Raw('{"text":"a","parameters":{},"parameters":{}}'),
        Raw('{"text":"a","id":"1","id":"1"}'),
        Raw('{"text":"a","id":"1","parameters":{"id":"2"}}'),
        {"text": "a", "id": 1},
        {"text": "a", "parameters": None},
        {"text": "a", "x": None},
        {"text": "a", "x": []},
        {"text": "a", "x": {}},
        {"text": {}},
        {"text": None},
        {"text": 1},
        {"text": ["a", "b"], "max_tokens": 1},
        {"text": ["a"] * 5},
        {"x": 1},
        Raw("[]"),
        Raw('{"text":"a"}x'),
        Raw(""),
    ],
)
def test_what_is_left_to_the_reference(document):
    """What is there twice, is no scalar, is missing, or has no shape."""
    assert not is_plain(TEXTS, document)


def test_a_request_that_ends_early_is_not_plain():
    body = encode({"text": ["é\n"], "max_tokens": 3, "id": "7", "parameters": {"x": 1.5, "y": "z"}})
    assert is_plain(TEXTS, body)
    for end in range(len(body)):
        assert read(TEXTS, body[:end]) is None


def test_a_request_for_which_there_is_no_memory_is_left_to_the_reference():
    def allocate(size, lead, data):
        raise InferenceError("full", Code.UNAVAILABLE)

    assert PlainRequests(TEXTS).read_generate(b'{"text":"a"}', allocate) is None


def test_a_model_without_plain_requests():
    spec = replace(TEXTS, inputs={"text": replace(TEXTS.inputs["text"], reshape=(1, 1))})
    assert PlainRequests(spec).read_generate(b'{"text":"a"}', None) is None


@pytest.mark.parametrize("arguments", [(), (b"",), ("", None), (b"", None, None)])
def test_other_types(arguments):
    with pytest.raises(TypeError):
        InferReader([], [], 0).read_generate(*arguments)

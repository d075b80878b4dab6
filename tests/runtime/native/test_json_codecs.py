# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Native code reads the contents of tensors in JSON as the reference does, or leaves them to it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from tritonclient.http import InferenceServerClient, InferInput

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.inference.plain_requests import PlainRequests
from pyruntime.utils.dtypes import BY_NAME, DATATYPES
from pyruntime.utils.errors import Code, InferenceError

from ..model_specs import BARE_SPEC
from .json_values import NUMBERS, ODD_STRINGS, STRINGS, Raw
from .plain_bodies import (
    BATCHING,
    check_request_is_read_as_by_the_reference,
    encode,
    json_inputs,
    read,
    reference,
)

NAMES = [datatype.name for datatype in DATATYPES]
# An input of each datatype, with its name.
SPEC = replace(
    BARE_SPEC,
    inputs={name: TensorSpec(name, name, (-1, -1), (-1, -1), optional=True) for name in NAMES},
    outputs={},
    required_inputs=frozenset(),
    max_batch_size=0,
)


def body_of(*inputs):
    """A request with inputs of a name, a shape and data."""
    return encode({"inputs": [{"name": n, "shape": s, "datatype": n, "data": data} for n, s, data in inputs]})


def is_plain(body):
    return check_request_is_read_as_by_the_reference(SPEC, body, len(body))


@given(data=st.data())
def test_contents_are_read_as_the_reference_does(data):
    """Of all datatypes, one after the other in memory."""
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    shape = data.draw(st.sampled_from([[2, 2], [1, 3], [1, 1], [0, 2]]))
    body = encode({"inputs": [data.draw(json_inputs(name, shape, name)) for name in names]}, *data.draw(SEPARATORS))
    event(f"is plain: {is_plain(body)}")


SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\r\n\t", " :")])


def vanishes(number):
    """Whether it is written as another number than 0, and is 0 as a double."""
    return isinstance(number, Raw) and float(number) == 0 and set("123456789") & set(number.lower().split("e")[0])


@given(st.lists(NUMBERS, min_size=1), st.sampled_from(["FP32", "FP64"]))
def test_numbers_are_rounded_as_the_reference_does(numbers, datatype):
    """All that are finite are read, but those that are too small for any double."""
    assert is_plain(body_of((datatype, [1, len(numbers)], numbers))) is not any(map(vanishes, numbers))


@given(st.sampled_from([name for name in NAMES if "INT" in name]), st.lists(st.integers(-(2**65), 2**65), min_size=1))
def test_integers_are_read_as_far_as_they_fit(name, numbers):
    is_signed, bits = name.startswith("INT"), 8 * BY_NAME[name].size
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    fits = all(least <= number <= most for number in numbers)
    assert is_plain(body_of((name, [1, len(numbers)], numbers))) is fits


@given(st.lists(STRINGS))
def test_strings_are_read_as_the_reference_does(strings):
    """Whatever valid text they are, with escapes or without."""
    assert is_plain(body_of(("BYTES", [1, len(strings)], strings)))


@given(ODD_STRINGS)
def test_what_is_no_text_is_left_to_the_reference(string):
    body = body_of(("BYTES", [1, 1], [string]))
    assert not is_plain(body)
    assert isinstance(reference(SPEC, body, len(body))[0], InferenceError)


@pytest.mark.parametrize("order", list(itertools.permutations(["name", "shape", "datatype", "data"])))
def test_members_of_an_input_may_stand_in_any_order(order):
    """Contents that stand before their datatype are read after it."""
    entry = {"name": "BYTES", "shape": [1, 2], "datatype": "BYTES", "data": [["]", '\\"'], []]}
    assert is_plain(encode({"inputs": [{name: entry[name] for name in order}], "id": "7"}))


@pytest.mark.parametrize(
    "data", ["[1]]", "[1", "[1}", "[1],", "[[1]", '["a]', "[,]", "[1,]", "[[],]", "[1 2]", "{}", "1"]
)
@pytest.mark.parametrize("order", [("datatype", "data"), ("data", "datatype")])
def test_lists_that_are_none_are_left_to_the_reference(data, order):
    members = {"name": "INT8", "shape": [1, 1], "data": Raw(data), "datatype": "INT8"}
    assert not is_plain(encode({"inputs": [{name: members[name] for name in ("name", "shape", *order)}]}))


def test_lists_nest_as_deep_as_tensors_have_dimensions():
    for depth, is_read in ((1, True), (32, True), (33, False)):
        assert is_plain(body_of(("INT8", [1, 1], Raw("[" * depth + "1" + "]" * depth)))) is is_read


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_clients_with_json_are_plain(name):
    """Those of Triton's Python client, alone and with a binary tensor before and behind."""
    shape = [2, 3]
    tensor = InferInput(name, shape, name)
    others = [InferInput(each, shape, each) for each in ("UINT8", "INT16") if each != name]
    for each in others:
        each.set_data_from_numpy(np.ones(shape, BY_NAME[each.datatype()].numpy))
    has_json = name not in ("FP16", "BF16")
    if has_json:
        values = np.full(shape, "é", object) if name == "BYTES" else np.ones(shape, BY_NAME[name].numpy)
        tensor.set_data_from_numpy(values, binary_data=False)
    else:
        tensor._data = [1.0] * 6
    for tensors in ([tensor], [others[0], tensor, *others[1:]]):
        body, length = InferenceServerClient.generate_request_body(tensors)
        assert check_request_is_read_as_by_the_reference(SPEC, body, length or len(body)) is has_json


def test_a_request_for_which_there_is_no_memory_is_left_to_the_reference():
    def allocate(size, lead, data):
        raise InferenceError("full", Code.UNAVAILABLE)

    body = body_of(("INT8", [1, 1], [1]))
    assert PlainRequests(SPEC).read_document(body, len(body), 0, allocate) is None


def test_a_request_that_ends_early_is_not_plain():
    body = body_of(("FP32", [1, 2], [1.5, -1e5]), ("BYTES", [1, 2], ["é\n", "a"]))
    assert is_plain(body)
    for end in range(len(body)):
        assert read(SPEC, body[:end], end) is None


def test_each_output_may_have_a_way_of_its_own():
    """They are in the document, or follow it, as the request says for each."""
    outputs = [{"name": "Y", "parameters": {"binary_data": True}}, {"name": "Z"}]
    inputs = [{"name": "FLOATS", "shape": [1, 1], "datatype": "FP32", "data": [1]}]
    body = encode({"inputs": inputs, "outputs": outputs})
    assert check_request_is_read_as_by_the_reference(BATCHING, body, len(body))
    assert read(BATCHING, body, len(body))[0].binary == {"Y": True, "Z": False}

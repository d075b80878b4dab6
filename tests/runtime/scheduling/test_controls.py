# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs that say where in its sequence a request is."""

import pytest

from pyruntime.runtime.scheduling.controls import Controls
from pyruntime.utils.errors import Code, InferenceError

from ..model_specs import spec_from

FLAGS = """
control_input { name: 'S' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 2, 3 ] } }
control_input { name: 'R' control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
control_input { name: 'E' control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
"""


def controls_of(batching, max_batch_size=4):
    text = f"name: 'm' backend: 'b' max_batch_size: {max_batch_size} sequence_batching {{ {batching} }}"
    return Controls(spec_from(text, files=[]))


def corrid(data_type):
    return controls_of(
        f"control_input {{ name: 'I' control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }} }}"
    )


def contents(controls, *where, **how):
    return {tensor.name: bytes(tensor.data) for tensor in controls.tensors(*where, **how)}


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("ready", [False, True])
def test_flags(start, end, ready):
    """Each flag has the value that the configuration has for it."""
    assert contents(controls_of(FLAGS), 1, start, end, ready=ready) == {
        "S": bytes([3 if start else 2, 0, 0, 0]),
        "R": bytes([ready]),
        "E": b"\x00\x00\x80\x3f" if end else bytes(4),
    }


@pytest.mark.parametrize(("max_batch_size", "shape"), [(4, [1, 1]), (0, [1])])
def test_shape(max_batch_size, shape):
    """One element, and a row where the model batches."""
    assert [tensor.shape for tensor in controls_of(FLAGS, max_batch_size).tensors(1, True, True)] == [shape] * 3


@pytest.mark.parametrize(
    ("data_type", "id", "data"),
    [
        ("TYPE_UINT64", (1 << 64) - 1, b"\xff" * 8),
        ("TYPE_INT64", 258, b"\x02\x01" + bytes(6)),
        ("TYPE_UINT32", (1 << 32) + 7, b"\x07\0\0\0"),
        ("TYPE_INT32", 7, b"\x07\0\0\0"),
        ("TYPE_STRING", "äb", b"\x03\0\0\0\xc3\xa4b"),
        ("TYPE_STRING", 0, bytes(4)),
    ],
)
def test_correlation_id(data_type, id, data):
    """A number in so many bytes, or a string."""
    assert contents(corrid(data_type), id, True, False) == {"I": data}


@pytest.mark.parametrize(
    ("data_type", "id", "found", "wanted"),
    [
        ("TYPE_UINT64", "5", "BYTES", "UINT64"),
        ("TYPE_INT32", "a", "BYTES", "INT32"),
        ("TYPE_STRING", 5, "UINT64", "BYTES"),
    ],
)
def test_id_of_the_wrong_kind(data_type, id, found, wanted):
    """A text is no number, and a number no text."""
    with pytest.raises(InferenceError) as caught:
        corrid(data_type).check("r", id)
    assert caught.value.message == (
        f"[request id: r] sequence batching control 'I' data-type is '{found}', but model 'm' expects '{wanted}'"
    )
    assert caught.value.code is Code.INVALID_ARG


@pytest.mark.parametrize(("data_type", "id"), [("TYPE_UINT64", 5), ("TYPE_STRING", "5"), ("TYPE_STRING", 0)])
def test_id_of_the_right_kind(data_type, id):
    """The others are accepted, and whether there is an id is looked at elsewhere."""
    corrid(data_type).check("r", id)


def test_id_without_input():
    """A model without an input for ids takes both kinds."""
    for id in (5, "5"):
        controls_of(FLAGS).check("r", id)


@pytest.mark.parametrize(
    ("data_type", "first", "last"),
    [
        ("TYPE_INT32", 1 << 30, (1 << 31) - 1),
        ("TYPE_UINT32", 1 << 31, (1 << 32) - 1),
        ("TYPE_INT64", 1 << 62, (1 << 63) - 1),
        ("TYPE_UINT64", 1 << 63, (1 << 64) - 1),
    ],
)
def test_own_ids(monkeypatch, data_type, first, last):
    """The ids of the server's own sequences are positive numbers of the input's datatype, and far from 1."""
    controls = corrid(data_type)
    assert [controls.own_id(), controls.own_id()] == [first, first + 1]
    size = 8 if "64" in data_type else 4
    assert contents(controls, controls.own_id(), True, False) == {"I": (first + 2).to_bytes(size, "little")}
    monkeypatch.setattr(controls, "_numbers", iter([last - first, last - first + 1]))
    assert [controls.own_id(), controls.own_id()] == [last, first]


def test_own_ids_without_numbers():
    """They are texts for a model that wants texts, and numbers for one that has no input for them."""
    assert corrid("TYPE_STRING").own_id() == str(1 << 63)
    assert controls_of(FLAGS).own_id() == 1 << 63


def test_names():
    """The names of the inputs; there may be none."""
    assert controls_of(FLAGS).names == {"S", "R", "E"}
    assert controls_of("").names == frozenset()
    assert controls_of("").tensors("a", True, True) == []

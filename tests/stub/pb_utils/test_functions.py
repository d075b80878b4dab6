# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from pyruntime.stub.pb_utils import functions as pb_utils
from pyruntime.utils.dtypes import DATATYPES

CONFIG = {
    "input": [{"name": "A", "dims": [1]}, {"name": "B", "dims": [2]}],
    "output": [{"name": "A", "dims": [3]}],
}


class Tensor:
    def __init__(self, name):
        self._name = name

    def name(self):
        return self._name


class Holder:
    """Stands for a request and for a response."""

    def __init__(self, *tensors):
        self._tensors = list(tensors)

    def inputs(self):
        return self._tensors

    output_tensors = inputs


@pytest.mark.parametrize("get", [pb_utils.get_input_tensor_by_name, pb_utils.get_output_tensor_by_name])
def test_tensor_by_name(get):
    """The tensor of that name; None if there is none."""
    a, b = Tensor("A"), Tensor("B")
    assert get(Holder(a, b), "B") is b
    assert get(Holder(a, b), "C") is None
    assert get(Holder(), "A") is None


def test_config_by_name():
    """Inputs and outputs are looked up separately; None if there is none."""
    assert pb_utils.get_input_config_by_name(CONFIG, "B") is CONFIG["input"][1]
    assert pb_utils.get_input_config_by_name(CONFIG, "C") is None
    assert pb_utils.get_output_config_by_name(CONFIG, "A") is CONFIG["output"][0]
    assert pb_utils.get_output_config_by_name(CONFIG, "B") is None


def test_config_without_tensors():
    """A configuration that names no tensors has none."""
    assert pb_utils.get_input_config_by_name({}, "A") is None
    assert pb_utils.get_output_config_by_name({}, "A") is None


@pytest.mark.parametrize(
    ("config", "decoupled"),
    [
        ({}, False),
        ({"model_transaction_policy": {}}, False),
        ({"model_transaction_policy": {"decoupled": False}}, False),
        ({"model_transaction_policy": {"decoupled": True}}, True),
    ],
)
def test_decoupled(config, decoupled):
    """A model is decoupled only if its configuration says so."""
    assert pb_utils.using_decoupled_model_transaction_policy(config) is decoupled


NUMPY = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    13: np.object_,
}


@pytest.mark.parametrize(("number", "numpy_type"), NUMPY.items())
def test_numbers_and_numpy_types(number, numpy_type):
    """Number and scalar type lead to each other; a dtype will do as well."""
    assert pb_utils.triton_to_numpy_type(number) is numpy_type
    assert pb_utils.numpy_to_triton_type(numpy_type) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == number


@pytest.mark.parametrize("number", [0, 14, 15])
def test_numbers_without_numpy_type(number):
    """BF16, and numbers that are no datatype, have no numpy type."""
    assert pb_utils.triton_to_numpy_type(number) is None


@pytest.mark.parametrize("numpy_type", [np.bytes_, np.dtype("S5")])
def test_bytes_are_strings(numpy_type):
    """numpy's fixed-length bytes are TYPE_STRING."""
    assert pb_utils.numpy_to_triton_type(numpy_type) == 13


def test_same_width_other_name():
    """A C long long is an INT64, although numpy has another name for it."""
    assert pb_utils.numpy_to_triton_type(np.longlong) == 9


@pytest.mark.parametrize("numpy_type", [np.complex64, np.str_, np.dtype(">f4")])
def test_numpy_types_without_number(numpy_type):
    """A numpy type without a Triton datatype is a KeyError."""
    with pytest.raises(KeyError):
        pb_utils.numpy_to_triton_type(numpy_type)


def test_config_names():
    """All datatypes but BF16 have a numpy type by their config name."""
    assert set(pb_utils.TRITON_STRING_TO_NUMPY) == {d.config_name for d in DATATYPES} - {"TYPE_BF16"}
    assert len(pb_utils.TRITON_STRING_TO_NUMPY) == 13
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_


@pytest.mark.parametrize("name", ["TYPE_BF16", "FP32", ""])
def test_unknown_config_name(name):
    """BF16 and unknown names are a KeyError."""
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy(name)


def test_constants():
    """The flags have the values that clients and models were written against."""
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2


def test_memory_types():
    """The two kinds of memory are two members of one enum."""
    assert list(pb_utils.MemoryType) == [pb_utils.TRITONSERVER_MEMORY_GPU, pb_utils.TRITONSERVER_MEMORY_CPU]

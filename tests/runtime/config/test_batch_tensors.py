# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of batch inputs and batch outputs."""

import pytest

from pyruntime.runtime.config.batch_tensors import validate_batch_tensors
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.utils.errors import ConfigError

TENSORS = "name: 'm' input { name: 'IN' } output { name: 'OUT' }"
KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)


def _check(text):
    validate_batch_tensors(parse_model_config(f"{TENSORS} {text}", "config.pbtxt"))


def _input(kind="BATCH_ELEMENT_COUNT", datatype="TYPE_FP32", sources="source_input: 'IN'"):
    return f"batch_input {{ kind: {kind} target_name: 'COUNT' data_type: {datatype} {sources} }}"


def _output(targets="target_name: 'OUT'", sources="source_input: 'IN'", kind="BATCH_SCATTER_WITH_INPUT_SHAPE"):
    return f"batch_output {{ kind: {kind} {targets} {sources} }}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("datatype", ["TYPE_INT32", "TYPE_FP32"])
def test_every_kind(kind, datatype):
    """Batch inputs of every kind are valid, with both datatypes, whatever their targets are called."""
    _check(_input(kind, datatype) + _output())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_input(datatype="TYPE_INT64"), "batch input data type must be TYPE_INT32 or TYPE_FP32"),
        (_input(datatype="TYPE_INVALID"), "batch input data type must be TYPE_INT32 or TYPE_FP32"),
        (_input(kind="7"), "unknown batch input kind '7'"),
        (_input(sources="source_input: 'NO'"), "unknown source input name 'NO'"),
        (_input(sources=""), "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0"),
        (
            _input("BATCH_ITEM_SHAPE", sources="source_input: [ 'IN', 'IN' ]"),
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 2",
        ),
        (_output(kind="7"), "unknown batch output kind '7'"),
        (_output(sources=""), "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0"),
        (_output(sources="source_input: 'NO'"), "unknown source input name 'NO'"),
        (_output("target_name: 'NO'"), "unknown target output name 'NO'"),
        (_output("target_name: [ 'OUT', 'OUT' ]"), "target output name 'OUT' can only be specified once"),
    ],
)
def test_rules(text, message):
    """The messages are Triton's."""
    with pytest.raises(ConfigError) as caught:
        _check(text)
    assert str(caught.value) == f"{message} for m"

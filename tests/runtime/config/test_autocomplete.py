# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The results of a model's auto_complete_config that are merged into its configuration."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.config.autocomplete import complete, merge_auto_complete, minimal_config
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.render import render
from pyruntime.utils.errors import LoadError

TENSOR = {"name": "A", "data_type": "TYPE_FP32", "dims": [4, -1]}


def _parsed(text=""):
    return parse_model_config(f"name: 'm' {text}", "config.pbtxt")


def test_minimal_config():
    """A model without a file has a name; the rest follows from its files."""
    assert minimal_config("m") == _parsed()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 18446744073709551615 }",
        "input { name: 'A' data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } } sequence_batching {}",
    ],
)
def test_a_model_that_changes_nothing(text):
    """The rendering, returned as it is, leaves everything as it was."""
    config = normalize(_parsed(text), directory_name="m", files=["model.py"], gpus=())
    assert merge_auto_complete(config, json.loads(render(config))) == config
    assert complete(config, json.loads(render(config))) == config


def test_what_is_completed_is_normalised():
    """What the model leaves open is filled in again; what it may not change is not."""
    config = normalize(_parsed("instance_group { count: 2 }"), directory_name="m", files=["model.py"], gpus=())
    batched = complete(config, {"max_batch_size": 8, "dynamic_batching": {}, "instance_group": [{"count": 5}]})
    assert list(batched.dynamic_batching.preferred_batch_size) == [8]
    assert batched.instance_group == config.instance_group
    oldest = complete(config, {"max_batch_size": 4, "sequence_batching": {"oldest": {"max_candidate_sequences": 9}}})
    assert list(oldest.sequence_batching.oldest.preferred_batch_size) == [4]
    assert oldest.sequence_batching.max_sequence_idle_microseconds == 1_000_000


def test_what_is_adopted():
    """Batch size, inputs, outputs, a scheduler and the transaction policy replace the existing ones."""
    config = _parsed("max_batch_size: 2 input { name: 'old' }")
    returned = {
        "max_batch_size": 8,
        "input": [{**TENSOR, "optional": True}],
        "output": [TENSOR],
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }
    expected = _parsed(
        "max_batch_size: 8 input { name: 'A' data_type: TYPE_FP32 dims: [ 4, -1 ] optional: true } "
        "output { name: 'A' data_type: TYPE_FP32 dims: [ 4, -1 ] } dynamic_batching {} "
        "model_transaction_policy { decoupled: true }"
    )
    assert merge_auto_complete(config, returned) == expected


def test_what_is_ignored():
    """Other changes to the dict have no effect, whether valid or not."""
    config = _parsed()
    returned = {"name": "n", "backend": "b", "instance_group": [{"count": 5}], "optimization": 7, "unheard of": None}
    assert merge_auto_complete(config, returned) == config


def test_the_argument_is_not_changed():
    """The result is another message."""
    config = _parsed()
    merge_auto_complete(config, {"max_batch_size": 8})
    assert config == _parsed()


@pytest.mark.parametrize("scheduler", ["dynamic_batching { preferred_batch_size: 2 }", "sequence_batching {}"])
def test_a_scheduler_that_is_configured_stays(scheduler):
    """The model only gets dynamic batching where the configuration chose nothing."""
    config = _parsed(scheduler)
    assert merge_auto_complete(config, {"dynamic_batching": {"preserve_ordering": True}}) == config


@pytest.mark.parametrize(
    "returned",
    [
        {"max_batch_size": "many"},
        {"max_batch_size": 2**40},
        {"max_batch_size": 1.5},
        {"input": 7},
        {"input": [7]},
        {"input": [{**TENSOR, "dims": "4"}]},
        {"input": [{**TENSOR, "dims": [2**70]}]},
        {"input": [{**TENSOR, "data_type": "FP32"}]},
        {"output": [{**TENSOR, "data_type": 99}]},
        {"output": [{**TENSOR, "optional": True}]},
        {"dynamic_batching": [1]},
        {"dynamic_batching": {"unheard_of": 1}},
        {"model_transaction_policy": {"decoupled": "yes"}},
    ],
)
def test_values_that_a_configuration_cannot_have(returned):
    """The model's function is named as the culprit."""
    with pytest.raises(LoadError, match="in auto-complete-config function for model 'm'"):
        merge_auto_complete(_parsed(), returned)


def test_an_unknown_datatype_names_the_tensor():
    """Numbers that no datatype has are found here; a missing datatype is for `validate`."""
    with pytest.raises(LoadError) as caught:
        merge_auto_complete(_parsed(), {"input": [{**TENSOR, "data_type": 99}]})
    assert str(caught.value) == (
        "input 'A' in auto-complete-config function for model 'm' has an unknown 'data_type', 99"
    )
    merged = merge_auto_complete(_parsed(), {"input": [{"name": "A"}]})
    assert merged.input[0].data_type == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "data_type", "dims", "optional", "decoupled", "reshape", "shape", "@type", 7]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
KEYS = ["max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy", "name"]


@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_dict_is_a_config_or_a_load_error(returned):
    """A model may put anything into the dict."""
    try:
        merged = merge_auto_complete(_parsed(), returned)
    except LoadError:
        return
    assert merged.name == "m"

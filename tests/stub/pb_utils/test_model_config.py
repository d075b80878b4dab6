# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from pyruntime.stub.pb_utils.model_config import ModelConfig

INPUT = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields):
    return ModelConfig(json.dumps({"name": "M", "max_batch_size": 0, "input": [], "output": [], **fields}))


def exactly(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


def test_as_dict_is_live():
    """as_dict gives the configuration itself."""
    model_config = config()
    assert model_config.as_dict() is model_config.as_dict()
    model_config.set_max_batch_size(3)
    assert model_config.as_dict()["max_batch_size"] == 3


def test_max_batch_size_may_grow_or_stay():
    """A larger or equal batch size is taken."""
    model_config = config(max_batch_size=4)
    model_config.set_max_batch_size(4)
    model_config.set_max_batch_size(8)
    assert model_config.as_dict()["max_batch_size"] == 8


def test_max_batch_size_may_not_shrink():
    """A smaller batch size contradicts the configuration."""
    model_config = config(max_batch_size=4)
    with exactly(
        "configuration specified max_batch_size 4, but in auto-complete-config function for model 'M' "
        "specified max_batch_size 3"
    ):
        model_config.set_max_batch_size(3)
    assert model_config.as_dict()["max_batch_size"] == 4


def test_dynamic_batching():
    """Asking for the dynamic batcher sets it, with its defaults."""
    model_config = config()
    model_config.set_dynamic_batching()
    assert model_config.as_dict()["dynamic_batching"] == {}


def test_dynamic_batching_keeps_what_is_set():
    """Options of a dynamic batcher that is configured already stay."""
    model_config = config(dynamic_batching={"max_queue_delay_microseconds": 5})
    model_config.set_dynamic_batching()
    assert model_config.as_dict()["dynamic_batching"] == {"max_queue_delay_microseconds": 5}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_dynamic_batching_beside_another_scheduler(scheduler):
    """A model has one scheduler."""
    with exactly(
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model 'M' "
        "tries to set scheduling_choice as 'dynamic_batching'"
    ):
        config(**{scheduler: {}}).set_dynamic_batching()


def test_add_tensors():
    """New inputs and outputs are appended, and later changes to the argument do not show."""
    model_config = config(input=[{"name": "W", "data_type": "TYPE_INT8", "dims": [1]}])
    added = {**INPUT, "optional": True}
    model_config.add_input(added)
    model_config.add_output(INPUT)
    added["dims"] = []
    assert model_config.as_dict()["input"][1:] == [{**INPUT, "optional": True}]
    assert model_config.as_dict()["output"] == [INPUT]


def test_add_to_nothing():
    """A configuration that mentions no tensors gets its lists."""
    model_config = ModelConfig('{"name": "M"}')
    model_config.add_input(INPUT)
    model_config.add_output(INPUT)
    assert model_config.as_dict() == {"name": "M", "input": [INPUT], "output": [INPUT]}


@pytest.mark.parametrize("kind", ["input", "output"])
def test_repeating_is_merging(kind):
    """Adding a property that the configuration has already is allowed and keeps the other properties."""
    model_config = config(**{kind: [{**INPUT, "format": "FORMAT_NONE"}]})
    getattr(model_config, f"add_{kind}")(INPUT)
    assert model_config.as_dict()[kind] == [{**INPUT, "format": "FORMAT_NONE"}]


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("entry", [{"data_type": "TYPE_INVALID", "dims": []}, {}])
def test_filling(kind, entry):
    """A property that the configuration leaves open is filled."""
    model_config = config(**{kind: [{"name": "X", **entry}]})
    getattr(model_config, f"add_{kind}")(INPUT)
    assert model_config.as_dict()[kind] == [INPUT]


@pytest.mark.parametrize(
    ("kind", "extra", "listed"),
    [
        ("input", "label_filename", "'name', 'data_type', 'dims' and 'optional'"),
        ("output", "optional", "'name', 'data_type' and 'dims'"),
    ],
)
def test_other_properties(kind, extra, listed):
    """Only the properties that a model can know are taken."""
    with exactly(f"{kind} 'X' in auto-complete-config function for model 'M' contains property other than {listed}."):
        getattr(config(), f"add_{kind}")({**INPUT, extra: True})


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    ("missing", "subject"), [("name", "{kind}"), ("data_type", "{kind} 'X'"), ("dims", "{kind} 'X'")]
)
def test_missing_properties(kind, missing, subject):
    """Name, datatype and dims are needed."""
    tensor = {key: value for key, value in INPUT.items() if key != missing}
    with exactly(
        f"{subject.format(kind=kind)} in auto-complete-config function for model 'M' is missing '{missing}' property."
    ):
        getattr(config(), f"add_{kind}")(tensor)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_dimension_without_brackets_is_refused_with_the_list_it_should_be(kind):
    with exactly(
        f"{kind} 'X' in auto-complete-config function for model 'M' has 4 as 'dims', which must be a list: [4]."
    ):
        getattr(config(), f"add_{kind}")({**INPUT, "dims": 4})


@pytest.mark.parametrize("kind", ["input", "output"])
def test_other_datatype(kind):
    """Another datatype than the configured one is refused."""
    with exactly(
        f"unable to load model 'M', configuration expects datatype TYPE_FP32 for {kind} 'X', model provides TYPE_INT8"
    ):
        getattr(config(**{kind: [INPUT]}), f"add_{kind}")({**INPUT, "data_type": "TYPE_INT8"})


@pytest.mark.parametrize("kind", ["input", "output"])
def test_other_dims(kind):
    """Other dims than the configured ones are refused, and nothing is filled."""
    model_config = config(**{kind: [{"name": "X", "data_type": "TYPE_INVALID", "dims": [4]}]})
    with exactly(
        "model 'M', tensor 'X': the model expects dims [-1, 2] but the model configuration specifies dims [4]"
    ):
        getattr(model_config, f"add_{kind}")({**INPUT, "dims": [-1, 2]})
    assert model_config.as_dict()[kind][0]["data_type"] == "TYPE_INVALID"


def test_dims_as_tuple():
    """The same dims are the same in any sequence."""
    config(input=[INPUT]).add_input({**INPUT, "dims": (4,)})


@pytest.mark.parametrize("configured", [{}, {"optional": False}])
def test_other_optional(configured):
    """An input that is configured as required cannot be made optional."""
    with exactly(
        "model 'M', tensor 'X': the model expects optional True but the model configuration specifies optional False"
    ):
        config(input=[{**INPUT, **configured}]).add_input({**INPUT, "optional": True})


def test_optional_unsaid():
    """An optional input stays optional when the model does not mention it."""
    model_config = config(input=[{**INPUT, "optional": True}])
    model_config.add_input(INPUT)
    assert model_config.as_dict()["input"] == [{**INPUT, "optional": True}]


@pytest.mark.parametrize("existing", [{}, {"model_transaction_policy": {"decoupled": True}}])
def test_decoupled(existing):
    """The decoupled property is set, or said again."""
    model_config = config(**existing)
    model_config.set_model_transaction_policy({"decoupled": True})
    assert model_config.as_dict()["model_transaction_policy"] == {"decoupled": True}


def test_decoupled_unsaid():
    """An empty policy says nothing."""
    model_config = config()
    model_config.set_model_transaction_policy({})
    assert model_config.as_dict()["model_transaction_policy"] == {}


def test_decoupled_changed():
    """The decoupled property cannot be changed."""
    with exactly(
        "trying to change decoupled property in auto-complete-config for model 'M', which is already set to 'True'."
    ):
        config(model_transaction_policy={"decoupled": True}).set_model_transaction_policy({"decoupled": False})


def test_other_policy():
    """Only the decoupled property is known."""
    with exactly(
        "model transaction property in auto-complete-config function for model 'M' "
        "contains property other than 'decoupled'."
    ):
        config().set_model_transaction_policy({"decoupled": True, "ordered": True})

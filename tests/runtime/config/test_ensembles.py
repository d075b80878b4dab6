# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles by their own configuration. The messages are Triton's."""

import pytest

from pyruntime.runtime.config.ensembles import EnsembleError, ensemble_spec, validate_ensemble
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.spec import EnsembleSpec, StepSpec


def step(reads, writes, model="m"):
    """A step; `reads` and `writes` are `model's name:tensor`, between spaces."""
    maps = [("input_map", pair) for pair in reads.split()] + [("output_map", pair) for pair in writes.split()]
    entries = " ".join("{} {{ key: '{}' value: '{}' }}".format(field, *pair.split(":")) for field, pair in maps)
    name = f"model_name: '{model}'" if model else ""
    return f"step {{ {name} {entries} }}"


def config(*steps, inputs="I", outputs="O", more=""):
    tensors = [f"input {{ name: '{name}' }}" for name in inputs] + [f"output {{ name: '{name}' }}" for name in outputs]
    text = f"name: 'e' platform: 'ensemble' {' '.join(tensors)} {more} ensemble_scheduling {{ {' '.join(steps)} }}"
    return parse_model_config(text, "config.pbtxt")


ONE = step("A:I", "B:O")


@pytest.mark.parametrize(
    "valid",
    [
        config(ONE),
        config(step("A:I", "B:x"), step("A:x", "B:O")),
        config(step("A:x", "B:O"), step("A:I", "B:x")),  # in any order
        config(step("A:I", "B:x C:y"), step("A:x B:y C:I", "B:O")),
        config(ONE, step("A:I", "B:P"), outputs="OP"),
        config(ONE, step("A:O", "B:I"), outputs="I"),  # an input that is written as well
        config(ONE, more="parameters { key: 'OPTIONAL_OUTPUTS' value { string_value: 'O' } }"),
    ],
)
def test_valid(valid):
    """Tensors may be read by any number of steps, before or behind the one that writes them."""
    validate_ensemble(valid)


@pytest.mark.parametrize(
    ("wrong", "message", "place"),
    [
        (
            config(ONE, more="instance_group {}"),
            "instance group should not be specified for ensemble 'e'",
            ("instance_group", 0),
        ),
        (
            config(ONE, more="optimization {}"),
            "optimization should not be specified for ensemble 'e'",
            ("optimization",),
        ),
        (
            config(
                ONE,
                more="model_warmup { inputs { key: 'X' value {} } } "
                "model_warmup { batch_size: 1 inputs { key: 'I' value {} } inputs { key: 'X' value {} } }",
            ),
            "model_warmup of ensemble 'e' names 'X', which is none of its inputs",
            ("model_warmup", 1),
        ),
        (config(), "must specify 'step' for ensemble 'e'", ("ensemble_scheduling",)),
        (config(step("A:I", "B:O", "")), "must specify 'model_name' in step 0 of ensemble 'e'", 0),
        (config(step("", "B:O")), "must specify 'input_map' in step 0 of ensemble 'e'", 0),
        (config(ONE, step("A:I", "")), "must specify 'output_map' in step 1 of ensemble 'e'", 1),
        (
            config(ONE, step("A:I", "B:O")),
            "ensemble tensor 'O' can appear in an output map only once for ensemble 'e' step 1",
            (1, "output_map"),
        ),
        (config(ONE, inputs="IJ"), "ensemble input 'J' for ensemble e' is not used", ("input", 1)),
        (config(ONE, outputs="OP"), "ensemble output 'P' for ensemble e' is not used", ("output", 1)),
        (
            config(step("A:I B:x", "B:O")),
            "output 'O' for ensemble 'e' is not written: at least one of its depending tensors, 'x', is not connected",
            ("output", 0),
        ),
        (config(step("A:I", "B:O C:x")), "ensemble tensor 'x' is unused in ensemble 'e'", 0),
        (
            config(step("A:I B:y", "B:x"), step("A:x", "B:y C:O")),
            "output 'O' for ensemble 'e' is not written: at least one of its depending tensors, 'x', is not connected",
            ("output", 0),
        ),
        (
            config(ONE, more="parameters { key: 'OPTIONAL_OUTPUTS' value { string_value: 'O, P' } }"),
            "OPTIONAL_OUTPUTS of ensemble 'e' names 'P', which is none of its outputs",
            ("parameters",),
        ),
    ],
)
def test_wrong(wrong, message, place):
    """The message, and the place of the mistake."""
    with pytest.raises(EnsembleError) as caught:
        validate_ensemble(wrong)
    assert str(caught.value) == message
    if isinstance(place, int):
        place = (place,)
    if isinstance(place[0], int):
        place = ("ensemble_scheduling", "step", *place)
    assert caught.value.place == place


def test_spec():
    """The maps are in order of the models' names, and optional outputs between commas or spaces."""
    more = "parameters { key: 'OPTIONAL_OUTPUTS' value { string_value: ' O, P' } }"
    spec = ensemble_spec(config(step("B:I A:I", "D:O C:P"), outputs="OP", more=more))
    assert spec == EnsembleSpec((StepSpec("m", 0, {"A": "I", "B": "I"}, {"C": "P", "D": "O"}),), 0, frozenset("OP"))
    assert list(spec.steps[0].inputs) == ["A", "B"]
    assert ensemble_spec(parse_model_config("name: 'm'", "config.pbtxt")) is None

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles beside the models of their steps. The messages are Triton's."""

from dataclasses import replace

import pytest

from pyruntime.runtime.config.ensemble_steps import check_steps, inherited_labels
from pyruntime.runtime.config.ensembles import EnsembleError
from tests.runtime.config.test_ensembles import step
from tests.runtime.model_specs import spec_from


def tensors(noun, text):
    """Tensors, as `name:dims` or `name:dims:type`, between spaces; a name with "?" is optional."""
    found = []
    for each in text.split():
        name, dims, *rest = each.split(":")
        optional = "optional: true" if name.endswith("?") else ""
        datatype = rest[0] if rest else "FP32"
        reshape = f"reshape {{ shape: [{rest[1]}] }}" if len(rest) > 1 else ""
        found.append(
            f"{noun} {{ name: '{name.rstrip('?')}' data_type: TYPE_{datatype} dims: [{dims}] {optional} {reshape} }}"
        )
    return " ".join(found)


def model(name="m", reads="A:4", writes="B:4", batch=0, more=""):
    text = f"{tensors('input', reads)} {tensors('output', writes)} max_batch_size: {batch} {more}"
    return spec_from(f"backend: 'python' {text}", name)


def ensemble(*steps, reads="I:4", writes="O:4", batch=0):
    text = f"{tensors('input', reads)} {tensors('output', writes)} max_batch_size: {batch}"
    return spec_from(f"platform: 'ensemble' {text} ensemble_scheduling {{ {' '.join(steps)} }}", "e")


DECOUPLED = "model_transaction_policy { decoupled: true }"
ONE = step("A:I", "B:O")
TWO = (step("A:I", "B:x"), step("A:x", "B:O"))


@pytest.mark.parametrize(
    ("spec", "models"),
    [
        (ensemble(ONE), [model()]),
        (ensemble(ONE), [model(reads="A:-1", writes="B:-1")]),
        (ensemble(ONE, reads="I:-1"), [model()]),
        (ensemble(ONE), [model(reads="A:4 C?:1")]),
        (ensemble(ONE), [model(writes="B:4 C:1")]),
        (ensemble(ONE, batch=4), [model(batch=4)]),
        (ensemble(ONE, batch=4), [model(reads="A:4", writes="B:4")]),  # which does not batch
        # A shape with the batch dimension, for a model that does not batch.
        (ensemble(ONE, reads="I:-1,4", writes="O:-1,4"), [model(batch=8)]),
        (ensemble(ONE, reads="I:2,2:FP32:4"), [model()]),
    ],
)
def test_fit(spec, models):
    """These fit together."""
    assert check_steps(spec, models) is False


@pytest.mark.parametrize(
    ("spec", "models", "message", "place"),
    [
        (
            ensemble(ONE, batch=8),
            [model(batch=4)],
            "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to "
            "be 4",
            (0,),
        ),
        (
            ensemble(step("A:I X:I", "B:O")),
            [model()],
            "in ensemble e, ensemble tensor I is mapping to non-existing input X in model m",
            (0, "input_map"),
        ),
        (
            ensemble(ONE),
            [model(reads="A:4 C:1")],
            "in ensemble e, input C in model m is not mapped to any ensemble tensors",
            (0, "input_map"),
        ),
        (
            ensemble(TWO[0], step("A:x", "Y:O")),
            [model(), model("n")],
            "in ensemble e, ensemble tensor O is mapped from non-existing output Y in model n",
            (1, "output_map"),
        ),
        (
            ensemble(ONE),
            [model(reads="A:4:STRING")],
            "in ensemble e, ensemble tensor I: inconsistent data type: TYPE_FP32 is inferred from model e while "
            "TYPE_STRING is inferred from model m",
            (0,),
        ),
        (
            ensemble(*TWO),
            [model(writes="B:-1,2", batch=4), model("n", reads="A:-1", batch=4)],
            "in ensemble e, ensemble tensor x: inconsistent shape: [-1,-1,2] is inferred from model m while [-1,-1] is "
            "inferred from model n",
            (1,),
        ),
        (
            ensemble(ONE, reads="I:4:FP32:2,2"),
            [model()],
            "in ensemble e, ensemble tensor I: inconsistent shape: [2,2] is inferred from model e while [4] is "
            "inferred from model m",
            (0,),
        ),
    ],
)
def test_do_not_fit(spec, models, message, place):
    """The first difference is named, with the place of it."""
    with pytest.raises(EnsembleError) as caught:
        check_steps(spec, models)
    assert str(caught.value) == message
    assert caught.value.place == ("ensemble_scheduling", "step", *place)


JOIN = (step("A:I", "B:x"), step("A:I", "B:y"), step("A:x C:y", "B:O"))


def test_decoupled():
    """An ensemble with a decoupled step is decoupled; outputs of one decoupled step may meet again."""
    assert check_steps(ensemble(*TWO), [model(), model("d", more=DECOUPLED)])
    steps = (step("A:I", "B:x C:y"), step("A:x", "B:z"), step("A:z C:y", "B:O"))
    source = model("d", writes="B:4 C:4", more=DECOUPLED)
    assert check_steps(ensemble(*steps), [source, model(), model("n", reads="A:4 C:4")])
    assert not check_steps(ensemble(*JOIN), [model(), model(), model("n", reads="A:4 C:4")])


@pytest.mark.parametrize("decoupled", [(True, False), (False, True), (True, True)])
def test_tensors_of_different_origins(decoupled):
    """A step cannot read from two decoupled steps, nor from one and from elsewhere."""
    models = [model("d", more=DECOUPLED if each else "") for each in decoupled]
    message = "in ensemble e, step of model '{}' receives inputs originated from different decoupled models"
    with pytest.raises(EnsembleError) as caught:
        check_steps(ensemble(*JOIN), [*models, model("n", reads="A:4 C:4")])
    assert str(caught.value) == message.format("e")  # the ensemble is the first to name O
    with pytest.raises(EnsembleError) as caught:
        check_steps(ensemble(*JOIN[:2], writes="x:4 y:4"), models)
    assert str(caught.value) == message.format("e")
    steps = (*JOIN[:2], step("A:x C:y", "B:z"), step("A:z", "B:O"))
    with pytest.raises(EnsembleError) as caught:
        check_steps(ensemble(*steps), [*models, model("n", reads="A:4 C:4"), model("last")])
    assert str(caught.value) == message.format("n")


def test_labels():
    """An output without labels of its own has those of the step's output that writes it."""
    spec = ensemble(step("A:I", "B:x C:O"), step("A:x", "B:P"), writes="O:4 P:4")
    models = [
        replace(model(writes="B:4 C:4"), labels={"B": ("b",), "C": ("c",)}),
        replace(model(), labels={"B": ("p",)}),
    ]
    assert inherited_labels(spec, models).labels == {"O": ("c",), "P": ("p",)}
    own = replace(spec, labels={"P": ("own",)})
    assert inherited_labels(own, models).labels == {"O": ("c",), "P": ("own",)}

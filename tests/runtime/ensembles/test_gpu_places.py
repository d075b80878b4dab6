# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of an ensemble may lie on GPUs: where all who read them read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.ensembles.gpu_places import ensemble_places, places_of_step
from pyruntime.runtime.ensembles.graph import OUTPUTS
from pyruntime.runtime.gpus.tensor_places import TensorPlaces, reads_of
from pyruntime.utils.request_codec import MEMORY_GPU

from .graphs import Ensemble, Node, ensembles

# The places of outputs on GPU 0 and on GPU 1.
PLACES = [(0, 0, MEMORY_GPU, gpu) for gpu in range(2)]
FIRST = Node([("in", False)], ["a"])
LAST = Node([("a", False)], ["out"])
CHAIN = [FIRST, LAST]


def ensemble_of(nodes, inputs=("in",), outputs=("out",)):
    return Ensemble(list(inputs), set(inputs), list(nodes), list(outputs), set(), list(outputs))


def on(gpu, node, reads=True):
    """The places of the model of a node, all of whose instances are on this GPU."""
    inputs = {f"i{number}": gpu for number in range(len(node.reads))} if reads else {}
    return TensorPlaces(inputs, {f"o{number}": PLACES[gpu] for number in range(len(node.writes))})


def reads_main_memory(gpu, node):
    return on(gpu, node, reads=False)


def nowhere(gpu, node):
    return None


def placed(graphs, *models):
    """The plan for all outputs, and the places of the models of its steps."""
    return graphs.graph().plan(None), dict(enumerate(models))


def test_chain():
    """All models are on one GPU and read there: so does the ensemble, whose output may stay there."""
    plan, models = placed(ensemble_of(CHAIN), on(1, FIRST), on(1, LAST))
    assert ensemble_places(plan, models) == ({"in": 1}, {"out": PLACES[1]})
    first, last = (plan.steps[index] for index in (0, 1))
    for wanted in (None, {}, {"out": PLACES[0]}, {"other": PLACES[1]}):
        assert places_of_step(first, plan, models, wanted) == {"o0": PLACES[1]}
        assert places_of_step(last, plan, models, wanted) is None
    assert places_of_step(last, plan, models, {"out": PLACES[1]}) == {"o0": PLACES[1]}


@pytest.mark.parametrize(
    ("first", "last", "reads", "outputs", "between"),
    [
        (on(0, FIRST), reads_main_memory(0, LAST), {"in": 0}, {"out": PLACES[0]}, None),
        (reads_main_memory(0, FIRST), on(0, LAST), {}, {"out": PLACES[0]}, {"o0": PLACES[0]}),
        (on(0, FIRST), on(1, LAST), {"in": 0}, {"out": PLACES[1]}, None),
        (on(0, FIRST), None, {"in": 0}, {}, None),
        (None, on(0, LAST), {}, {"out": PLACES[0]}, None),
    ],
    ids=["last reads main memory", "first reads main memory", "two GPUs", "last elsewhere", "first elsewhere"],
)
def test_models_that_differ(first, last, reads, outputs, between):
    """The input is for the first model to say, the output for the last one, and the tensor between them for both."""
    plan, models = placed(ensemble_of(CHAIN), first, last)
    assert ensemble_places(plan, models) == (reads, outputs)
    assert places_of_step(plan.steps[0], plan, models, None) == between


BRANCHES = (Node([("in", False)], ["x"]), Node([("in", False)], ["y"]))


@pytest.mark.parametrize("second", [nowhere(0, BRANCHES[1]), on(1, BRANCHES[1]), reads_main_memory(0, BRANCHES[1])])
def test_two_readers(second):
    """One reader that reads a tensor elsewhere has it in main memory; nobody reads it twice."""
    plan, models = placed(ensemble_of(BRANCHES, outputs=["x", "y"]), on(0, BRANCHES[0]), second)
    assert reads_of(ensemble_places(plan, models)) == {}
    models[1] = on(0, BRANCHES[1])
    assert ensemble_places(plan, models).reads == {"in": 0}


def test_inputs_of_one_step_that_differ():
    """A model may read one of its inputs on the GPU, and another one elsewhere: and so an ensemble does."""
    node = Node([("in", False), ("in", False)], ["out"])
    for inputs, reads in (({"i0": 0, "i1": 0}, {"in": 0}), ({"i0": 0}, {}), ({"i0": 0, "i1": 1}, {})):
        assert reads_of(ensemble_places(*placed(ensemble_of([node]), TensorPlaces(inputs, {})))) == reads


def test_output_that_a_step_reads():
    """An output that a step reads, too, stays only where both want it."""
    graphs = ensemble_of(CHAIN, outputs=["a", "out"])
    plan, models = placed(graphs, on(0, FIRST), reads_main_memory(0, LAST))
    wanted = dict.fromkeys(("a", "out"), PLACES[0])
    assert ensemble_places(plan, models).outputs == {"out": PLACES[0]}
    assert places_of_step(plan.steps[0], plan, models, wanted) is None
    models[1] = on(0, LAST)
    assert ensemble_places(plan, models).outputs == wanted
    assert places_of_step(plan.steps[0], plan, models, wanted) == {"o0": PLACES[0]}
    assert places_of_step(plan.steps[0], plan, models, {"out": PLACES[0]}) is None


def test_input_that_is_an_output():
    """No step decides where an input of the ensemble goes that is its output, too: it is in main memory."""
    graphs = ensemble_of([FIRST], outputs=["in", "a"])
    places = ensemble_places(*placed(graphs, on(0, FIRST)))
    assert places == ({}, {"a": PLACES[0]})


@pytest.mark.parametrize("models", [(None, None), (TensorPlaces({}, {}), None)])
def test_main_memory(models):
    """An ensemble has no places if no tensor of its own may lie on a GPU."""
    assert ensemble_places(*placed(ensemble_of(CHAIN), *models)) is None


@given(ensembles(), st.data())
def test_all_readers_agree(graphs, data):
    """Whatever the request asks for: what lies on a GPU is read there by all steps. What nobody objects to stays."""
    graph = graphs.graph()
    answers = st.sampled_from([on, reads_main_memory, nowhere])
    models = {index: data.draw(answers)(data.draw(st.integers(0, 1)), node) for index, node in enumerate(graphs.nodes)}
    places = ensemble_places(graph.plan(None), models) or TensorPlaces({}, {})
    plan = graph.plan(graphs.requested)
    wanted = data.draw(st.sampled_from([None, places.outputs, dict.fromkeys(graphs.outputs, PLACES[0])]))
    assert places.reads.keys() <= set(graphs.inputs)
    may_lie = dict(places.reads)
    for step in plan.steps.values():
        staying = places_of_step(step, plan, models, wanted) or {}
        for name, tensor in step.outputs:
            answer = models[step.index]
            if answer is None:
                assert name not in staying
                continue
            made = answer.outputs[name]
            objections = [
                reader
                for reader in plan.readers.get(tensor, ())
                if (
                    (wanted or {}).get(tensor) != made
                    if reader == OUTPUTS
                    else not reads_there(graphs.nodes[reader], models[reader], tensor, made)
                )
            ]
            assert (name in staying) == (not objections)
            if name in staying:
                may_lie[tensor] = made[3]
    for tensor, gpu in may_lie.items():
        for index in plan.steps:
            node = graphs.nodes[index]
            if any(tensor == read for read, _ in node.reads):
                assert reads_there(node, models[index], tensor, PLACES[gpu])


def reads_there(node, model, tensor, place):
    names = [f"i{number}" for number, (read, _) in enumerate(node.reads) if read == tensor]
    return model is not None and all(model.reads.get(name) == place[3] for name in names)

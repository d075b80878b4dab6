# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Responses of an ensemble, made of the tensors of its steps."""

from types import SimpleNamespace

import pytest

from pyruntime.runtime.ensembles.responses import make_response
from pyruntime.runtime.ensembles.tensors import Source
from pyruntime.runtime.requests.types import ClientContents, KeptOutputs, OutputPlace, OutputTensor
from pyruntime.utils.addresses import address


class Region:
    """A region that counts its uses."""

    def __init__(self, number):
        self.number = number
        self.uses = 0

    def count_on(self):
        self.uses += 1

    def close(self):
        self.uses -= 1

    def read(self, offset, size):
        return bytes(range(offset, offset + size))


def output(name, region=None, place=None):
    if region is None:
        return OutputTensor(name, "INT8", [1], b"x", 0, place)
    return OutputTensor(name, "INT8", [1], b"x", address(region.number, 0), place)


class Plan:
    """A plan, as far as responses know it: `outputs` are their names."""

    def __init__(self, outputs):
        self.outputs = list(outputs)


class Step:
    """What a step has written: tensors in one region, by their names in the ensemble. `freed` says how often."""

    def __init__(self, uses, tensors, *regions, batch=0, mark=None):
        self.freed = 0
        self.source = Source(uses, regions, self._free, batch, mark)
        self.source.tensors = tensors

    def _free(self):
        self.freed += 1


def ensemble(batch=0):
    return SimpleNamespace(
        spec=SimpleNamespace(name="e"), version=3, is_batching=batch > 0, reshapes=False, dims={"A": [1]}
    )


def made(known, pace=None, times=None, batch=0, plan=None):
    return make_response(ensemble(batch), plan or Plan(known), "7", known, pace, times)


def test_outputs_of_several_steps(caplog):
    """Each is where its step has written it, and each region is named once. One that is absent is only said."""
    caplog.set_level("DEBUG", "pyruntime.ensembles")
    one, two = Region(1), Region(2)
    tensors = {"A": output("o0", one), "B": output("o1", one)}
    first, second = Step(2, tensors, one), Step(1, {"C": output("o0", two)}, two)
    response = made({"A": first.source, "gone": None, "C": second.source, "B": first.source})
    assert (response.model_name, response.model_version, response.id) == ("e", 3, "7")
    assert [(each.name, each.address) for each in response.outputs] == [
        ("A", address(1, 0)),
        ("C", address(2, 0)),
        ("B", address(1, 0)),
    ]
    assert caplog.messages == ["Composing models did not output tensor gone"]
    assert response.regions == (one, two)
    assert (first.freed, second.freed) == (0, 0)
    response.release()
    assert (first.freed, second.freed, one.uses, two.uses) == (1, 1, 0, 0)


def test_pace_ends_when_the_response_is_taken():
    """The decoupled step goes on before the client has read everything; it goes on once."""
    first, second = Step(1, {}), Step(1, {"A": output("A")})
    response = made({"A": second.source}, first.source)
    response.take()
    response.take()
    assert (first.freed, second.freed) == (1, 0)
    response.release()
    assert (first.freed, second.freed) == (1, 1)


def test_pace_of_a_response_that_is_not_taken():
    """It ends with the response."""
    first, second = Step(1, {}), Step(1, {"A": output("A")})
    made({"A": second.source}, first.source).release()
    assert (first.freed, second.freed) == (1, 1)


@pytest.mark.parametrize("batch", [0, 2])
def test_outputs_that_are_alike_each_time(batch):
    """They are made once for each plan, batch and selection of outputs, and have their regions each time."""
    region, plan = Region(1), Plan(["A"])
    kept = KeptOutputs([output("o0", region)])

    def respond(plan):
        step = Step(1, {"A": kept[0]}, region, batch=batch)
        step.source.kept = kept
        return made({"A": step.source}, batch=batch, plan=plan)

    first, second, other = respond(plan), respond(plan), respond(Plan(["A"]))
    assert first.outputs is second.outputs
    assert type(first.outputs) is KeptOutputs
    assert first.outputs is not other.outputs
    assert first.regions == second.regions == (region,)


def test_shape_of_a_step_that_does_not_batch():
    """It gets the dimension of the batch that the ensemble's client expects."""
    step = Step(1, {"A": output("A")})
    assert made({"A": step.source}, batch=1).outputs[0].shape == [1, 1]


def test_output_in_memory_of_a_client():
    """An input that is passed on is read, because the client may shrink its memory."""
    memory = Region(9)
    place = OutputPlace("", 0, 3, ClientContents(memory, address(9, 4), 3))
    step = Step(1, {"A": output("in", memory, place)}, memory)
    response = made({"A": step.source})
    assert [(each.name, bytes(each.data), each.address, each.place) for each in response.outputs] == [
        ("A", b"\x04\x05\x06", 0, None)
    ]
    assert response.regions == ()


def test_sequence_of_the_first_step_that_says_so():
    """The client is told of it."""
    first, second, third = (Step(1, {}, mark=mark) for mark in (None, (9, 2), (8, 1)))
    known = {name: step.source for name, step in (("A", first), ("B", second), ("C", third))}
    for name, source in known.items():
        source.tensors = {name: output(name)}
    assert made(known).parameters == {"sequence_id": 9, "sequence_start": False, "sequence_end": True}

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What exported programs take and return."""

from collections import OrderedDict

import pytest

from pyruntime.backends.pytorch.exported import describe_exported, rows_max
from pyruntime.backends.pytorch.naming import Results
from pyruntime.backends.toolkit.settings import TensorSpec
from pyruntime.utils.errors import LoadError

torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def exported(forward, *arguments, most=None):
    module = torch.nn.Module()
    module.forward = forward
    rows = torch.export.Dim("rows", max=most)
    shapes = tuple({0: rows} if hasattr(each, "dtype") else None for each in arguments)
    return torch.export.export(module, arguments, dynamic_shapes=shapes)


def test_results_that_are_no_tensors():
    """Sizes and constants are left out, and the places of other results stay."""
    program = exported(lambda a: (a.shape[0], a * 2, 7), torch.ones(2, 3))
    inputs, outputs = describe_exported(program, "m")
    assert inputs == [TensorSpec("a", "TYPE_FP32", (-1, 3))]
    assert outputs == [TensorSpec("OUTPUT__1", "TYPE_FP32", (-1, 3))]
    program = exported(lambda a: {"size": a.shape[0], "twice": a * 2}, torch.ones(2, 3))
    assert describe_exported(program, "m")[1] == [TensorSpec("twice", "TYPE_FP32", (-1, 3))]
    with pytest.raises(LoadError, match=r"^model 'm' returns no tensor$"):
        describe_exported(exported(lambda a: a.shape[0], torch.ones(2, 3)), "m")


def test_arguments_that_are_no_tensors():
    program = exported(lambda a, n: a + n, torch.ones(2, 3), 3)
    with pytest.raises(LoadError, match=r"^model 'm' was exported with an argument that is no tensor, 3, which cannot"):
        describe_exported(program, "m")


def nested(a):
    return {"both": (a.int(), a), 0: a.double(), "twice": a * 2}


def test_results_in_results():
    """Results in a tuple or dict of a result are left out as well, and the other ones keep their names.

    These are the ones by which an answer is found in what the program returns.
    """
    doubled, whole = TensorSpec("0", "TYPE_FP64", (-1, 3)), TensorSpec("twice", "TYPE_FP32", (-1, 3))
    outputs = describe_exported(exported(nested, torch.ones(2, 3)), "m")[1]
    assert outputs == [doubled, whole]
    names = [each.name for each in outputs]
    assert list(Results(names).find(nested(torch.ones(2, 3)), names)) == names
    listed = describe_exported(exported(lambda a: [(a.int(), a), a.double()], torch.ones(2, 3)), "m")[1]
    assert listed == [TensorSpec("OUTPUT__1", "TYPE_FP64", (-1, 3))]
    ordered = describe_exported(exported(lambda a: OrderedDict(twice=a * 2), torch.ones(2, 3)), "m")[1]
    assert ordered == [whole]


@pytest.mark.parametrize("pair", [list, lambda pair: {"p": pair[0], "q": pair[1]}], ids=["list", "dict"])
def test_tensors_in_arguments(pair):
    """A program that takes a list or dict of tensors is refused, as no request can call it."""
    one = torch.ones(2, 3)
    program = torch.export.export(Joined(), (pair([one, one]),))
    with pytest.raises(LoadError, match=r"^model 'm' was exported with an argument that is no tensor, .*xs_.*, which"):
        describe_exported(program, "m")


class Joined(torch.nn.Module):
    def forward(self, xs):
        return sum(xs.values() if isinstance(xs, dict) else xs)


@pytest.mark.parametrize("most", [3, None])
def test_bounds(most):
    """The bound of the first dimension is that of batches."""
    assert rows_max(exported(lambda a, b: a + b, torch.ones(2, 3), torch.ones(2, 3), most=most)) == most

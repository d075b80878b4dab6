# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""One call of a framework for the whole batch, and its outputs for each request."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.batching import Arrays, BatchExecutor


class Doubling:
    """A framework that doubles A to B, adds up its rows to S, and fails for negative numbers; notes its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, inputs, names):
        self.calls.append(({name: array.shape for name, array in inputs.items()}, names))
        if any((array < 0).any() for array in inputs.values()):
            raise ValueError("a number is negative")
        made = {"B": inputs["A"] * 2, "S": inputs["A"].sum()}
        return {name: made[name] for name in names}


def request(array, outputs=("B",), **more):
    tensors = [pb_utils.Tensor(name, each) for name, each in {"A": array, **more}.items()]
    return pb_utils.InferenceRequest(inputs=tensors, requested_output_names=outputs, model_name="m")


def rows(count, value=1, columns=2):
    return np.full((count, columns), value, np.float32)


@pytest.fixture
def framework():
    return Doubling()


@pytest.fixture
def batching(framework):
    return BatchExecutor(framework, Arrays(), ["B", "S"], True)


def outputs_of(response):
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def test_one_call_for_all(framework, batching):
    """Requests of one shape are one call; each gets its rows, in its order."""
    responses = batching.execute([request(rows(1)), request(rows(3, 5)), request(rows(2, 7))])
    assert framework.calls == [({"A": (6, 2)}, ["B"])]
    assert [outputs_of(each)["B"] for each in responses] == [[[2, 2]], [[10, 10]] * 3, [[14, 14]] * 2]


def test_outputs_are_views(batching):
    """The parts of an output share its memory."""
    first, second = batching.execute([request(rows(1)), request(rows(1))])
    bases = [each.output_tensors()[0].as_numpy().base for each in (first, second)]
    assert bases[0] is bases[1] is not None


def test_a_single_request_is_not_copied():
    """The framework gets the array of the request itself."""
    seen = []

    def run(inputs, names):
        seen.append(inputs["A"])
        return {"B": inputs["A"]}

    array = rows(2)
    BatchExecutor(run, Arrays(), ["B"], True).execute([request(array)])
    assert seen[0] is array


def test_other_shapes_are_other_calls(framework, batching):
    """Only requests whose other dimensions and inputs agree are joined, whatever the order of their inputs."""
    requests = [request(rows(1, columns=2)), request(rows(1, columns=3)), request(rows(2, columns=2))]
    requests += [request(rows(1), C=rows(1)), request(rows(1), C=rows(1))]
    responses = batching.execute(requests)
    assert [call[0]["A"] for call in framework.calls] == [(3, 2), (1, 3), (2, 2)]
    assert [len(outputs_of(each)["B"]) for each in responses] == [1, 1, 2, 1, 1]


def test_only_what_is_asked_for(framework):
    """The framework computes what any request wants; each request gets what it wants."""
    unbatched = BatchExecutor(framework, Arrays(), ["B", "S"], False)
    (only,) = unbatched.execute([request(rows(1), outputs=("S",))])
    assert outputs_of(only) == {"S": [2]}
    assert framework.calls[-1][1] == ["S"]
    (both,) = unbatched.execute([request(rows(1), outputs=("S", "B"))])
    assert outputs_of(both) == {"B": [[2, 2]], "S": [2]}


def test_without_batching(framework):
    """Every request is a call."""
    unbatched = BatchExecutor(framework, Arrays(), ["B", "S"], False)
    unbatched.execute([request(rows(1)), request(rows(1))])
    assert [call[0]["A"] for call in framework.calls] == [(1, 2), (1, 2)]


def test_the_fault_of_one(framework, batching):
    """If a call for several fails, only the requests that are at fault fail."""
    good, bad, last = batching.execute([request(rows(1)), request(rows(1, -1)), request(rows(1))])
    assert (outputs_of(good), outputs_of(last)) == ({"B": [[2, 2]]}, {"B": [[2, 2]]})
    assert bad.error().message() == "a number is negative"
    assert len(framework.calls) == 4


def test_an_input_that_cannot_be_read(framework):
    """It is the fault of its request only."""

    class Careful(Arrays):
        def read(self, tensor):
            array = super().read(tensor)
            if array.shape[0] == 2:
                raise ValueError("two rows")
            return array

    good, bad = BatchExecutor(framework, Careful(), ["B"], True).execute([request(rows(1)), request(rows(2))])
    assert outputs_of(good) == {"B": [[2, 2]]}
    assert bad.error().message() == "two rows"


def test_an_output_without_the_batch(batching):
    """An output that has not one row for each row of the inputs cannot be split."""
    (response,) = batching.execute([request(rows(2), outputs=("S",))])
    assert response.error().message() == (
        "output 'S' has the shape [], but its first dimension must be that of the batch, 2: set max_batch_size to 0 if "
        "the model does not batch"
    )

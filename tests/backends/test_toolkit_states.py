# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The states of sequences in a call of a framework: outputs that every response has, or that replace an input."""

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.batching import Arrays, BatchExecutor
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.utils.errors import ConfigError

IN_PLACE = {"use_same_buffer_for_input_output": True}


def settings(*states, **batching):
    return read_settings({"name": "m", "max_batch_size": 4, "sequence_batching": {"state": list(states), **batching}})


def state(taken, made, **fields):
    return {"input_name": taken, "output_name": made, "data_type": "TYPE_FP32", "dims": ["2"], **fields}


def executor(run, *states, outputs=("B",)):
    return BatchExecutor(run, Arrays(), list(outputs), True, settings(*states).states)


def row(value):
    return np.full((1, 2), value, np.float32)


def request(outputs=("B",), **inputs):
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    return pb_utils.InferenceRequest(inputs=tensors, requested_output_names=outputs, model_name="m")


def adding(inputs, names):
    """B and the next S are the sum of A and S; adds nothing to the inputs, and fails for negative sums."""
    total = inputs["A"] + inputs["S"]
    if (total < 0).any():
        raise ValueError("a sum is negative")
    made = {"B": total, "N": total.copy()}
    return {name: made[name] for name in names}


def outputs_of(response):
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


class TestReturned:
    def test_whatever_is_asked_for(self):
        """A response has the next state whether or not the client asks for it, and each request its own."""
        batches = executor(adding, state("S", "N"))
        first, second = batches.execute([request(A=row(1), S=row(10)), request((), A=row(2), S=row(20))])
        assert outputs_of(first) == {"B": [[11, 11]], "N": [[11, 11]]}
        assert outputs_of(second) == {"N": [[22, 22]]}

    def test_one_that_is_an_output(self):
        """A state that is an output, too, is there once."""
        (response,) = executor(adding, state("S", "N"), outputs=("N",)).execute([request(("N",), A=row(1), S=row(2))])
        assert outputs_of(response) == {"N": [[3, 3]]}

    def test_a_failure(self):
        """A request that fails has no state, and the others of its batch have theirs."""
        batches = executor(adding, state("S", "N"))
        good, bad = batches.execute([request(A=row(1), S=row(1)), request(A=row(-5), S=row(1))])
        assert outputs_of(good)["N"] == [[2, 2]]
        assert bad.has_error()


class TestInPlace:
    def test_the_input_becomes_the_output(self):
        """The next state is in the memory of the input, and not in the response."""
        states = row(10), row(20)
        batches = executor(adding, state("S", "N", **IN_PLACE))
        responses = batches.execute([request(A=row(1), S=states[0]), request(A=row(2), S=states[1])])
        assert [outputs_of(each) for each in responses] == [{"B": [[11, 11]]}, {"B": [[22, 22]]}]
        assert [each.tolist() for each in states] == [[[11, 11]], [[22, 22]]]

    def test_one_that_is_an_output(self):
        """A client that asks for the state gets it as well."""
        kept = row(2)
        batches = executor(adding, state("S", "N", **IN_PLACE), outputs=("B", "N"))
        (response,) = batches.execute([request(("N",), A=row(1), S=kept)])
        assert outputs_of(response) == {"N": [[3, 3]]}
        assert kept.tolist() == [[3, 3]]

    def test_a_failure(self):
        """The state of a request that fails stays; no request of its batch changes its state twice."""
        states = row(10), row(1)
        batches = executor(adding, state("S", "N", **IN_PLACE))
        good, bad = batches.execute([request(A=row(1), S=states[0]), request(A=row(-5), S=states[1])])
        assert outputs_of(good) == {"B": [[11, 11]]}
        assert bad.has_error()
        assert [each.tolist() for each in states] == [[[11, 11]], [[1, 1]]]

    def test_another_size(self):
        """A state that does not fit is an error of its request, and changes nothing."""
        kept = row(1)
        batches = executor(lambda inputs, names: {"N": np.ones((1, 3), np.float32)}, state("S", "N", **IN_PLACE))
        (response,) = batches.execute([request(A=row(1), S=kept)])
        assert response.error().message() == (
            "the state 'N' has the shape [1, 3], and cannot take the place of 'S' with [1, 2], as "
            "use_same_buffer_for_input_output wants: a state whose size varies needs use_growable_memory as well, or "
            "neither of them"
        )
        assert kept.tolist() == [[1, 1]]

    def test_a_request_without_the_state(self):
        """A sample of a warm-up may lack it, where the framework does not need it."""
        batches = executor(lambda inputs, names: {"N": inputs["A"]}, state("S", "N", **IN_PLACE))
        (response,) = batches.execute([request(A=row(1))])
        assert response.error().message() == (
            "the request has no 'S', whose place the state 'N' takes: a sample of model_warmup lists states like inputs"
        )

    def test_outputs_that_are_inputs(self):
        """A model may return its inputs: the old state as an output, or states in exchange."""
        first, second = row(1), row(2)
        run = lambda inputs, names: {"B": inputs["S"], "N": inputs["T"], "O": inputs["S"]}  # noqa: E731
        batches = executor(run, state("S", "N", **IN_PLACE), state("T", "O", **IN_PLACE))
        (response,) = batches.execute([request(S=first, T=second)])
        assert outputs_of(response) == {"B": [[1, 1]]}
        assert (first.tolist(), second.tolist()) == ([[2, 2]], [[1, 1]])

    def test_what_grows_is_returned(self):
        """With use_growable_memory the response has the state, which may have any size."""
        batches = executor(adding, state("S", "N", **IN_PLACE, use_growable_memory=True))
        (response,) = batches.execute([request(A=row(1), S=row(10))])
        assert outputs_of(response)["N"] == [[11, 11]]

    def test_strings(self):
        """Strings are in memory of the framework, so that they cannot be in place."""
        with pytest.raises(ConfigError, match=r"^model 'm' has the state 'S' of strings with use_same_buffer"):
            settings(state("S", "N", **{**IN_PLACE, "data_type": "TYPE_STRING"}))

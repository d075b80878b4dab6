# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A pipeline, with other models and without them."""

import numpy as np
import pytest

from pyruntime.testing import InferenceError

A, B = np.arange(16, dtype=np.float32), np.ones(16, dtype=np.float32)


def test_with_functions(load_model):
    """A test can replace the other models by functions, and check their calls."""
    model = load_model(
        "model_repository/bls",
        callees={
            "add_sub": lambda inputs: {"OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"]},
            "scaled": lambda inputs: {"OUTPUT": inputs["INPUT"] * 10},
        },
    )
    assert model.infer({"INPUT0": A, "INPUT1": B})["OUTPUT"].tolist() == ((A + B) * 10).tolist()
    first, second = model.calls
    assert (first.model_name, second.model_name) == ("add_sub", "scaled")
    assert first.requested_outputs == {"OUTPUT0"}
    np.testing.assert_array_equal(first["INPUT0"], A)
    np.testing.assert_array_equal(second["INPUT"], A + B)


def test_with_the_models(load_model):
    """A test can load the other models, too."""
    callees = {name: f"model_repository/{name}" for name in ("add_sub", "scaled")}
    model = load_model("model_repository/bls", callees=callees)
    assert model.infer({"INPUT0": A, "INPUT1": B})["OUTPUT"].tolist() == ((A + B) * 2.5).tolist()


def test_other_model_fails(load_model):
    """An error of another model is one of the pipeline."""
    model = load_model("model_repository/bls", callees={"add_sub": lambda _: ValueError("no")})
    with pytest.raises(InferenceError, match="message: TritonModelException: no"):
        model.infer({"INPUT0": A, "INPUT1": B})
    assert len(model.calls) == 1


def test_other_model_is_missing(load_model):
    """A missing model is an error of the request."""
    with pytest.raises(InferenceError, match="Model 'add_sub' is not ready"):
        load_model("model_repository/bls").infer({"INPUT0": A, "INPUT1": B})

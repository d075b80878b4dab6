# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Three calls at once."""

import numpy as np

INPUT = np.arange(16, dtype=np.float32)


def test_with_functions(load_model):
    """Each output is that of one of the other models."""
    model = load_model(
        "model_repository/bls_async",
        callees={
            "add_sub": lambda inputs: {"OUTPUT0": inputs["INPUT0"] * 2},
            "scaled": lambda inputs: {"OUTPUT": inputs["INPUT"] * 3},
            "auto_complete": lambda inputs: {"OUTPUT": inputs["INPUT"] * 4},
        },
    )
    result = model.infer({"INPUT": INPUT})
    assert {name: array.ravel().tolist() for name, array in result.outputs.items()} == {
        "SUM": (INPUT * 2).tolist(), "SCALED": (INPUT * 3).tolist(), "SQUARES": (INPUT * 4).tolist()
    }  # fmt: skip
    assert sorted(call.model_name for call in model.calls) == ["add_sub", "auto_complete", "scaled"]


def test_with_the_models(load_model):
    """The real ones, each with a thread of its own."""
    callees = {name: f"model_repository/{name}" for name in ("add_sub", "scaled", "auto_complete")}
    model = load_model("model_repository/bls_async", callees=callees)
    results = model.execute([{"INPUT": INPUT}, {"INPUT": INPUT + 1}])
    for result, array in zip(results, (INPUT, INPUT + 1), strict=True):
        assert result["SUM"].tolist() == (array * 2).tolist()
        assert result["SCALED"].tolist() == (array * 2.5).tolist()
        assert result["SQUARES"].tolist() == (array**2).reshape(4, 4).tolist()

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The outputs are the inputs, in any of the fourteen datatypes."""

import ml_dtypes
import numpy as np
import pytest

ARRAYS = {
    "BOOL": np.array([True, False]),
    **{f"UINT{bits}": np.array([0, 2**bits - 1], f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.array([-(2 ** (bits - 1)), 0], f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.array([-0.0, 1.5, np.inf], f"float{bits}") for bits in (16, 32, 64)},
    "BF16": np.array([-0.0, 1.5, 3e38], ml_dtypes.bfloat16),
    "BYTES": np.array([b"", b"any", b"\x00bytes"], np.object_),
}


@pytest.mark.parametrize("datatype", ARRAYS)
def test_each_datatype(load_model, datatype):
    """Bit by bit as it was sent."""
    sent = ARRAYS[datatype]
    result = load_model("model_repository/identity").infer({f"INPUT_{datatype}": sent})
    assert list(result.outputs) == [f"OUTPUT_{datatype}"]
    returned = result[f"OUTPUT_{datatype}"]
    assert returned.dtype == sent.dtype
    assert returned.tolist() == sent.tolist()


def test_all_at_once(load_model):
    """All inputs are optional, and there may be all of them, or none."""
    model = load_model("model_repository/identity")
    result = model.infer({f"INPUT_{datatype}": array for datatype, array in ARRAYS.items()})
    assert {name: array.tolist() for name, array in result.outputs.items()} == {
        f"OUTPUT_{datatype}": array.tolist() for datatype, array in ARRAYS.items()
    }
    assert model.infer({}).outputs == {}

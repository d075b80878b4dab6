# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Descriptions of abstract values of torch and jax, over values that only have a dtype and a shape."""

from types import SimpleNamespace

import pytest

from pyruntime.backends.toolkit.exported import describe_value
from pyruntime.backends.toolkit.settings import TensorSpec
from pyruntime.utils.errors import LoadError


@pytest.mark.parametrize("dtype", ["float32", "torch.float32"])
def test_datatype_and_symbols(dtype):
    value = SimpleNamespace(dtype=dtype, shape=("batch", 3))
    assert describe_value("m", "IN", value) == TensorSpec("IN", "TYPE_FP32", (-1, 3))


def test_no_datatype():
    with pytest.raises(LoadError, match="model 'm' has 'IN' of the type complex64, which cannot be served"):
        describe_value("m", "IN", SimpleNamespace(dtype="complex64", shape=()))

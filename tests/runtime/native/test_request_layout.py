# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
from pyruntime.runtime.native import _triton
from pyruntime.utils.request_codec import TENSOR_FIELDS, WireRequest


def test_is_that_of_python():
    """The extension reads requests and tensors in the order in which Python encodes them."""
    assert WireRequest._fields == _triton.REQUEST_FIELDS
    assert TENSOR_FIELDS == _triton.TENSOR_FIELDS

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that must end with an error of the model's."""

import pytest

from pyruntime.utils.errors import Code, InferenceError


def refusal_of(function, *arguments):
    """The message of the error that a call must end with."""
    with pytest.raises(InferenceError) as caught:
        function(*arguments)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message

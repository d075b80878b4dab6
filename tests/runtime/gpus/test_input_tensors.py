# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""FORCE_CPU_ONLY_INPUT_TENSORS."""

import pytest

from pyruntime.runtime.gpus.input_tensors import check_input_tensors
from pyruntime.utils.errors import Code, LoadError
from tests.runtime.model_specs import spec_from

CONFIG = 'name: "m" backend: "python" max_batch_size: 0\n'


def spec(value):
    parameter = f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: {{ string_value: "{value}" }} }}'
    return spec_from(CONFIG + parameter)


@pytest.mark.parametrize("value", ["yes", "no"])
def test_values(value):
    """Triton's two values."""
    check_input_tensors(spec(value))


def test_default():
    """None is needed."""
    check_input_tensors(spec_from(CONFIG))


@pytest.mark.parametrize("value", ["maybe", "No", "true", ""])
def test_other_values(value):
    """The refusal is Triton's, with its quotation mark."""
    with pytest.raises(LoadError) as caught:
        check_input_tensors(spec(value))
    assert str(caught.value) == f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}'"
    assert caught.value.code is Code.UNSUPPORTED

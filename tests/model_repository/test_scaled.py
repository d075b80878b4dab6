# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model without code of its own, and the backend that it shares."""

import pytest

from pyruntime.testing import LoadError

CONFIG = """
backend: "scale"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""


def test_its_own_factor(load_model):
    """The factor is in the model's configuration."""
    assert load_model("model_repository/scaled").infer({"INPUT": [1, 2, 3]})["OUTPUT"].tolist() == [2.5, 5, 7.5]


def test_another_factor(load_model):
    """The backend does what another configuration says."""
    config = CONFIG + 'parameters { key: "factor" value { string_value: "-1" } }'
    assert load_model("model_repository/scaled", config=config).infer({"INPUT": [1, 2]})["OUTPUT"].tolist() == [-1, -2]


def test_no_factor(load_model):
    """Without one it cannot be loaded."""
    with pytest.raises(LoadError, match="KeyError: 'factor'"):
        load_model("model_repository/scaled", config=CONFIG)

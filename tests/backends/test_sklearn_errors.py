# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How errors of XGBoost are told; tests/e2e/test_sklearn.py has real models."""

import pytest

from pyruntime.backends.sklearn.predictors import describe_error

TRACE = "\nStack trace:\n  [bt] (0) /lib/libxgboost.so(+0x11031e) [0x7fc39b31031e]\n\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[16:53:28] /workspace/src/json.cc:409: Expecting: "x"' + TRACE, 'Expecting: "x"'),
        ("[16:53:28] is an interval: of times", "[16:53:28] is an interval: of times"),
        ("other", "other"),
    ],
)
def test_errors(text, said):
    """Those of XGBoost have a time, a place in its source and a stack trace, which tell a user nothing."""
    assert describe_error(ValueError(text)) == said

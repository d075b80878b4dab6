# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Queries of native code about missing models; e2e/test_native_calls.py has queries about existing ones."""

import pytest

from pyruntime.runtime.app.queries import answer_query
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import Code, InferenceError

from ..server_states import new_state

UNKNOWN = ("Request for unknown model: 'nothing' is not found", Code.NOT_FOUND)


@pytest.fixture
def state():
    return new_state(ServerSettings([]))


@pytest.mark.parametrize(
    ("method", "arguments", "failure"),
    [
        ("ServerModelBatchProperties", ("nothing", -1), UNKNOWN),
        ("ServerModelTransactionProperties", ("nothing", -1), UNKNOWN),
        ("ServerModelMetadata", ("nothing", -1), UNKNOWN),
        ("ServerModelConfig", ("nothing", -1, 1), UNKNOWN),
        ("ServerModelStatistics", ("nothing", -1), ("requested model 'nothing' is not available", Code.INVALID_ARG)),
        ("ServerStop", (), ("TRITONSERVER_ServerStop is not supported", Code.UNSUPPORTED)),
    ],
)
def test_failures(state, method, arguments, failure):
    """The server's own errors, as Triton words them."""
    with pytest.raises(InferenceError) as caught:
        answer_query(state, method, arguments)
    assert (caught.value.message, caught.value.code) == failure


@pytest.mark.parametrize(
    ("method", "arguments", "answer"),
    [
        ("ServerIsLive", (), True),
        ("ServerIsReady", (), False),
        ("ServerModelIsReady", ("nothing", -1), False),
        ("ServerModelIndex", (True,), b"[]"),
        ("ServerModelStatistics", ("", -1), b'{"model_stats":[]}'),
    ],
)
def test_answers(state, method, arguments, answer):
    """Of a server without models, which is being started."""
    assert answer_query(state, method, arguments) == answer

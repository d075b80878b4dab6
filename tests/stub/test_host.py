# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The server that `get_host` finds: the one of the process, one that a finder returns, or none."""

import pytest

from pyruntime.stub.host import Answers, Host, get_host, set_finder, set_host
from pyruntime.stub.pb_utils import TritonModelException


@pytest.fixture(autouse=True)
def _nobody():
    """Run each test without a server."""
    before = set_host(None)
    yield
    set_host(before)
    set_finder(None)


def test_nobody():
    """Without a server the model gets an error."""
    with pytest.raises(TritonModelException, match="this is not possible outside a model"):
        get_host()


def test_the_server_of_the_process():
    """In a stub there is one, which comes before all others."""
    server = Host()
    set_finder(Host)
    assert set_host(server) is None
    assert get_host() is server
    assert set_host(None) is server


def test_finder():
    """With several servers the finder returns the one to use, or None."""
    servers = [Host(), None]
    set_finder(lambda: servers.pop(0))
    assert type(get_host()) is Host
    with pytest.raises(TritonModelException, match="this is not possible outside a model"):
        get_host()


@pytest.mark.parametrize("name", ["forgotten", "is_cancelled", "free_memory", "call", "ask", "tell", "measure"])
def test_the_base_class_does_nothing(name):
    """A server must do its part itself."""
    method = getattr(Host(), name)
    with pytest.raises(NotImplementedError):
        method(*[None] * (method.__code__.co_argcount - 1))


@pytest.mark.parametrize("name", ["next", "cancel", "when_next"])
def test_answers_must_be_given(name):
    """The methods of Answers must be implemented, too."""
    method = getattr(Answers(), name)
    with pytest.raises(NotImplementedError):
        method(*[None] * (method.__code__.co_argcount - 1))

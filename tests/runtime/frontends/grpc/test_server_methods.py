# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about the server."""

import pytest

from pyruntime.runtime.app.documents import EXTENSIONS
from pyruntime.utils.errors import Code


def test_live(call):
    """A server that answers is alive, ready or not."""
    call.state.loaded = False
    assert call("ServerLive").live is True


class TestReady:
    def test_once_everything_is_loaded(self, call):
        """As the server's state says."""
        assert call("ServerReady").ready is True
        call.state.loaded = False
        assert call("ServerReady").ready is False

    @pytest.mark.parametrize("ready", [True, False])
    def test_models_that_take_their_time(self, call, server, ready):
        """The answer waits for theirs."""
        server.instance.answers_checks = False
        call.begin("ServerReady")
        assert call.replies == []
        server.instance.answer_check(ready)
        assert [reply.ready for reply in call.replies] == [ready]

    def test_exiting(self, call):
        """Triton's error, not the answer no."""
        call.state.exiting = True
        assert call.error("ServerReady") == (Code.UNAVAILABLE, "Server exiting")


def test_metadata(call):
    """Name, version and extensions are those of HTTP."""
    metadata = call("ServerMetadata")
    assert (metadata.name, metadata.version) == ("triton", call.state.version)
    assert tuple(metadata.extensions) == EXTENSIONS

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The extension comes in with the first native model, with the settings of then; why it cannot, its owner reads."""

import asyncio
import importlib
from dataclasses import replace

import pytest

from pyruntime.runtime.instances.native.host import EXTENSION, NativeHost
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError

SETTINGS = ServerSettings(("models",))


@pytest.fixture
def load(monkeypatch):
    """`load(failure)`: the error for a model if importing the extension fails for that reason."""

    def load(failure):
        def import_module(name):
            assert name == EXTENSION
            raise failure

        async def run():
            async with asyncio.TaskGroup() as tasks:
                host = NativeHost(None, tasks, SETTINGS)
                with pytest.raises(LoadError) as caught:
                    await host.load("b", "/b/libtriton_b.so", "m", b"{}", [])
                await host.close()
                return str(caught.value)

        monkeypatch.setattr(importlib, "import_module", import_module)
        return asyncio.run(run())

    return load


@pytest.fixture
def native():
    """The extension. A host that closes refuses calls; the backends of other tests in this process make some."""
    native = importlib.import_module(EXTENSION)
    yield native
    native.accept_calls(True)


def test_an_extension_that_cannot_be_loaded(load):
    """The message has the reason why an existing extension cannot be loaded."""
    assert load(ImportError("libstdc++.so.6: version `GLIBCXX_3.4.99' not found")) == (
        "model 'm' needs the native backend 'b', and this installation of pyruntime cannot load what runs native "
        "backends: libstdc++.so.6: version `GLIBCXX_3.4.99' not found"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SETTINGS, (7, 0)),
        (replace(SETTINGS, log_error=False), (6, 0)),
        (replace(SETTINGS, log_warning=False, log_verbose=3), (5, 3)),
        (replace(SETTINGS, log_info=False), (3, 0)),
    ],
)
def test_log_settings(native, monkeypatch, settings, expected):
    """Native code gets the log settings when it is loaded, and at each change."""
    told = []
    monkeypatch.setattr(native, "set_log", lambda *levels: told.append(levels))

    async def run():
        async with asyncio.TaskGroup() as tasks:
            host = NativeHost(None, tasks, SETTINGS)
            host.adjust_log(settings)
            assert told == []
            with pytest.raises(LoadError, match="No such file"):
                await host.load("b", "/nowhere/libtriton_b.so", "m", b"{}", [])
            host.adjust_log(SETTINGS)
            await host.close()

    asyncio.run(run())
    assert told == [expected, (7, 0)]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, which pytest finds by itself: the fixture `load_model`, and failures without our own frames.

Every run of pytest in the environment imports it, even without tests of models. So it imports only pytest until a test
uses the fixture.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyruntime.testing.model import LoadedModel


@pytest.fixture
def load_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., LoadedModel]]:
    """`pyruntime.testing.load_model`; closes the loaded models at the end of the test.

    Relative paths of models, callees and backend folders start at pytest's root folder.
    """
    from pyruntime.testing.model import load_model

    root = request.config.rootpath
    with ExitStack() as models:

        def load(path: Any, **options: Any) -> LoadedModel:
            callees = options.pop("callees", None) or {}
            callees = {name: _from(root, callee) for name, callee in callees.items()}
            if "backend_directory" in options:
                options["backend_directory"] = _from(root, options["backend_directory"])
            return models.enter_context(load_model(root / path, callees=callees, **options))

        yield load


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Remove the frames of pyruntime from the failure of a test of models; --full-trace keeps them."""
    if call.excinfo is None or "pyruntime.testing.model" not in sys.modules or item.config.getoption("fulltrace"):
        return
    exc = call.excinfo.value
    _cut_frames(exc)
    call.excinfo = pytest.ExceptionInfo.from_exception(exc)


def _cut_frames(exc: BaseException) -> None:
    """Remove frames of pyruntime and of importlib from an exception, and from those that led to it."""
    at: BaseException | None = exc
    seen: set[int] = set()
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        at.__traceback__ = _cut(at.__traceback__)
        at = at.__cause__ or at.__context__


def _cut(traceback: TracebackType | None) -> TracebackType | None:
    from pyruntime.stub.loader import is_own

    own = []
    at = traceback
    while at is not None:
        if is_own(at.tb_frame.f_code.co_filename):
            own.append(at)
        at = at.tb_next
    if not own:  # a fault of ours is shown as it is
        return traceback
    cut = None
    for each in reversed(own):
        cut = TracebackType(cut, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return cut


def _from(root: Path, path: Any) -> Any:
    """A path from the root folder; anything else as it is."""
    return root / path if isinstance(path, (str, os.PathLike)) else path

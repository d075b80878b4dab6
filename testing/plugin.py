# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, which pytest finds by itself: the fixture `load_model`.

Every run of pytest in the environment imports it, even without tests of models. So it imports only pytest until a test
uses the fixture.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
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


def _from(root: Path, path: Any) -> Any:
    """A path from the root folder; anything else as it is."""
    return root / path if isinstance(path, (str, os.PathLike)) else path

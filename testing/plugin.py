# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, which pytest finds by itself: the fixture `load_model`.

It is imported by every pytest of the environment, whether its tests know of models or not. So it imports nothing but
pytest until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyruntime.testing.model import LoadedModel


@pytest.fixture
def load_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., LoadedModel]]:
    """`pyruntime.testing.load_model`, closing at the end of the test what it loaded.

    A relative path is one from pytest's root folder.
    """
    from pyruntime.testing.model import load_model

    with ExitStack() as models:

        def load(path: Any, **options: Any) -> LoadedModel:
            return models.enter_context(load_model(request.config.rootpath / path, **options))

        yield load

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Two versions, each of which can be tested."""

import pytest

from pyruntime.testing import LoadError


@pytest.mark.parametrize(("version", "served", "output"), [(1, 1, 11), (3, 3, 110), (None, 3, 110)])
def test_versions(load_model, version, served, output):
    """The newest one where none is asked for."""
    model = load_model("model_repository/versions", version=version)
    result = model.infer({"INPUT": [10]})
    assert (model.version, result["VERSION"].item(), result["OUTPUT"].item()) == (served, served, output)


def test_side_by_side(load_model):
    """Both at once, though their modules have the same name."""
    one, three = (load_model("model_repository/versions", version=version) for version in (1, 3))
    assert [model.infer({"INPUT": [0]})["OUTPUT"].item() for model in (one, three, one)] == [1, 100, 1]


def test_no_such_version(load_model):
    """There is no second one."""
    with pytest.raises(LoadError, match="version 2 of model 'versions' would not be served, only: 1, 3"):
        load_model("model_repository/versions", version=2)

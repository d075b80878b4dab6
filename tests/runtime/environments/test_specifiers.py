# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Version specifiers, as Python's packaging defines them, for versions of Python."""

import pytest
from packaging.specifiers import SpecifierSet

from pyruntime.runtime.environments.specifiers import admits
from pyruntime.utils.errors import LoadError

SPECIFIERS = [
    "",
    ">=3.8",
    ">=3.8, <3.12",
    "<3.12.1",
    "==3.11.*",
    "== 3.11",
    "==3.11.7",
    "===3.11.7",
    "!=3.11.*",
    "!=3.11.7",
    "~=3.8",
    "~=3.11.2",
    ">3.11",
    "<=3.11",
    "<=3.11.7,>=3",
    "<4",
    "==3.*",
    ">=3.8,",
]
VERSIONS = [(3, 8, 0), (3, 8, 18), (3, 11, 0), (3, 11, 7), (3, 12, 1), (3, 13, 0), (4, 0, 0)]


@pytest.mark.parametrize("specifier", SPECIFIERS)
def test_agrees_with_packaging(specifier):
    """It says the same as the library that everybody else uses, which the server does without."""
    expected = [version for version in VERSIONS if SpecifierSet(specifier).contains(".".join(map(str, version)))]
    assert [version for version in VERSIONS if admits(specifier, version)] == expected


def test_suffixes_are_not_looked_at():
    """An interpreter that is released is not older than its own pre-release."""
    assert admits(">=3.13.0rc1", (3, 13, 0))
    assert not admits(">=3.13.0rc1", (3, 12, 9))


@pytest.mark.parametrize("specifier", ["3.8", ">=", "=3.8", ">=3.8 <3.9", "three", "^3.8"])
def test_nonsense(specifier):
    """A malformed specifier is refused and quoted."""
    with pytest.raises(LoadError, match="requires-python is"):
        admits(specifier, (3, 11, 7))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The metadata block of a Python file, by the examples of its specification and by wrong ones."""

import pytest

from pyruntime.runtime.environments.metadata import EXAMPLE, ScriptMetadata, parse_script
from pyruntime.utils.errors import LoadError

FULL = """#!/usr/bin/env python
'''A model.'''
# /// script
# requires-python = ">=3.8,<3.12"
# dependencies = [
#   "scipy<2",  # with a comment
#
#   "rich[jupyter] ; python_version > '3.8'",
# ]
# [tool.uv]
# index-url = "https://example.org"
# ///
import scipy
"""


def block(*lines):
    return "\n".join(["# /// script", *lines, "# ///", ""])


def test_full():
    """Both fields are read, and tables of tools are left to them."""
    found = parse_script(FULL, "model.py")
    assert found == ScriptMetadata(("scipy<2", "rich[jupyter] ; python_version > '3.8'"), ">=3.8,<3.12")


def test_empty():
    """A block may leave out either field."""
    assert parse_script(block("# "), "model.py") == ScriptMetadata((), "")


def test_other_blocks_are_not_meant():
    """Blocks of other types are for others."""
    text = '# /// other\n# dependencies = ["x"]\n# ///\n\n' + block('# dependencies = ["y"]')
    assert parse_script(text, "model.py").dependencies == ("y",)


def test_windows_line_ends_and_last_line():
    """A file need not end in a newline."""
    assert parse_script(EXAMPLE, "model.py").dependencies == ("scipy",)


@pytest.mark.parametrize(
    "text",
    [
        "import numpy\n",
        "# /// script\n# dependencies = []\n",  # has no end
        "# /// script\n#dependencies = []\n# ///\n",  # a line without a space
        "    # /// script\n    # dependencies = []\n    # ///\n",  # indented
    ],
)
def test_no_block(text):
    """Where there is no block the error shows one."""
    with pytest.raises(LoadError, match=r"'model\.py' has no `# /// script` block") as caught:
        parse_script(text, "model.py")
    assert str(caught.value).endswith(EXAMPLE)


def test_two_blocks():
    """Which of two blocks counts cannot be known."""
    with pytest.raises(LoadError, match="2 `# /// script` blocks"):
        parse_script(block("# ") + "\n" + block("# "), "model.py")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("# dependencies = [", "is not TOML"),
        ('# dependencies = "scipy"', "dependencies of 'model.py' is 'scipy', and should be a list"),
        ("# dependencies = [1]", r"dependencies of 'model.py' is \[1\]"),
        ('# dependencies = ["--index-url=https://example.org"]', "should be a list of requirements"),
        ('# dependencies = ["a\\nb"]', "should be a list of requirements"),
        ('# dependencies = [" "]', "should be a list of requirements"),
        ("# requires-python = 3.8", "requires-python of 'model.py' is 3.8, and should be text"),
    ],
)
def test_malformed(line, message):
    """A malformed value is refused by its name."""
    with pytest.raises(LoadError, match=message):
        parse_script(block(line), "model.py")

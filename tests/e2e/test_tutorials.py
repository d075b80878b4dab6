# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every block of code in the tutorials works, in the order of the page; harness/pages.py has the conventions."""

import re
import shutil
from pathlib import Path

import pytest

from .harness.pages import BLOCK, follow

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
# The programs that a tutorial needs besides Python.
PROGRAMS = {
    "cpp-backend": ("cmake", "g++"),
    "first-model": ("curl",),
    "migrate-from-triton": ("curl",),
    "streaming-llm": ("curl",),
}


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_tutorial(page, tmp_path, serving, reserve_ports, wait_until):
    """The page from its beginning to its end."""
    missing = [program for program in PROGRAMS.get(page.stem, ()) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) * 2 == len(re.findall("^ *```", text, re.MULTILINE))
    for block in blocks:
        assert block["title"] or block["language"] == "console", f"neither a file nor commands: {block[0]}"
    follow(text, tmp_path, serving, reserve_ports, wait_until)

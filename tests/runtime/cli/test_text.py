# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Foreign text on a terminal."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.cli.text import printable, printable_lines


def test_what_prints_stays():
    """Letters of any language do."""
    assert printable('ünïcode 日本 "x"') == 'ünïcode 日本 "x"'


def test_what_does_not_print():
    """It is escaped."""
    assert printable("a\x1b[2J\n\x9b\u202e") == "a\\u001b[2J\\n\\u009b\\u202e"
    assert printable_lines("a\x1b\nb") == "a\\u001b\nb"


@given(st.text())
def test_anything(text):
    """The shown text is printable, and the original text can be recovered."""
    shown = printable(text)
    assert shown.isprintable()
    if '"' not in text and "\\" not in text:
        assert json.loads(f'"{shown}"') == text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

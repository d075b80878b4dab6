# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Turns JSON as lenient as protobuf's C++ parser reads it into standard JSON. (pure)

That parser, which Triton uses for configurations in load requests, accepts keys without quotes, strings in single
quotes, and commas behind the last element. What is wrong in any other way stays as it is, for the parser behind to
report. The time is linear in the length of the text.
"""

from __future__ import annotations

import re

# A string may lack its end, so that no part of the text is looked at twice.
_TOKEN = re.compile(
    r"""
    (?P<string> "(?:[^"\\]+|\\.)*"? )
    | '(?P<single> (?:[^'\\]+|\\.)* )(?P<end>'?)
    | (?P<word> [A-Za-z_$][A-Za-z0-9_$]* )(?P<key> (?=\s*:) )?
    | [{\[]\s*,  # no element stands before this comma
    | (?P<comma> ,(?=\s*[}\]]) )
    """,
    re.VERBOSE | re.DOTALL,
)
# In a string in single quotes: an escape, or a character that standard JSON escapes.
_ESCAPE = re.compile(r"\\(?P<escaped>.)|\"", re.DOTALL)


def standard_json(text: str) -> str:
    """The same document in standard JSON."""
    return _TOKEN.sub(_standard, text)


def _standard(token: re.Match[str]) -> str:
    if token["single"] is not None:
        return '"' + _ESCAPE.sub(_escape, token["single"]) + ('"' if token["end"] else "")
    if token["key"] is not None:
        return f'"{token["word"]}"'
    return "" if token["comma"] else token[0]


def _escape(found: re.Match[str]) -> str:
    if found["escaped"] is None:
        return '\\"'
    return "'" if found["escaped"] == "'" else found[0]

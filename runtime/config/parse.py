# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses config.pbtxt, which is in protobuf's text format. (pure)

It checks the grammar, and the names and types of fields. `validate` checks the values.
"""

from __future__ import annotations

import re

from google.protobuf import text_format

from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.runtime.suggestions import similar
from pyruntime.utils.errors import LoadError

# The largest configurations in use are some kilobytes. The parser is slow: a mebibyte takes it seconds.
CONFIG_BYTES_MAX = 1 << 20

# Some error messages of the parser quote the text that they refer to, which may be long.
COMPLAINT_CHARACTERS_MAX = 500

# Of the line that is shown, around the place.
EXCERPT_CHARACTERS_MAX = 100

# Complaints about names, in the parser's words.
_UNKNOWN = re.compile(
    r'(?:Message type "(?P<type>[\w.]+)" has no field named "(?P<field>\w+)"|'
    r'Enum type "(?P<enum>[\w.]+)" has no value named (?P<value>\w+))\.$'
)

# The only line end that the parser counts; str.splitlines knows more, and would shift the numbers.
_LINE_END = "\n"


def parse_model_config(text: bytes | str, path: str) -> Config:
    """Parse `text`; `path` only names it in errors.

    Raises LoadError, `<path>:<line>:<column>: <message>`, if it is not UTF-8, not text format, or not a ModelConfig.
    """
    if len(text) > CONFIG_BYTES_MAX:
        raise LoadError(f"{path}: a model configuration has at most {CONFIG_BYTES_MAX} bytes, this one has {len(text)}")
    decoded = _decode(text, path)
    config = new_model_config()
    try:
        text_format.Parse(decoded, config)
    except text_format.ParseError as error:
        lines = decoded.split(_LINE_END)
        raise LoadError(f"{path}:{_explain(error, lines)}", excerpt=_excerpt(error, lines)) from error
    except ValueError as error:
        # The parser accepts a few values that the message then rejects, without a position.
        raise LoadError(f"{path}: {error}") from error
    return config


def _decode(text: bytes | str, path: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        column = error.start - text.rfind(b"\n", 0, error.start)
        found = text[error.start]
        raise LoadError(f"{path}:{line}:{column}: expected UTF-8, found the byte 0x{found:02x}") from error


def _explain(error: text_format.ParseError, lines: list[str]) -> str:
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    complaint = str(error).removeprefix(f"{line}:{column} : ")
    # Some messages begin with the whole line, which is empty at the end of the text.
    for quoted in ("", *lines[line - 1 : line]):
        complaint = complaint.removeprefix(f"'{quoted}': ")
    return f"{line}:{column}: {complaint[:COMPLAINT_CHARACTERS_MAX]}{_suggestion(complaint)}"


def _suggestion(complaint: str) -> str:
    """A question after the names that are almost the unknown one of a complaint, or ""."""
    found = _UNKNOWN.match(complaint)
    if found is None:
        return ""
    pool = new_model_config().DESCRIPTOR.file.pool
    if found["field"]:
        known = [field.name for field in pool.FindMessageTypeByName(found["type"]).fields]
    else:
        known = [value.name for value in pool.FindEnumTypeByName(found["enum"]).values]
    near = similar(found["field"] or found["value"], known)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _excerpt(error: text_format.ParseError, lines: list[str]) -> str:
    """The line that a complaint is about, and below it a caret."""
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    if not 0 < line <= len(lines):
        return ""
    begin = max(0, column - EXCERPT_CHARACTERS_MAX // 2)
    shown = lines[line - 1].replace("\t", " ")[begin : begin + EXCERPT_CHARACTERS_MAX].rstrip()
    return f"  {shown}\n  {' ' * (column - 1 - begin)}^"

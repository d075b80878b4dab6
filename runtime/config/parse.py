# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""config.pbtxt, protobuf's text format, as a message. (pure)

Only the grammar and the names and types of fields are checked here; what the values mean is for `validate`.
"""

from __future__ import annotations

from google.protobuf import text_format

from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.utils.errors import LoadError

# The largest configurations in use are some kilobytes. The parser is slow: a mebibyte takes it seconds.
CONFIG_BYTES_MAX = 1 << 20

# Some of the parser's complaints repeat the text they are about.
COMPLAINT_CHARACTERS_MAX = 500

# What the parser counts as the end of a line.
_LINE_END = "\n"


def parse_model_config(text: bytes | str, path: str) -> Config:
    """The configuration that `text` says; `path` only names it in errors.

    LoadError, as `<path>:<line>:<column>: <what is wrong>`, if it is not UTF-8, not text format, or not a ModelConfig.
    """
    if len(text) > CONFIG_BYTES_MAX:
        raise LoadError(f"{path}: a model configuration has at most {CONFIG_BYTES_MAX} bytes, this one has {len(text)}")
    decoded = _decode(text, path)
    config = new_model_config()
    try:
        text_format.Parse(decoded, config)
    except text_format.ParseError as error:
        raise LoadError(f"{path}:{_explain(error, decoded.split(_LINE_END))}") from error
    except ValueError as error:
        # Of the few values that the parser lets pass and the message does not: no position is known.
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
    # Some complaints begin with the whole line, which at the end of the text is empty.
    for quoted in ("", *lines[line - 1 : line]):
        complaint = complaint.removeprefix(f"'{quoted}': ")
    return f"{line}:{column}: {complaint[:COMPLAINT_CHARACTERS_MAX]}"

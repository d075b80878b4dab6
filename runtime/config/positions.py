# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the line of a place in a config.pbtxt that has been parsed, for messages about its values. (pure)

message := (name ":"? value [,;]?)*     value := "{" message "}" | "<" message ">" | "[" value ("," value)* "]" | scalar
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from pyruntime.runtime.config.ensembles import Place

_TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w.+-]+|\S""")
_OPEN, _CLOSE = ("{", "<"), ("}", ">")

_Token = tuple[str, int]


def line_of(text: str, place: Place) -> int:
    """The line of a place, counted from 1; that of what it lies in where `text` does not have it, 0 if nothing is."""
    lines: dict[Place, int] = {}
    _read_message(_tokens(text), (), lines)
    complete = _with_indexes(place)
    while complete and complete not in lines:
        complete = complete[:-2]
    return lines.get(complete, 0)


def _with_indexes(place: Place) -> Place:
    """The place with an index behind each name: 0, unless it has one."""
    complete: list[str | int] = []
    for part in place:
        if isinstance(part, int):
            complete[-1] = part
        else:
            complete += (part, 0)
    return tuple(complete)


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens with their lines, without comments."""
    line, at = 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        if not match[0].startswith("#"):
            yield match[0], line


def _read_message(tokens: Iterator[_Token], place: Place, lines: dict[Place, int]) -> None:
    """Read the fields of a message up to its end, and record the line of each."""
    counts: Counter[str] = Counter()
    name, in_list = "", False
    for token, line in tokens:
        if token in _OPEN:
            where = (*place, name, counts[name])
            counts[name] += 1
            lines.setdefault(where, line)
            _read_message(tokens, where, lines)
        elif token in _CLOSE:
            return
        elif token in ("[", "]"):
            in_list = token == "["
        elif token[0] in "\"'" or token in (":", ",", ";"):
            continue
        elif not in_list and token[0].isalpha():
            # A field, or a value that is a word; no field of a configuration is called like a value.
            name = token
            lines.setdefault((*place, name, counts[name]), line)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Formats text tables like those that Triton prints at its start. (pure)

+---------+---------+--------+
| Model   | Version | Status |
+---------+---------+--------+
| add_sub | 1       | READY  |
+---------+---------+--------+

A cell that is too wide continues in the next line, after a space where there is one, else cut anywhere: cells are
paths, JSON and messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

# The width of most terminals, which wrap wider lines and so break a table.
TABLE_WIDTH_MAX = 80
# The reason of a failed load may quote long output of the model; the log has the complete text.
CELL_CHARS_MAX = 4096


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], width_max: int = TABLE_WIDTH_MAX) -> str:
    """A table of at most `width_max` characters per line, without a newline at the end.

    Narrow columns get the width that they need, the others share the rest evenly. A line end in a cell begins a new
    line in the cell; other characters that do not print are escaped.
    """
    cells = [[_lines(cell) for cell in row] for row in (headers, *rows)]
    needs = [max(len(line) for lines in column for line in lines) for column in zip(*cells, strict=True)]
    widths = column_widths(needs, width_max - 3 * len(needs) - 1)
    border = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    head, *body = ["\n".join(_row(row, widths)) for row in cells]
    return "\n".join([border, head, border, *body, *([border] if body else [])])


def column_widths(needs: Sequence[int], room: int) -> list[int]:
    """The width of each column if all columns share `room` characters: at least 1, at most its need."""
    widths = [0] * len(needs)
    columns = sorted(range(len(needs)), key=needs.__getitem__)
    for position, column in enumerate(columns):
        share = room // (len(columns) - position)
        widths[column] = max(1, min(needs[column], share))
        room -= widths[column]
    return widths


def backend_table(backends: Iterable[tuple[str, str, Mapping[str, str]]], width_max: int = TABLE_WIDTH_MAX) -> str:
    """The table of (name, path, settings of the command line), by name and path and `python` first, as in Triton."""
    ordered = sorted(backends, key=lambda backend: (backend[0] != "python", *backend[:2]))
    rows = [(name, path, _config_json(settings)) for name, path, settings in ordered]
    return table(("Backend", "Path", "Config"), rows, width_max)


def model_table(models: Iterable[tuple[str, str, str]], width_max: int = TABLE_WIDTH_MAX) -> str:
    """The table of (model, version, status), in the order given."""
    return table(("Model", "Version", "Status"), models, width_max)


def _config_json(settings: Mapping[str, str]) -> str:
    return json.dumps({"cmdline": dict(settings)}, separators=(",", ":"), ensure_ascii=False)


def _lines(cell: str) -> list[str]:
    if len(cell) > CELL_CHARS_MAX:
        cell = f"{cell[:CELL_CHARS_MAX]} ... (cut: {len(cell)} characters)"
    return [_printable(line) for line in cell.split("\n")]


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def _wrapped(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width` characters."""
    pieces = []
    while len(line) > width:
        end = line.rfind(" ", 0, width + 1)
        end = width if end <= 0 else end
        pieces.append(line[:end])
        line = line[end:].removeprefix(" ")
    return [*pieces, line]


def _row(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """The lines of one row of the table, each cell wrapped at the width of its column."""
    wrapped = [
        [piece for line in lines for piece in _wrapped(line, width)] for lines, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in wrapped]
    return [
        "| " + " | ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)) + " |"
        for texts in zip(*padded, strict=True)
    ]

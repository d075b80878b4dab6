# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The list of compatibility has the same status for each of tritonserver's options as the table of options."""

import re
from pathlib import Path

from pyruntime.runtime.cli.options import OPTIONS, TRITON_GROUPS, Status

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "compatibility.md"
ROW = re.compile(r"^\| C(?P<number>\d+) \| `--(?P<name>[a-z0-9-]+)` \| (?P<status>[^|]+) \|", re.MULTILINE)


def status_of(option):
    """The status of an option, in the words of the list."""
    if option.status is Status.WORKS:
        return "works"
    return f"accepted; no effect{' yet' if option.status is Status.LATER else ''}: {option.note}"


def test_every_option_of_triton_is_listed():
    """Each has its row, with its number, and the row says what becomes of it."""
    rows = [(int(row["number"]), row["name"], row["status"].strip()) for row in ROW.finditer(DOCUMENT.read_text())]
    assert [number for number, _, _ in rows] == list(range(1, 92))
    expected = {option.name: status_of(option) for group in TRITON_GROUPS for option in group.options}
    assert {name: status for _, name, status in rows} == expected
    assert expected.keys() <= OPTIONS.keys()

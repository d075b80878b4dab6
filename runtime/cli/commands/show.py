# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What commands print, for people and for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyruntime.runtime.cli.commands.client import CommandError
from pyruntime.runtime.cli.text import printable, printable_lines

# What the process ends with when somebody presses Ctrl-C, by the custom of shells.
INTERRUPTED = 130


def run_command(command: Callable[[], int]) -> int:
    """Run a command; the exit status. Why something cannot be done is said on standard error."""
    try:
        return command()
    except CommandError as exc:
        print(f"Error: {printable_lines(str(exc))}", file=sys.stderr)
        return exc.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads what we print has read enough. What is flushed at exit must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def print_json(value: object) -> None:
    """One line, ASCII alone, at once."""
    print(json.dumps(value), flush=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A table; the columns of the headings in `right` are numbers. Cells may have several lines, and cannot act."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for heading in headings:
        number = heading in right
        made.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in rows:
        made.add_row(*(Text(printable_lines(cell)) for cell in row))
    return made


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table."""
    Console(highlight=False).print(table(headings, rows, right))


def progress(text: str) -> AbstractContextManager[object]:
    """While something takes time: says so, at a terminal, and leaves no trace."""
    return Console(stderr=True, highlight=False).status(Text(printable(text)))

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the results and errors of commands: tables, JSON, progress."""

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

# The exit status after Ctrl-C, by the convention of shells.
INTERRUPTED = 130


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return the exit status. Prints a CommandError on standard error."""
    try:
        return command()
    except CommandError as exc:
        print(f"Error: {printable_lines(str(exc))}", file=sys.stderr)
        return exc.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output, such as `head`, has closed it. At exit Python flushes stdout, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def print_json(value: object) -> None:
    """Print a value as one line of ASCII, and flush."""
    print(json.dumps(value), flush=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), padding: int = 1) -> Table:
    """A table; the columns with headings in `right` are numbers. Cells may have several lines; they are escaped.

    Columns stand twice the `padding` apart, or one character for 0.
    """
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, padding) if padding else (0, 1, 0, 0))
    for column, heading in enumerate(headings):
        number = heading in right
        # The first column has names, which must stay whole, to be copied.
        made.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number or not column)
    for row in rows:
        made.add_row(*(Text(printable_lines(cell)) for cell in row))
    return made


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), padding: int = 1
) -> None:
    """Print a table."""
    Console(highlight=False).print(table(headings, rows, right, padding))


def progress(text: str) -> AbstractContextManager[object]:
    """Show `text` at a terminal during a long operation, and remove it afterwards."""
    return Console(stderr=True, highlight=False).status(Text(printable(text)))

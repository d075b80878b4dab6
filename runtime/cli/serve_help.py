# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the help page of `pyruntime serve`. Apart from `serve.py` because it imports rich, which `serve` does not."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pyruntime.runtime.cli.options import GROUPS, Kind, Option, Status

# What follows the name of an option; nothing, for a flag.
_ARGUMENTS = {
    **{kind: f"=<{kind.value}>" for kind in Kind},
    Kind.FLAG: "",
    Kind.REPEATABLE: "=<text>, repeatable",
    Kind.STR: "=<text>",
    Kind.SETTING: "=<name>,<key>=<value>, repeatable",
}


def show_serve_help(program: str) -> None:
    """Print all options by group, each with its status; `program` is the name of the command."""
    console = Console(highlight=False)
    console.print(f"Usage: {program} --model-repository <folder> [--<option>=<value> ...]\n", markup=False)
    console.print(f"A folder alone is a model repository, too: {program} <folder>, or -m <folder>.", markup=False)
    console.print(
        "Options are those of tritonserver, with their [defaults]; a prefix of just one will do. Those marked 'later' "
        "and 'no-op' are accepted with a warning, and have no effect.",
        markup=False,
    )
    for group in GROUPS:
        console.print(Text(f"\n{group.title}", style="bold"))
        for option in group.options:
            console.print(Padding(_heading(option), (0, 2)))
            console.print(Padding(Text(_description(option)), (0, 6)))


def _heading(option: Option) -> Text:
    """`--http-port=<int>  [8000]`, without the parts that an option lacks, and its status if it has no effect."""
    heading = Text.assemble((f"--{option.name}", "cyan"), _ARGUMENTS[option.kind])
    if option.default:
        heading.append(f"  [{option.default}]", style="green")
    return heading if option.status is Status.WORKS else heading.append(f"  {option.status.value}", style="yellow")


def _description(option: Option) -> str:
    return option.help if option.status is Status.WORKS else f"{option.help} ({option.note})"

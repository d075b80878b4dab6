# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The commands besides `serve`, and every help page, with typer. Imported only when one of them is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pyruntime.runtime.cli.options import GROUPS, Kind, Option, Status

app = typer.Typer(
    name="pyruntime",
    help="Runs models written for NVIDIA Triton, without Triton.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def commands() -> None:
    """Runs models written for NVIDIA Triton, without Triton."""


# `serve` is dispatched before typer is imported; it is registered so that the help shows it.
@app.command(
    help="Serve the models of a model repository.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def serve(context: typer.Context) -> None:
    from pyruntime.runtime.cli.serve import run_serve

    raise typer.Exit(run_serve(context.args))


@app.command(help="Show the version of pyruntime.")
def version() -> None:
    print(installed_version("pyruntime"))


@app.command(help="Show what all threads of a model's processes are doing, stuck ones too.")
def stack(
    model: Annotated[str, typer.Argument(help="Name of a model that a server of yours serves on this machine.")],
    instance: Annotated[str, typer.Option(help="Only this instance, such as add_sub_0.")] = "",
) -> None:
    from pyruntime.runtime.cli.stack import run_stack

    raise typer.Exit(run_stack(model, instance))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    try:
        app(args=list(arguments), prog_name="pyruntime")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def show_serve_help() -> None:
    """Print every option of `pyruntime serve`, by group, with what becomes of it."""
    console = Console(highlight=False)
    console.print("Usage: pyruntime serve --model-repository <folder> [--<option>=<value> ...]\n", markup=False)
    console.print("Options are those of tritonserver, with their defaults; a prefix of just one will do.", markup=False)
    console.print("Those marked 'later' and 'no-op' are accepted with a warning, and have no effect.", markup=False)
    for group in GROUPS:
        console.print(Text(f"\n{group.title}", style="bold"))
        for option in group.options:
            console.print(Padding(_heading(option), (0, 2)))
            console.print(Padding(Text(_description(option)), (0, 6)))


def _heading(option: Option) -> Text:
    """`--http-port <int>  8000  works`; what is not there is left out."""
    argument = "" if option.kind is Kind.FLAG else f" <{option.kind.value}>"
    heading = Text.assemble((f"--{option.name}", "cyan"), argument)
    if option.default:
        heading.append(f"  {option.default}", style="green")
    return heading.append(f"  {option.status.value}", style="" if option.status is Status.WORKS else "yellow")


def _description(option: Option) -> str:
    return option.help if option.status is Status.WORKS else f"{option.help} ({option.note})"

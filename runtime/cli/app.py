# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The commands other than `serve`, and all help pages, with typer. Imported only if one of them is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import pyruntime
from pyruntime.runtime.cli.commands.samples import Sort
from pyruntime.runtime.cli.options import GROUPS, Kind, Option


class _Flags:
    """Shows flags without the type of a value, which they do not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See click.Command."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    pass


class _Group(_Flags, TyperGroup):
    pass


app = typer.Typer(
    name="pyruntime",
    help="Runs models written for NVIDIA Triton, without Triton.",
    no_args_is_help=True,
    cls=_Group,
)

_Url = Annotated[
    str, typer.Option("--url", envvar="PYRUNTIME_URL", help="Where the server's HTTP is; https:// works too.")
]
_Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME: VALUE", help="A header of every request, repeatable; for restricted APIs."),
]
_Port = Annotated[int, typer.Option(min=1, max=65535, help="A port that a server shall have.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
_URL = "http://localhost:8000"
# A million requests take minutes.
REPEAT_MAX = 1_000_000


def _model_names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of the server's models that complete a word; none if no server answers."""
    from pyruntime.runtime.cli.commands.client import CommandError, ServerClient

    url = context.params.get("url") or os.environ.get("PYRUNTIME_URL", _URL)
    try:
        names = {row["name"] for row in ServerClient(url, context.params.get("headers") or ()).index()}
    except CommandError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


_Model = Annotated[str, typer.Argument(help="Name of a model.", autocompletion=_model_names)]


def _backends(incomplete: str) -> list[str]:
    """The backends of files of frameworks that complete a word."""
    from pyruntime.runtime.cli.inspection import BY_SUFFIX

    return sorted(name for name in set(BY_SUFFIX.values()) if name.startswith(incomplete))


def _show_headers_folder(wanted: bool) -> None:
    if wanted:
        # Beside this package, in a source tree as in an installation.
        print(Path(__file__).resolve().parents[2] / "include")
        raise typer.Exit


def _show_version(wanted: bool) -> None:
    if wanted:
        print(pyruntime.__version__)
        raise typer.Exit


@app.callback()
def commands(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version of pyruntime.")
    ] = False,
    include: Annotated[
        bool,
        typer.Option(
            "--include",
            callback=_show_headers_folder,
            is_eager=True,
            help="Print the folder of the headers for backends in C++: g++ -I$(pyruntime --include) ...",
        ),
    ] = False,
) -> None:
    """Runs models written for NVIDIA Triton, without Triton."""


# `main` dispatches `serve` before it imports typer. It is registered here so that the help lists it, and so that shells
# complete its options.
def _serve(**options: str) -> NoReturn:
    raise AssertionError("main runs it")


def _option(option: Option) -> Parameter:
    """A parameter from which typer makes this option."""
    name, info = option.name.replace("-", "_"), typer.Option(f"--{option.name}", help=option.help)
    if option.kind is Kind.FLAG:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info])
    return Parameter(name, Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, info])


_serve.__signature__ = Signature(  # type: ignore[attr-defined]
    [_option(option) for group in GROUPS for option in group.options if option.name != "help"]
)
app.command("serve", cls=_Command, help="Serve the models of a model repository; tritonserver is another name for it.")(
    _serve
)


@app.command(cls=_Command, help="Show the version of pyruntime.")
def version() -> None:
    print(pyruntime.__version__)


@app.command(cls=_Command, help="Show what all threads of a model's processes are doing, stuck ones too.")
def stack(
    model: Annotated[
        str, typer.Argument(help="Name of a model that a server of yours serves on this machine; all without it.")
    ] = "",
    instance: Annotated[str, typer.Option(help="Only this instance, such as add_sub_0.")] = "",
) -> None:
    from pyruntime.runtime.cli.stack import run_stack

    raise typer.Exit(run_stack(model, instance))


@app.command(cls=_Command, help="Check this installation and its machine, and say what to do about each problem.")
def doctor(
    http_port: _Port = 8000, grpc_port: _Port = 8001, metrics_port: _Port = 8002, as_json: _Json = False
) -> None:
    from pyruntime.runtime.cli.doctor import run_doctor

    _leave(lambda: run_doctor({"HTTP": http_port, "gRPC": grpc_port, "metrics": metrics_port}, as_json))


@app.command(cls=_Command, help="Send one request to a model, and show what it answers.")
def infer(
    model: _Model,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE",
            help="An input, repeatable: JSON, a text for BYTES, or @file: .json, .npy, or the bytes themselves.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", "-o", metavar="NAME", help="An output, repeatable; all without it.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Show each response of a decoupled model as it comes.")
    ] = False,
    timing: Annotated[bool, typer.Option("--timing", help="Show the time of each step of an ensemble.")] = False,
    version: Annotated[str, typer.Option("--model-version", metavar="NUMBER", help="A version; else the newest.")] = "",
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A parameter of the request, repeatable."),
    ] = None,
    sequence: Annotated[str, typer.Option("--sequence", metavar="ID", help="The sequence that it belongs to.")] = "",
    starts: Annotated[bool, typer.Option("--start", help="It is the first of its sequence.")] = False,
    ends: Annotated[bool, typer.Option("--end", help="It is the last of its sequence.")] = False,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, max=REPEAT_MAX, help="Send it so often, and show how long that took.")
    ] = 1,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="How long a response may take.")
    ] = None,
    as_json: _Json = False,
    url: _Url = _URL,
    headers: _Headers = None,
) -> None:
    from pyruntime.runtime.cli.commands.asked import Asked, read_parameters
    from pyruntime.runtime.cli.commands.client import ServerClient
    from pyruntime.runtime.cli.commands.infer import run_infer

    def send() -> int:
        given = read_parameters(parameters or ())
        asked = Asked(model, inputs or (), outputs or (), version, given, sequence, starts, ends, repeat)
        return run_infer(ServerClient(url, headers or (), timeout), asked, stream, timing, as_json)

    _leave(send)


@app.command(cls=_Command, help="Show the models of a server.")
def models(as_json: _Json = False, url: _Url = _URL, headers: _Headers = None) -> None:
    from pyruntime.runtime.cli.commands.client import ServerClient
    from pyruntime.runtime.cli.commands.models import run_models

    _leave(lambda: run_models(ServerClient(url, headers or ()), as_json))


@app.command(cls=_Command, help="Load a model, or bring it up to date, on a server in explicit mode.")
def load(model: _Model, as_json: _Json = False, url: _Url = _URL, headers: _Headers = None) -> None:
    from pyruntime.runtime.cli.commands.client import ServerClient
    from pyruntime.runtime.cli.commands.models import run_load

    _leave(lambda: run_load(ServerClient(url, headers or ()), model, as_json))


@app.command(cls=_Command, help="Unload a model, on a server in explicit mode.")
def unload(model: _Model, as_json: _Json = False, url: _Url = _URL, headers: _Headers = None) -> None:
    from pyruntime.runtime.cli.commands.client import ServerClient
    from pyruntime.runtime.cli.commands.models import run_unload

    _leave(lambda: run_unload(ServerClient(url, headers or ()), model, as_json))


@app.command(cls=_Command, help="Show what models have done, and how long that took.")
def stats(
    model: Annotated[str, typer.Argument(help="Name of a model; all without it.", autocompletion=_model_names)] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every second, until Ctrl-C.")] = False,
    as_json: _Json = False,
    url: _Url = _URL,
    headers: _Headers = None,
) -> None:
    from pyruntime.runtime.cli.commands.client import ServerClient
    from pyruntime.runtime.cli.commands.stats import run_stats

    _leave(lambda: run_stats(ServerClient(url, headers or ()), model, watch, as_json))


@app.command(cls=_Command, help="Show the models of a server live: queues, rates, latencies, memory. Ctrl-C ends it.")
def top(
    sort: Annotated[
        Sort, typer.Option("--sort", help="What comes first: the largest of these, or by name.")
    ] = Sort.NAME,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600.0, help="Seconds between two looks.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval.")] = False,
    as_json: _Json = False,
    url: _Url = _URL,
    headers: _Headers = None,
) -> None:
    from pyruntime.runtime.cli.commands.client import ServerClient
    from pyruntime.runtime.cli.commands.top import RESPONSE_S_MAX, run_top

    _leave(lambda: run_top(ServerClient(url, headers or (), RESPONSE_S_MAX), sort, interval, once, as_json))


_Libraries = Annotated[
    list[str] | None,
    typer.Option("--library", metavar="FILE", help="A library of custom operations, repeatable."),
]
_Backend = Annotated[
    str, typer.Option("--backend", help="The backend, if the file's suffix does not say it.", autocompletion=_backends)
]
_Environment = Annotated[
    str, typer.Option("--environment", metavar="PATH", help="An environment that has the framework.")
]


@app.command(cls=_Command, help="Show what a server would know of a file of a framework: tensors, batches, operations.")
def inspect(
    file: Annotated[str, typer.Argument(help="The file or folder: model.onnx, model.pt2, model.skops...")],
    backend: _Backend = "",
    libraries: _Libraries = None,
    environment: _Environment = "",
    as_json: _Json = False,
) -> None:
    from pyruntime.runtime.cli.inspect_file import run_inspect
    from pyruntime.runtime.cli.inspection import Wanted

    wanted = Wanted(file, backend, tuple(libraries or ()), environment)
    _leave(lambda: run_inspect(wanted, as_json))


new = typer.Typer(help="Write a model or a backend that works, to go on from.", no_args_is_help=True, cls=_Group)
app.add_typer(new, name="new")

_Directory = Annotated[str, typer.Argument(help="Where its folder is made.")]


@new.command(
    "model", cls=_Command, help="Write a model in Python, or of a file of a framework: configuration, code and a test."
)
def new_model(
    name: Annotated[str, typer.Argument(help="Its name, which is its folder's too.")],
    directory: _Directory = ".",
    file: Annotated[str, typer.Option("--from", metavar="FILE", help="Serve this file: model.onnx, model.pt2...")] = "",
    backend: _Backend = "",
    libraries: _Libraries = None,
    environment: _Environment = "",
) -> None:
    if file:
        from pyruntime.runtime.cli.inspection import Wanted
        from pyruntime.runtime.cli.new_of_file import run_new_model_of_file

        wanted = Wanted(file, backend, tuple(libraries or ()), environment)
        _leave(lambda: run_new_model_of_file(name, directory, wanted))
    from pyruntime.runtime.cli.new import run_new_model

    _leave(lambda: run_new_model(name, directory))


@new.command("backend", cls=_Command, help="Write a backend, for models to share, with a model that uses it and tests.")
def new_backend(
    name: Annotated[str, typer.Argument(help="What models say in `backend`.")],
    in_cpp: Annotated[bool, typer.Option("--cpp/--python", help="The language it is written in.")],
    directory: _Directory = ".",
) -> None:
    from pyruntime.runtime.cli.new import run_new_backend

    _leave(lambda: run_new_backend(name, directory, in_cpp))


def _leave(command: Callable[[], int]) -> NoReturn:
    from pyruntime.runtime.cli.commands.show import run_command

    raise typer.Exit(run_command(command))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    try:
        app(args=list(arguments), prog_name="pyruntime")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0

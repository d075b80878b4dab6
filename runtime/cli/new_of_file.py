# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime new model --from`: writes the folder of a model around a file of a framework.

The configuration is what the server would complete, so that it can be changed. Where the file does not tell its tensors
it has the names that are known, with datatypes and shapes to be corrected.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf import text_format

from pyruntime.runtime.cli.commands.client import CommandError, WrongUsage
from pyruntime.runtime.cli.commands.show import progress
from pyruntime.runtime.cli.inspection import PIPELINE, Inspection, Wanted, inspect
from pyruntime.runtime.cli.model_files import WHOLE_VERSIONS
from pyruntime.runtime.cli.new import new_folder, show_next_steps, write_file
from pyruntime.runtime.cli.skeleton import NameProblem, Names
from pyruntime.runtime.config.backends import FORMATS
from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.runtime.environments.forms import PARAMETER
from pyruntime.runtime.repository.paths import path_below
from pyruntime.utils.dtypes import BY_NAME, BY_NUMBER

# The fields of a completed configuration that are written: all others have defaults that depend on the server.
_WRITTEN = ("backend", "max_batch_size", "input", "output", "dynamic_batching")
_STEM = "model"
_UNKNOWN_OUTPUT = "OUTPUT__0"
_TO_CORRECT = (
    "# The file does not tell its tensors: correct the datatypes and shapes of inputs, and all of the outputs.\n"
)
_TEST = '''"""Tests of the model {name}, without a server: pytest finds `load_model` where pyruntime is installed."""

from pathlib import Path

import numpy as np

MODEL = Path(__file__).resolve().parent


def test_answers(load_model):
    """Put real inputs here, and what the model makes of them."""
    {call}
        {{
{inputs}        }}
    )
{checks}'''
_CALL, _CALL_OF_DECOUPLED = "result = load_model(MODEL).infer(", "results = load_model(MODEL).stream("


def run_new_model_of_file(name: str, directory: str, wanted: Wanted) -> int:
    """Write the folder of a model into `directory`. Raises CommandError, before anything is written if it can."""
    try:
        Names.of_model(name)
    except NameProblem as problem:
        raise WrongUsage(str(problem)) from problem
    with progress(f"{wanted.path} is being read"):
        found = inspect(wanted)
    if found.problem and (found.contents is None or not found.contents.arguments):
        raise CommandError(found.problem)
    copies = _targets(_copies(found, wanted))
    with new_folder(name, directory) as folder:
        write_file(folder / "config.pbtxt", config_text(name, found, wanted))
        for target, source in copies.items():
            _copy(source, folder / target)
        if not found.problem:
            write_file(folder / f"test_{name}.py", check_text(name, found.config))
    if found.problem:
        print(f"\nThe file does not tell its tensors: correct those in {folder / 'config.pbtxt'}, then serve it.")
    show_next_steps(folder, has_test=not found.problem)
    return 0


def config_text(name: str, found: Inspection, wanted: Wanted) -> str:
    """The text of config.pbtxt."""
    config = new_model_config()
    config.CopyFrom(found.config)
    for field in config.DESCRIPTOR.fields:
        if field.name not in _WRITTEN:
            config.ClearField(field.name)
    if config.HasField("dynamic_batching"):
        config.dynamic_batching.Clear()
    config.name = name
    config.model_operations.op_library_filename.extend(map(os.path.basename, wanted.libraries))
    if not wanted.libraries:
        config.ClearField("model_operations")
    if wanted.environment:
        config.parameters[PARAMETER].string_value = os.path.abspath(wanted.environment)
    if PIPELINE in found.config.parameters:
        config.parameters[PIPELINE].CopyFrom(found.config.parameters[PIPELINE])
    if not found.problem or found.contents is None:
        return text_format.MessageToString(config)
    unknown = {"data_type": BY_NAME["FP32"].number, "dims": [-1]}
    for each in found.contents.arguments:
        config.input.add(name=each, optional=each in found.contents.optional, **unknown)
    config.output.add(name=_UNKNOWN_OUTPUT, **unknown)
    return _TO_CORRECT + text_format.MessageToString(config)


def check_text(name: str, config: Config) -> str:
    """The text of a test that sends one request of zeros, or of texts that are numbers."""
    given = [each for each in config.input if not each.optional]
    inputs = "".join(f"            {_quoted(each.name)}: {_zeros(config, each)},\n" for each in given)
    if config.model_transaction_policy.decoupled:
        return _TEST.format(name=name, call=_CALL_OF_DECOUPLED, inputs=inputs, checks="    assert list(results)\n")
    checks = "".join(
        f"    assert result[{_quoted(each.name)}].ndim == {len(_shape(config, each))}\n" for each in config.output
    )
    return _TEST.format(name=name, call=_CALL, inputs=inputs, checks=checks)


def _zeros(config: Config, tensor: Config) -> str:
    datatype = BY_NUMBER[tensor.data_type]
    shape = _shape(config, tensor)
    if datatype.name == "BYTES":
        return f'np.full({shape}, b"1", np.object_)'
    return f'np.zeros({shape}, "{datatype.numpy or "<f4"}")'


def _quoted(name: str) -> str:
    """A name as a literal of Python."""
    return json.dumps(name)


def _shape(config: Config, tensor: Config) -> tuple[int, ...]:
    """A shape of one request: 1 for any size."""
    dims = tuple(1 if size < 0 else int(size) for size in tensor.dims)
    return (1, *dims) if config.max_batch_size else dims


def _default_name(found: Inspection) -> str:
    """The name that a backend looks for, "" for the version's folder itself. A folder may have had any name."""
    if found.path.is_dir() and found.config.backend in WHOLE_VERSIONS:
        return ""
    names = [each.filename for each in FORMATS if each.backend == found.config.backend and each.is_folder]
    return names[0] if names and found.path.is_dir() else f"{_STEM}{found.path.suffix}"


def _copies(found: Inspection, wanted: Wanted) -> Iterator[tuple[Path, Path]]:
    """The files to copy, and where to in the model's folder. Raises CommandError."""
    version = Path("1")
    yield found.path, version / _default_name(found)
    for source, target in (found.contents.companions if found.contents else {}).items():
        root = found.path if found.path.is_dir() else found.path.parent
        path = path_below(os.fspath(root), source)
        if path is None or path_below(os.fspath(version), target) is None:
            raise CommandError(f"'{found.path}' names the file '{source}', which is not below its folder")
        if root != found.path:  # else it is copied with its folder
            yield Path(path), version / target
    for library in wanted.libraries:
        yield Path(library), Path(os.path.basename(library))


def _targets(copies: Iterable[tuple[Path, Path]]) -> dict[Path, Path]:
    """The file to copy for each place. Raises CommandError if there are two for one."""
    sources: dict[Path, Path] = {}
    for source, target in copies:
        if target in sources:
            raise CommandError(
                f"'{sources[target]}' and '{source}' would both be '{target}' in the folder of the model: leave one "
                "of them out, or rename it"
            )
        sources[target] = source
    return sources


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, whose model file has its name, and print the path. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
        inner = target / source.name
        # The folder of a version has no suffix, and no file of its name.
        if target.suffix and inner.exists() and source.name != target.name:
            inner.rename(target / target.name)
    else:
        shutil.copyfile(source, target)
    print(target)

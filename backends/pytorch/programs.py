# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads a PyTorch model from any of its files, as something that can be called."""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import inspect
import os
import warnings
import zipfile
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional

from pyruntime.backends.pytorch.archives import (
    AOT_INDUCTOR,
    EXPORTED,
    PICKLE,
    SOURCE,
    TORCHSCRIPT,
    UNKNOWN,
    WEIGHTS,
    kind_of,
)
from pyruntime.backends.pytorch.contents import read_contents
from pyruntime.backends.pytorch.exported import check_arguments, rows_max
from pyruntime.backends.toolkit.files import check_file
from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.utils.errors import LoadError

# Triton's name and those of the files that its backend does not have.
FILENAMES = ["model.pt", "model.pt2", SOURCE]
# With the runtime model.py a file of weights belongs to the module in model.py.
FILENAMES_OF_RUNTIME = [SOURCE, "model.pt", "model.pt2"]


@dataclass(frozen=True)
class Program:
    """A model that is called as `forward` is. `module` is the nn.Module, None if it has none.

    `arguments` are the names of its arguments, None if they are not known. With `takes_dict` it has one argument, a
    dict of all inputs. Arguments in `keywords` are passed by name. With `takes_more` it has any number of further
    positional ones. `rows_max` is the largest batch, None without a limit.
    """

    kind: str
    call: Callable[..., Any]
    module: Any
    arguments: Optional[List[str]]
    takes_dict: bool = False
    takes_more: bool = False
    keywords: frozenset[str] = frozenset()
    rows_max: Optional[int] = None


def load_program(torch: Any, model: str, path: str, device: Any) -> Program:
    """The program in `path`, on `device`; None leaves it where it was saved. Raises LoadError."""
    folder = os.path.dirname(path)
    if path.endswith(".py"):
        return _load_module(torch, model, path, _find_weights(model, folder), device)
    kind = kind_of(path)
    source = os.path.join(folder, SOURCE)
    if kind in (WEIGHTS, PICKLE) and os.path.isfile(source):
        return _load_module(torch, model, source, path, device)
    check_program(model, path, kind)
    if kind == EXPORTED:
        return _of_exported(read_exported(torch, model, path), model, device)
    with _explained(model, path, kind, torch), quiet():
        if kind == TORCHSCRIPT:
            return _of_torchscript(torch.jit.load(path, map_location=device).eval())
        inductor = importlib.import_module("torch._inductor")
        return Program(AOT_INDUCTOR, inductor.aoti_load_package(path), None, None)


def check_program(model: str, path: str, kind: str) -> None:
    """Raise LoadError if a file of this kind is no program, and say what to do."""
    start = f"model '{model}': '{path}'"
    if kind == UNKNOWN:
        raise LoadError(
            f"{start} is no file of torch.export, torch.jit or torch.save: its end may be missing, or it is a file of "
            "something else"
        )
    if kind == PICKLE:
        raise LoadError(
            f"{start} is a pickle of torch.save, which has objects but not the code of their classes, and would run "
            "code when it is loaded: save the model with torch.export or torch.jit"
        )
    if kind == WEIGHTS:
        raise LoadError(
            f"{start} has weights only, so that {SOURCE} with their torch.nn.Module must be next to it; or save the "
            "model with torch.export or torch.jit"
        )


def read_exported(torch: Any, model: str, path: str) -> Any:
    """The program of torch.export in a file. Raises LoadError."""
    with _explained(model, path, EXPORTED, torch), quiet():
        return torch.export.load(path)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings that formats are deprecated: whoever serves a model cannot save it in another one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _of_torchscript(module: Any) -> Program:
    _, *arguments = module.forward.schema.arguments
    takes_dict = len(arguments) == 1 and arguments[0].type.kind() == "DictType"
    names = None if takes_dict else [each.name for each in arguments]
    return Program(TORCHSCRIPT, module, module, names, takes_dict)


def _of_exported(program: Any, model: str, device: Any) -> Program:
    check_arguments(program, model)
    if device is not None and device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    _, named = program.call_spec.in_spec.unflatten(list(program.graph_signature.user_inputs))
    module = program.module()
    return Program(
        EXPORTED,
        module,
        module,
        list(program.graph_signature.user_inputs),
        keywords=frozenset(named),
        rows_max=rows_max(program),
    )


def _load_module(torch: Any, model: str, source: str, weights: str, device: Any) -> Program:
    module_class = _module_class(torch, model, source)
    with _explained(model, source, "torch.nn.Module"):
        module = module_class()
    if weights:
        check_file(model, weights)
        with _explained(model, weights, WEIGHTS):
            _set_weights(module, _read_weights(torch, model, weights))
    if device is not None:
        module = module.to(device)
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    return Program(
        "torch.nn.Module",
        module.eval(),
        module,
        [*names, *keywords],
        takes_more=any(each.kind is each.VAR_POSITIONAL for each in parameters),
        keywords=frozenset(keywords),
    )


def _module_class(torch: Any, model: str, source: str) -> Any:
    """The class of torch.nn.Module in a file. As in Triton, the first one by name if there are several."""
    spec = importlib.util.spec_from_file_location("pytorch_model", source)
    assert spec is not None  # it is a file of Python code
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in sorted(vars(module)):
        each = vars(module)[name]
        if isinstance(each, type) and issubclass(each, torch.nn.Module) and each.__module__ == module.__name__:
            return each
    raise LoadError(f"model '{model}': '{source}' defines no class that is derived from torch.nn.Module")


def _find_weights(model: str, folder: str) -> str:
    """The file of weights next to model.py; "" if there is none. Raises LoadError if there are several."""
    found = [
        path for suffix in ("safetensors", "pt") for path in sorted(glob.glob(f"{glob.escape(folder)}/*.{suffix}"))
    ]
    if len(found) > 1:
        names = ", ".join(map(os.path.basename, found))
        raise LoadError(
            f"model '{model}' has several files of weights: {names}. Keep one of them in its version folder"
        )
    return found[0] if found else ""


def _read_weights(torch: Any, model: str, path: str) -> Any:
    """The tensors of a file by name, mapped read-only as far as the format allows. Runs no code of the file."""
    if path.endswith(".safetensors"):
        return import_framework("safetensors.torch", "safetensors", "pytorch", model).load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))


def _set_weights(module: Any, weights: Any) -> None:
    """Give the module its weights; without a copy if all have the datatypes that it wants."""
    own = module.state_dict()
    can_assign = all(name in own and own[name].dtype == tensor.dtype for name, tensor in weights.items())
    module.load_state_dict(weights, assign=can_assign)


@contextlib.contextmanager
def _explained(model: str, path: str, kind: str, torch: Any = None) -> Iterator[None]:
    """Raises LoadError for any exception. With `torch` it says which operations of the program torch does not have."""
    try:
        yield
    except LoadError:
        raise
    except Exception as exc:
        lacking = _lacking_operations(torch, path) if torch is not None else []
        if lacking:
            raise LoadError(
                f"model '{model}': '{path}' has custom operations that no library registers: {', '.join(lacking)}. "
                "Name their libraries as op_library_filename in model_operations of config.pbtxt "
                f"({type(exc).__name__}: {exc})"
            ) from exc
        raise LoadError(f"model '{model}': '{path}' cannot be loaded as {kind}: {type(exc).__name__}: {exc}") from exc


def _lacking_operations(torch: Any, path: str) -> List[str]:
    """The custom operations of a program that torch does not know."""
    try:
        names = [name.split("::") for name in read_contents(path).custom]
    except (OSError, ValueError):  # the error of torch says more
        return []
    return ["::".join(each) for each in names if not hasattr(getattr(torch.ops, each[0]), each[1])]

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Infers the backend of a model from its configuration and its files, as Triton does. (pure)

A configuration may leave open any of `backend`, `platform` and `default_model_filename`. What it says, and otherwise
the files of a version, select a *format*, which has all three. A model without any of them may have its backend in its
name: `<name>.<backend>`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyruntime.runtime.config.schema import Config
from pyruntime.utils.errors import ConfigError

# The value of `runtime` for backends in Python.
PYTHON_RUNTIME = "model.py"

# The most names of files in an error message.
NAMES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of model files. `platform` is an older name of backend and format together, "" if there is none.

    `is_folder` says whether the file is a folder; None if it may be either. `others` are files that the backend takes
    in place of `filename`, and Triton does not know.
    """

    filename: str
    backend: str
    platform: str
    is_folder: bool | None
    others: tuple[str, ...] = ()

    def is_among(self, files: Collection[str]) -> bool:
        """Whether a version with these files has this format; names of folders end with a slash."""
        return self.find(files) != ""

    def find(self, files: Collection[str]) -> str:
        """The file of this format among those of a version, "" if there is none."""
        for name in (self.filename, *self.others):
            if (not self.is_folder and name in files) or (self.is_folder is not False and f"{name}/" in files):
                return name
        return ""


# In Triton's order: the first one that is among the files of a version counts.
FORMATS = (
    Format("model.graphdef", "tensorflow", "tensorflow_graphdef", is_folder=False),
    Format("model.savedmodel", "tensorflow", "tensorflow_savedmodel", is_folder=True),
    Format("model.plan", "tensorrt", "tensorrt_plan", is_folder=False),
    Format("model.onnx", "onnxruntime", "onnxruntime_onnx", is_folder=None),
    Format("model.xml", "openvino", "", is_folder=None),
    Format("model.pt", "pytorch", "pytorch_libtorch", is_folder=False, others=("model.pt2",)),
    # Triton does not know it.
    Format("model.jax", "jax", "", is_folder=False),
    Format("model.py", "python", "", is_folder=False),
)
BACKEND_BY_PLATFORM = {format.platform: format.backend for format in FORMATS if format.platform}


def has_format(files: Collection[str]) -> bool:
    """Whether the files of a version say what its backend is."""
    return any(format.is_among(files) for format in FORMATS)


def fill_backend(config: Config, files: Collection[str]) -> None:
    """Fill in what `config` leaves open; `files` are the names in a version's folder, those of folders with a slash.

    Raises ConfigError if neither the configuration nor the files nor the model's name say what the backend is.
    """
    format = _find_format(config, files)
    if format is not None:
        config.backend = config.backend or format.backend
        config.platform = config.platform or format.platform
        if (config.backend, config.runtime) != (
            "pytorch",
            PYTHON_RUNTIME,
        ):  # its file is that of a Python-based backend
            config.default_model_filename = config.default_model_filename or format.find(files) or format.filename
    elif not (config.backend or config.platform or config.default_model_filename):
        backend = config.name.partition(".")[2]
        if not backend:
            raise ConfigError(_unknown(config.name, files))
        config.backend, config.default_model_filename = backend, filename_of(backend)


def filename_of(backend: str) -> str:
    """The file of a model whose name alone says what its backend is, as Triton fills it in."""
    return f"model.{backend}"


def _find_format(config: Config, files: Collection[str]) -> Format | None:
    formats = [format for format in FORMATS if config.backend in ("", format.backend)]
    if len(formats) > 1:
        name, platform = config.default_model_filename, config.platform
        if platform:
            formats = [format for format in formats if format.platform == platform]
        else:
            formats = [
                format
                for format in formats
                if (name in (format.filename, *format.others) if name else format.is_among(files))
            ]
    return formats[0] if formats else None


def _unknown(name: str, files: Collection[str]) -> str:
    found = ", ".join(sorted(files)[:NAMES_SHOWN_MAX]) + (", ..." if len(files) > NAMES_SHOWN_MAX else "")
    known = ", ".join(name for format in FORMATS for name in (format.filename, *format.others))
    return (
        f"Invalid model name: Could not determine backend for model '{name}' with no backend in model configuration. "
        f"Expected model name of the form 'model.<backend_name>'. Its version has {found or 'no files'}, and none of "
        f"{known}: set 'backend' in config.pbtxt, or rename the file"
    )

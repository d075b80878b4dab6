# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Tells the author of a model, in the log, of outputs that are not as the configuration says.

As in Triton they are no errors: an output of another datatype or shape is sent as it is, and one that the configuration
does not declare is dropped. Each mistake is logged once for all instances of a version, because a model makes it with
every request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyruntime.runtime.config.spec import ModelSpec, TensorSpec
from pyruntime.runtime.requests.types import OutputTensor

_LOG = logging.getLogger("pyruntime.instances")

# The sentences about one version that are logged, and the characters of a name in them: a model may make up names.
FINDINGS_MAX = 64
NAME_CHARS_MAX = 200


def wrong_datatype(spec: ModelSpec, output: OutputTensor, declared: TensorSpec) -> str:
    """A sentence about an output whose datatype is not that of the configuration, "" if it is."""
    if output.datatype == declared.datatype:
        return ""
    sentence = f"{_subject(spec, output)} datatype {output.datatype}, and the configuration says {declared.datatype}"
    if (output.datatype, declared.datatype) == ("FP64", "FP32"):
        sentence += (
            ": numpy makes float64 unless it is told otherwise, so convert the array with .astype(numpy.float32)"
        )
    return sentence


def wrong_shape(spec: ModelSpec, output: OutputTensor, declared: TensorSpec) -> str:
    """A sentence about an output whose shape, as a client gets it, does not fit the configuration, "" if it does."""
    wanted = declared.shape
    if len(output.shape) == len(wanted):
        for size, dim in zip(output.shape, wanted, strict=True):
            if dim != size and dim != -1:
                break
        else:
            return ""
    return f"{_subject(spec, output)} shape {output.shape}, and the configuration says {list(wanted)}"


def undeclared(spec: ModelSpec, name: str) -> str:
    """A sentence about an output that the configuration does not declare."""
    known = ", ".join(f"'{output}'" for output in spec.outputs) or "no outputs"
    name = name[:NAME_CHARS_MAX]
    return f"output '{name}' of model '{spec.name}' is dropped, because the configuration declares {known}"


class OutputFindings:
    """See the module. `file` is the model's file, for the log."""

    def __init__(self, spec: ModelSpec, file: str) -> None:
        self._spec = spec
        self._file = file
        self._said: set[tuple[str, str]] = set()

    def check(self, outputs: Iterable[OutputTensor]) -> None:
        """Log what is wrong with outputs that are sent to a client."""
        spec = self._spec
        for output in outputs:
            declared = spec.outputs.get(output.name)
            if declared is None:
                continue  # a state of a sequence, which has its own checks
            if output.datatype != declared.datatype:
                self._say(output.name, "datatype", wrong_datatype(spec, output, declared))
            sentence = wrong_shape(spec, output, declared)
            if sentence:
                self._say(output.name, "shape", sentence)

    def dropped(self, name: str) -> None:
        """Log that an output was dropped, because the configuration does not declare it."""
        self._say(name[:NAME_CHARS_MAX], "name", undeclared(self._spec, name))

    def _say(self, name: str, aspect: str, sentence: str) -> None:
        if (name, aspect) not in self._said and len(self._said) < FINDINGS_MAX:
            self._said.add((name, aspect))
            _LOG.warning("%s (%s; said once)", sentence, self._file)


def _subject(spec: ModelSpec, output: OutputTensor) -> str:
    return f"output '{output.name}' of model '{spec.name}' has"

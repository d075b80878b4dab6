# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Custom operations of frameworks: what each backend must do with the libraries of `model_operations`."""

import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .server import READY_LIMIT_S, Server
from .waiting import wait_until


def libraries(*names: Any) -> str:
    """The field of a configuration that names libraries."""
    return "model_operations { " + " ".join(f'op_library_filename: "{name}"' for name in names) + " }\n"


def mapped(server: Server, library: str) -> list[Any]:
    """The stubs that have a library of this name in memory."""
    return [each for each in server.stubs() if library in Path(f"/proc/{each.pid}/maps").read_text()]


class CustomOperations:
    """Tests for a class of a framework. Its fixtures: `compile_op(factor)`, the path of a library with an operation
    that multiplies by a factor; `scaling(name, *libraries)`, the folder of a model of that operation.
    """

    # The framework and its version, as messages have them, and the tensors of the model, of the shape [ -1, 3 ].
    FRAMEWORK: ClassVar[str]
    IN: ClassVar[str] = "IN"
    OUT: ClassVar[str] = "OUT"

    def scaled(self, server: Server, name: str) -> float:
        """What the model makes of 1."""
        answer = server.infer(name, {self.IN: np.ones((1, 3), np.float32)}).as_numpy(self.OUT)
        return float(answer[0][0])

    def test_limits(
        self,
        serve: Callable[..., Server],
        scaling: Callable[..., Path],
        compile_op: Callable[[int], Path],
        compile_library: Callable[..., Path],
    ) -> None:
        """Two models with two libraries for one operation are right at the same time. One of them goes with its model,
        and a new build of it needs no restart. One of another version is refused, with what it lacks.
        """
        two, three = compile_op(2), compile_op(3)
        folder = scaling("two", "ops.so")
        shutil.copy(two, folder / "1" / "ops.so")
        scaling("three", three)
        other = compile_library("needs_missing.c")
        scaling("other", other)
        server = serve("--model-control-mode=explicit", "--load-model=two", "--load-model=three")
        assert [self.scaled(server, name) for name in ("two", "three", "two")] == [2, 3, 2]
        assert len(mapped(server, "ops.so")) == 1
        with closing(server.client(READY_LIMIT_S)) as client:
            client.unload_model("two")
            wait_until(lambda: mapped(server, "ops.so") == [])
            assert server.stubs()
            (folder / "1" / "ops.so").unlink()
            shutil.copy(three, folder / "1" / "ops.so")
            client.load_model("two")
            assert [self.scaled(server, name) for name in ("two", "three")] == [3, 3]
            with pytest.raises(InferenceServerException) as caught:
                client.load_model("other")
        assert (
            f"'{other}' needs the symbol 'FunctionOfAnotherVersion', which {self.FRAMEWORK} of the environment "
            f"{sys.prefix} "
        ) in str(caught.value)

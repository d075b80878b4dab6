# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of native code in a stub to the server, among them requests to models.

They take the same path as the calls of a Python model. Requests are sent by the thread that handles events, so that it
is known which batch waits for them; threads of a pool wait for the answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pyruntime.backends.native.gpu_outputs import NativeGpuOutputs
from pyruntime.backends.native.tensors import native_tensor
from pyruntime.runtime.native.parameters import Parameter, as_json
from pyruntime.stub.host import Answers, Host
from pyruntime.stub.pb_utils import InferenceRequest, InferenceResponse, TritonModelException
from pyruntime.stub.pb_utils.placement import InferenceTrace
from pyruntime.stub.pb_utils.tensor import Tensor
from pyruntime.utils.errors import Code, InferenceError

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton

# Each call takes a thread that waits for its answers. At most this many calls are open.
THREADS_MAX = 1024

_RAW = "raw inputs are not supported, where the model that calls runs in a process: state datatype and shape"
_NO_RESPONSE = "a response of the model that was called cannot be handed over: {}"


class Calls:
    """See the module. The thread that handles events calls `call`."""

    def __init__(self, host: Callable[[], Host], gpu_outputs: NativeGpuOutputs) -> None:
        """`host` returns the server. It raises TritonModelException while there is none."""
        self._host = host
        self._gpu_outputs = gpu_outputs
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="pyruntime native call")
        self._open: dict[int, Answers] = {}

    def run(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a function, which must not raise, in a thread that may block."""
        self._pool.submit(function, *arguments)

    def call(self, call: _triton.Call) -> None:
        """Handle a call of native code: see Call in native/_triton.pyi."""
        match call.method, call.arguments:
            case "infer", arguments:
                self._infer(call, *arguments)
            case "cancel", (number,):
                if (answers := self._open.get(number)) is not None:
                    self.run(answers.cancel)
            case "OutputBuffer", (gpu, size):
                self.run(self._gpu_outputs.answer, call, gpu, size)
            case "InferenceRequestNew", _:
                call.answer(None)  # a missing model fails the request itself
            case "ServerLoadModel", (name, config, files, _):
                self.run(self._ask, call, "load_model", [name, config, files], False)
            case "ServerUnloadModel", (name, dependents, _):
                self.run(self._ask, call, "unload_model", [name, dependents], False)
            case method, arguments:
                self.run(self._ask, call, method, list(arguments), True)

    def close(self) -> None:
        """Cancel all calls."""
        for answers in list(self._open.values()):
            answers.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, call: _triton.Call, method: str, arguments: list[object], has_result: bool) -> None:
        try:
            result = self._host().ask(method, arguments)
        except TritonModelException as exc:
            cause = exc.__cause__
            call.fail(cause.code if isinstance(cause, InferenceError) else Code.INTERNAL, str(exc))
        else:
            call.answer(result if has_result else None)

    # Requests.

    def _infer(
        self,
        call: _triton.Call,
        number: int,
        model: str,
        version: int,
        request_id: str,
        correlation_id: int | str,
        flags: int,
        priority: int,
        timeout_us: int,
        parameters: dict[str, Parameter],
        inputs: Sequence[tuple[str, str | None, list[int], Any]],
        outputs: list[str] | None,
        trace: str,
        *_: object,
    ) -> None:
        """Have a model execute a request, or fail the call; native code then still owns the request."""
        if any(datatype is None for _, datatype, _, _ in inputs):
            call.fail(Code.UNSUPPORTED, _RAW)
            return
        request = InferenceRequest(
            request_id,
            correlation_id,
            (),
            outputs or (),
            model,
            version,
            flags,
            timeout_us,
            trace=InferenceTrace(trace),
        )
        request._inputs = [native_tensor(name, datatype or "", shape, data) for name, datatype, shape, data in inputs]
        request._parameters = as_json(parameters)
        request._priority = priority
        try:
            host = self._host()
            if host.no_bls:
                raise TritonModelException(host.no_bls)
            answers = host.call(request, True)
        except TritonModelException as exc:
            call.fail(Code.UNAVAILABLE, str(exc))
            return
        self._open[number] = answers
        call.answer(None)
        self.run(self._pass_on, call, number, answers, model, max(version, 1))

    def _pass_on(self, call: _triton.Call, number: int, answers: Answers, model: str, version: int) -> None:
        """Pass the answers to a request to native code. One that cannot be passed becomes an error."""
        final = False
        while not final:
            try:
                response = answers.next()
            except Exception as exc:  # the server is gone; otherwise the last reference to `answers` cancels the rest
                call.respond(True, None, {}, (int(Code.INTERNAL), str(exc)), model, version, None)
                break
            final = answers.finished or response is None
            try:
                _respond(call, response, final, model, version)
            except Exception as exc:  # such as a number that no int64_t holds
                call.respond(final, None, {}, (int(Code.INTERNAL), _NO_RESPONSE.format(exc)), model, version, None)
        del self._open[number]


def _respond(call: _triton.Call, response: InferenceResponse | None, final: bool, model: str, version: int) -> None:
    """Pass one answer to native code, or an end without a response."""
    outputs = None if response is None else response.output_tensors()
    if response is None or (final and not outputs and not response.has_error()):
        call.respond(final, None, {}, None, model, version, None)
        return
    if response.has_error():
        error = response.error()
        call.respond(final, None, {}, (int(error.code()), error.message()), model, version, None)
        return
    contents = [
        # What lies on a GPU is in no region.
        (each.name(), each._datatype, each.shape(), each._encoded() if each._region else _copy_of(each))
        for each in outputs or ()
    ]
    call.respond(final, contents, json.loads(response.parameters()), None, model, version, None)


def _copy_of(tensor: Tensor) -> Any:
    """The contents of a tensor that may be on a GPU, in main memory."""
    return tensor._encoded() if tensor.is_cpu() else tensor._encoded().tobytes()

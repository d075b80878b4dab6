# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers requests for text by the outputs of an asynchronous engine, in the event loop of `async def execute`.

All requests run at the same time; the engine makes batches of them. If a client leaves, the task of its request is
cancelled, and so is the engine's generator, which must free what it has for the request.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, AsyncGenerator, Callable, Dict, Optional, Sequence

import triton_python_backend_utils as pb_utils

from pyruntime.backends.toolkit.text import TextRequest, TextResponses, read_text_request
from pyruntime.utils.errors import Code

# The time between two looks at whether clients have left. A step of a language model takes about as long.
CANCELLED_POLL_S = 0.02

Generate = Callable[[TextRequest], AsyncGenerator[Any, None]]
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TextStreams:
    """The open requests of an instance."""

    def __init__(self, generate: Generate, code_of: Callable[[Exception], Optional[Code]]) -> None:
        """`generate` yields the outputs to a request, see TextResponses; closing it aborts the request.

        `code_of` gives the code of an exception that is the client's fault or a known state of the engine. The client
        receives its message. None is an internal error, which is logged, too.
        """
        self._generate = generate
        self._code_of = code_of
        # The response sender of each task.
        self._open: Dict[asyncio.Task[None], Any] = {}
        self._watching: Optional[asyncio.Task[None]] = None

    async def answer(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        """Answer all requests. Returns after the last response; raises nothing."""
        await asyncio.wait([asyncio.create_task(self._answer(request)) for request in requests])

    async def _watch(self) -> None:
        """Cancel the tasks of requests whose clients have left, while there are requests."""
        while self._open:
            await asyncio.sleep(CANCELLED_POLL_S)
            for task, sender in list(self._open.items()):
                if sender.is_cancelled():
                    self._open.pop(task, None)  # once: the engine may await something while it aborts the request
                    task.cancel()

    async def _answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        task = asyncio.current_task()
        assert task is not None  # a coroutine always runs in one
        self._open[task] = sender
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            await self._stream(read_text_request(request), sender)
        except asyncio.CancelledError:
            _fail(sender, "Request was cancelled", Code.CANCELLED)
        except Exception as exc:
            code = self._code_of(exc)
            if code is None:
                pb_utils.Logger.log_error(f"error in a stream: {type(exc).__name__}: {exc}")
                _fail(sender, f"Error generating stream: {exc}", Code.INTERNAL)
            else:
                _fail(sender, str(exc), code)
        finally:
            self._open.pop(task, None)

    async def _stream(self, request: TextRequest, sender: Any) -> None:
        responses = TextResponses(request)
        finished = False
        async with aclosing(self._generate(request)) as outputs:
            async for output in outputs:
                if output.finished:
                    sender.send(responses.make(output), flags=_FINAL)
                    finished = True  # the generator ends by itself; closing it here would abort the request
                elif request.stream:
                    await sender.wait_for_room()
                    sender.send(responses.make(output))
        if not finished:
            raise RuntimeError("the engine ended the request without its last output")


def _fail(sender: Any, message: str, code: Code) -> None:
    error = pb_utils.TritonError(message, code)
    sender.send(pb_utils.InferenceResponse(error=error), flags=_FINAL)

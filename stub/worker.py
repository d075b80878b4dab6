# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stub's loop: reads messages, calls the model, answers. One thread, one model, batches in the order they came.

A batch's answer is on its way before the next batch starts; the host relies on that when it decides, after a death,
which batch was running and which had not begun.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import threading
import time
import traceback
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Set

from pyruntime.stub.loader import describe, load_class, trace
from pyruntime.stub.logs import LOGGER
from pyruntime.stub.pb_utils.model_config import ModelConfig
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.responses import ResponseWriter, WrongResponses, check_responses
from pyruntime.stub.retained import Retained
from pyruntime.utils.channel import StubChannel
from pyruntime.utils.errors import LoadError, PyruntimeError
from pyruntime.utils.messages import (
    AutoComplete,
    Completed,
    Failed,
    Infer,
    Load,
    LoadFailed,
    Message,
    Ready,
    Release,
    Result,
    Retired,
    Stop,
    Stopped,
)
from pyruntime.utils.regions import Region

READ_BYTES = 64 << 10


class Worker:
    """Owns the stub's end of the channel, the two regions, and the model."""

    def __init__(
        self, sock: socket.socket, channel: StubChannel, requests: Region, responses: Region, growth_bytes: int
    ) -> None:
        self._sock = sock
        self._channel = channel
        # A model's threads may log while execute answers; and so may a signal handler or a destructor, in the middle of
        # sending and on the very same thread.
        self._sending = threading.RLock()
        self._in_send = False
        self._outbox: Deque[Message] = deque()
        self._requests = requests
        self._responses = responses
        self._growth = growth_bytes
        self._class: Any = None
        self._model: Any = None
        self._root = ""
        self._name = ""
        self._outputs: Set[str] = set()
        self._writer: Optional[ResponseWriter] = None
        self._retained = Retained()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._forked = False
        os.register_at_fork(after_in_child=self._forget_channel)

    def send(self, message: Message) -> None:
        """Send a message to the host; from any thread, and from within itself."""
        with self._sending:
            self._outbox.append(message)
            if self._in_send:
                return  # the outer call sends it
            self._in_send = True
            try:
                while self._outbox:
                    self._sock.sendall(self._channel.send(self._outbox.popleft()))
            finally:
                self._in_send = False

    def _forget_channel(self) -> None:
        """In a process that the model forked: the channel is its parent's, and the loop is not for it."""
        self._forked = True
        self._sock.close()

    def run(self) -> None:
        """Serve until the host says stop or is gone."""
        try:
            self._serve()
        finally:
            if self._loop is not None:
                self._loop.close()

    def _serve(self) -> None:
        while True:
            data = self._sock.recv(READ_BYTES)
            if not data:
                return
            with self._sending:  # what arrives may change the state that a thread's log line is sent in
                messages = self._channel.receive_data(data)
            for message in messages:
                if type(message) is Infer:
                    self._infer(message)
                elif type(message) is Release:
                    self._release(message.released)
                elif type(message) is Stop:
                    self._finalize()
                    return
                elif not self._load_step(message):
                    return

    def _load_step(self, message: Message) -> bool:
        """Complete or load the model; False if it failed and there is nothing more to do."""
        try:
            if type(message) is AutoComplete:
                answer: Message = Completed(self._complete(message))
            else:
                assert type(message) is Load  # the channel's table admits nothing else here
                self._load(message)
                answer = Ready()
        except LoadError as exc:
            self.send(LoadFailed(str(exc)))
            return False
        except BaseException as exc:
            LOGGER.error("the model cannot be loaded\n%s", trace(exc))
            self.send(LoadFailed(describe(exc, self._root)))
            return False
        self.send(answer)
        return True

    def _import(self, location: Dict[str, str]) -> None:
        if self._class is None:
            self._root = location.get("backend_dir") or location["model_dir"]
            self._class = load_class(location)

    def _complete(self, message: AutoComplete) -> str:
        self._import(message.location)
        complete = getattr(self._class, "auto_complete_config", None)
        if complete is None:
            return ""
        completed = complete(ModelConfig(message.config))
        if not isinstance(completed, ModelConfig):
            name = json.loads(message.config).get("name", "")
            raise LoadError(
                f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object."
            )
        return json.dumps(completed.as_dict())

    def _load(self, message: Load) -> None:
        self._import(message.location)
        args = message.args
        self._name = args["model_instance_name"]
        self._outputs = {output["name"] for output in json.loads(args["model_config"]).get("output", [])}
        self._writer = ResponseWriter(self._responses, self._growth, args["model_name"], self._outputs)
        self._model = self._class()
        if hasattr(self._model, "initialize"):
            self._model.initialize(args)

    def _infer(self, message: Infer) -> None:
        batch = message.batch
        self._release(message.released)
        region = self._requests.map
        outputs = self._outputs
        requests = [InferenceRequest._from_wire(region, wire, outputs) for wire in message.requests]
        responses: Any = None
        failure = ""
        end_ns = 0
        start_ns = time.monotonic_ns()
        try:
            responses = self._model.execute(requests)
            if type(responses) is not list and inspect.iscoroutine(responses):
                responses = self._run(responses)
            end_ns = time.monotonic_ns()
            check_responses(responses, requests)
        except BaseException as exc:
            end_ns = end_ns or time.monotonic_ns()
            failure = self._failure(exc)
            traceback.clear_frames(exc.__traceback__)  # a coroutine's future and its traceback keep each other
        if self._forked:
            os._exit(0)  # the child of a fork has come back from execute: its work is done, and the answer is not its
        # From here on no traceback and no response of ours refers to the requests: only the model can.
        if failure:
            responses = None
            retained = self._retained.retain(batch, requests)
            self.send(Failed(batch, failure, retained, start_ns, end_ns))
        else:
            assert self._writer is not None  # made by Load, which the channel demands first
            write = self._writer.write
            wire = [write(response, request) for response, request in zip(responses, requests)]
            responses = None
            retained = self._retained.retain(batch, requests)
            self._answer(Result(batch, wire, retained, start_ns, end_ns))
        if len(self._retained) > len(retained):
            gone = self._retained.let_go()
            if gone:
                self.send(Retired(gone))

    def _answer(self, result: Result) -> None:
        try:
            self.send(result)
        except PyruntimeError as exc:  # a result with more text than a frame holds
            self._release([response[2] for response in result.responses if response[2] >= 0])
            text = f"Failed to process the request(s) for model '{self._name}', message: {exc}"
            self.send(Failed(result.batch, text, result.retained, result.start_ns, result.end_ns))

    def _run(self, coroutine: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)

    def _failure(self, exc: BaseException) -> str:
        """Log an exception of execute in full; what the clients read of it."""
        if isinstance(exc, WrongResponses):
            cause = str(exc)
            LOGGER.error("execute failed: %s", cause)
        else:
            LOGGER.error("execute failed\n%s", trace(exc))
            cause = describe(exc, self._root)
        return f"Failed to process the request(s) for model '{self._name}', message: {cause}"

    def _release(self, slots: List[int]) -> None:
        if slots:
            assert self._writer is not None  # made by Load, which the channel demands first
            for slot in slots:
                self._writer.arena.free(slot)

    def _finalize(self) -> None:
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException as exc:
                LOGGER.error("finalize failed\n%s", trace(exc))
        self.send(Stopped())

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The stub's main thread: loads the model, executes its batches, finalizes it.

Work messages (such as Infer) are queued until the thread, or one of the model's execution threads, is free. The thread
that reads a message handles all others at once; this may be any waiting thread: see link.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import socket
import threading
from collections import deque
from typing import Any, Deque, Dict, List, Set

from pyruntime.stub import host, stacks
from pyruntime.stub.batches import Batches, end_fork
from pyruntime.stub.calls import Calls
from pyruntime.stub.coroutines import Coroutines
from pyruntime.stub.link import Link
from pyruntime.stub.loader import describe, load_class, log_failure
from pyruntime.stub.memory import Regions
from pyruntime.stub.pb_utils.model_config import ModelConfig
from pyruntime.stub.responses import ResponseWriter, StateWriter
from pyruntime.stub.server import Server
from pyruntime.utils.channel import StubChannel
from pyruntime.utils.errors import LoadError
from pyruntime.utils.messages import (
    Answer,
    AutoComplete,
    CheckReady,
    Completed,
    Credit,
    DropSequences,
    Infer,
    IsReady,
    Load,
    LoadFailed,
    MapGpu,
    Message,
    Ready,
    Release,
    Reply,
    Requeue,
    Stop,
    Stopped,
    Unmap,
    UnmapGpu,
    Unread,
)
from pyruntime.utils.regions import Region

NO_BLS = "BLS is only supported during the 'execute' function."
NO_BLS_IN_FORK = "BLS is not possible in a process that the model has forked."


class Worker:
    """Owns the stub's end of the channel, the regions, and the model."""

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        channel: StubChannel,
        regions: Regions,
        responses: Region,
        growth_bytes: int,
    ) -> None:
        self._name = name
        self.link = Link(sock, channel, self._handle)
        self._regions = regions
        self._responses = responses
        self._growth = growth_bytes
        self._work: Deque[Message] = deque()
        self._stopping = False
        self._forked = False
        self._concurrency = 1
        self._class: Any = None
        self._model: Any = None
        self._root = ""
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # a model may set it
        # Created by Load, which the channel requires before any message that needs them.
        self._writer: ResponseWriter
        self._calls: Calls
        self._server: Server
        self._batches: Batches
        self._coroutines = Coroutines(self.link, True, self._set_loop)

    def forked(self) -> None:
        """Close the channel in a child that the model forked, because it belongs to the parent."""
        self._forked = True
        if self._model is not None:
            self._batches.forked = True
            # The memory for the inputs of calls is the parent's, too.
            self._server.no_bls = NO_BLS_IN_FORK
        self.link.closed = True
        self.link.close()

    def run(self) -> None:
        """Serve until the host sends Stop or ends."""
        work, wait = self._work, self._coroutines.wait
        arrived = work.__len__  # which is no call of a Python function
        try:
            while work or wait(arrived, self._interrupted):
                try:
                    message = work.popleft()
                except IndexError:
                    continue  # another thread has put it back
                if type(message) is Infer:
                    self._batches.execute(message, self._coroutines)
                elif type(message) is DropSequences:
                    self._drop_sequences(message, self._coroutines)
                elif type(message) is Stop:
                    self._finalize()
                    return
                elif not self._load_step(message):
                    return
                if self._concurrency > 1:
                    return self._run_in_threads()
        finally:
            self._coroutines.close()
            self.link.closed = True  # destructors of objects that the model still has must send nothing
            self._release_model()

    def _interrupted(self, exc: BaseException) -> None:
        """A signal handler of the model has raised an exception while nothing was executed.

        As in Triton, the next batch fails with it.
        """
        if self._model is None:  # the import has begun something that cannot go on
            raise exc
        self._batches.interruption = exc

    def _release_model(self) -> None:
        """Let go of the model, whose destructors may need modules that Python's exit takes apart."""
        if self._model is not None:
            self._model = self._batches.model = None

    # Messages that the reading thread handles.

    def _handle(self, message: Message) -> None:
        kind = type(message)
        if kind is Infer:
            self._arrived(message)  # type: ignore[arg-type]
        elif kind is Release:
            self._writer.free(message.released)  # type: ignore[union-attr]
        elif isinstance(message, Answer):
            self._calls.answered(message)
        elif isinstance(message, Credit):
            self._server.credit(message.streams)
        elif isinstance(message, Unread):
            self._calls.unread(message.calls)
        elif isinstance(message, Reply):
            self._server.reply(message)
        elif isinstance(message, MapGpu):
            self._regions.gpu.chunks.announce(message)
        elif isinstance(message, UnmapGpu):
            self._regions.gpu.unmap(message.number)
        elif isinstance(message, Unmap):
            for number in message.regions:
                self._regions.unmap(number)
        elif isinstance(message, CheckReady):
            threading.Thread(target=self._check_ready, name="pyruntime is_ready", daemon=True).start()
        else:
            # Set before Stop is queued: a thread that finds no work because another one took Stop must not wait.
            self._stopping = kind is Stop
            self._work.append(message)
            self._coroutines.work_arrived()

    def _arrived(self, message: Infer) -> None:
        if message.released:
            self._writer.free(message.released)
        waiting, held = self._calls.waiting, self._server.held
        if (waiting or held) and self._concurrency == 1 and self._batches.is_running([*waiting.values(), held]):
            # The running batch waits for another model, or for a client to read: that may in turn wait for this one.
            self.link.send(Requeue([message.batch]))
            return
        self._work.append(message)
        self._coroutines.work_arrived()

    def _waiting_batch(self) -> int:
        """See Server. Also returns queued batches to the host, since other instances may be free to execute them."""
        batch = self._batches.waiting_batch()
        if batch and self._work and self._concurrency == 1:
            waiting = []
            others = []
            with contextlib.suppress(IndexError):  # one by one, because other threads add and take work meanwhile
                while True:
                    message = self._work.popleft()
                    if type(message) is Infer:
                        waiting.append(message.batch)
                    else:
                        others.append(message)
            self._work.extend(others)
            if waiting:
                self.link.send(Requeue(waiting))
        return batch

    def _check_ready(self) -> None:
        try:
            ready = self._model.is_ready()
            if inspect.isawaitable(ready):
                ready = asyncio.run(_awaited(ready))
            problem = "" if type(ready) is bool else "is_ready() must return a boolean value"
        except BaseException as exc:
            log_failure("is_ready failed", exc, self._root)
            ready, problem = False, f"is_ready() failed: {type(exc).__name__}"
        if not self.link.closed:
            self.link.send(IsReady(ready is True, problem))

    def _drop_sequences(self, message: DropSequences, coroutines: Coroutines) -> None:
        """Call the model's drop_sequences, which may be a coroutine. Exceptions are logged and have no other effect."""
        try:
            dropped = self._model.drop_sequences(message.ids)
            if inspect.iscoroutine(dropped):
                coroutines.run(dropped)
        except BaseException as exc:
            if self._forked:
                end_fork(exc)
            log_failure("drop_sequences failed", exc, self._root)
        if self._forked:
            end_fork()
        self._batches.retire()  # the model may have kept inputs for these sequences

    # Loading.

    def _load_step(self, message: Message) -> bool:
        """Complete or load the model; False if that failed, and the stub must end."""
        try:
            if type(message) is AutoComplete:
                answer: Message = Completed(self._complete(message))
            else:
                assert type(message) is Load  # the channel's table admits nothing else here
                self._load(message)
                methods = (getattr(self._model, name, None) for name in ("is_ready", "drop_sequences"))
                answer = Ready(*map(callable, methods))
        except LoadError as exc:
            self.link.send(LoadFailed(str(exc), int(exc.code)))
            return False
        except BaseException as exc:
            if self._forked:
                end_fork(exc)
            log_failure("the model cannot be loaded", exc, self._root)
            self.link.send(LoadFailed(describe(exc, self._root)))
            return False
        if self._forked:
            end_fork()
        self.link.send(answer)
        return True

    def _import(self, location: Dict[str, str]) -> None:
        if self._class is None:
            self._root = location.get("backend_dir") or location["model_dir"]
            self._class = load_class(location)

    def _complete(self, message: AutoComplete) -> str:
        stacks.install(json.loads(message.config).get("name", ""), message.location["version"], self._name)
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
        args = message.args
        stacks.install(args["model_name"], args["model_version"], args["model_instance_name"])
        name, config = args["model_instance_name"], json.loads(args["model_config"])
        outputs = {output["name"] for output in config.get("output", [])}
        decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        self._concurrency = message.concurrency
        self._regions.set_number(message.requests_region)
        states = config.get("sequence_batching", {}).get("state", [])
        self._writer = (
            StateWriter(self._responses, self._growth, args["model_name"], outputs, _returned(states, outputs))
            if states
            else ResponseWriter(self._responses, self._growth, args["model_name"], outputs)
        )
        self._calls = Calls(self.link, self._regions, self._writer)
        self.link.on_closed = self._calls.lost
        self._server = Server(
            self.link,
            self._calls,
            self._writer,
            self._responses,
            self._waiting_batch,
            self._retire,
            lambda serial: self._batches.started_ns(serial),
        )
        self._server.decoupled = decoupled
        self._writer.on_undeclared = self._server.drop
        if args.get("model_instance_kind") == "GPU":
            self._server.on_gpu = message.location["gpu_uuid"], self._regions
            reads = config.get("parameters", {}).get("FORCE_CPU_ONLY_INPUT_TENSORS", {}).get("string_value")
            if isinstance(self._writer, StateWriter) and reads == "no":
                self._writer.gpu_memory = self._server.gpu_memory
        self._server.model_dir = os.path.join(args["model_repository"], args["model_version"])
        self._regions.connect(self._server.ask, self._server.tell, self._writer.lend)
        host.set_host(self._server)
        self._import(message.location)
        self._batches = Batches(
            self.link, self._writer, self._regions, name, self._root, outputs, decoupled
        )  # before the model, whose initialize may use all that
        self._batches.server = self._server
        self._model = self._batches.model = self._class()
        if hasattr(self._model, "initialize"):
            self._model.initialize(args)
        if "gpu" in message.location:
            from pyruntime.stub.gpus import check_own_gpu

            check_own_gpu(self._visible, message.location)
        if callable(getattr(self._model, "is_ready", None)):
            self.link.attend()  # CheckReady must be answered while execute runs, too

    def _finalize(self) -> None:
        if self._model is not None:  # a stub may be stopped before it has loaded one
            self._server.no_bls = NO_BLS
            if self._batches.interruption is not None:
                log_failure("a signal handler failed", self._batches.interruption, self._root)
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException as exc:
                if self._forked:
                    end_fork(exc)
                log_failure("finalize failed", exc, self._root)
        if self._forked:
            end_fork()
        self.link.send(Stopped())

    def _set_loop(self, loop: Any) -> None:
        self._calls.loop = loop

    def _retire(self) -> None:
        self._batches.retire()

    # A model that executes in several threads.

    def _run_in_threads(self) -> None:
        threads = [
            threading.Thread(target=self._run_thread, name=f"execute {number}", daemon=True)
            for number in range(self._concurrency)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                try:
                    thread.join()
                except BaseException as exc:
                    self._interrupted(exc)
        if not self.link.closed:
            self._finalize()

    def _run_thread(self) -> None:
        work = self._work
        coroutines = Coroutines(self.link, False, self._set_loop)
        try:
            while self.link.wait(lambda: work or self._stopping):
                try:
                    message = work.popleft()
                except IndexError:
                    if self._stopping:
                        return
                    continue  # another thread has taken it
                if type(message) is Infer:
                    self._batches.execute(message, coroutines)
                elif type(message) is DropSequences:
                    self._drop_sequences(message, coroutines)
                # Nothing else but Stop comes here, and comes last.
        except BrokenPipeError:
            pass  # the host has ended, so no client waits for an answer
        finally:
            coroutines.close()


async def _awaited(ready: Any) -> Any:
    return await ready


def _returned(states: List[Dict[str, Any]], outputs: Set[str]) -> Set[str]:
    """The names of state outputs that a response brings. One that is in place may be an output for clients besides."""
    in_place = {
        state["output_name"]
        for state in states
        if state.get("use_same_buffer_for_input_output") and not state.get("use_growable_memory")
    }
    return {state["output_name"] for state in states} - (in_place & outputs)

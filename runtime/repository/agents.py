# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Repository agents: libraries that look at a model, or put another one in its place, before it is loaded.

A model's configuration names its agents, in order: they are its *chain*, and each finds the model where the one before
it has left it. They are told what happens to the model until its last version is gone: LOAD and UNLOAD in order, what
came of it in the opposite one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Any

from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.native.libraries import explain, prepare
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.utils.errors import LoadError

_LOG = logging.getLogger("pyruntime.repository")

ENTRY_POINT = "TRITONREPOAGENT_ModelAction"


class Action(IntEnum):
    """What happens to a model: TRITONREPOAGENT_ActionType."""

    LOAD = 0
    LOAD_COMPLETE = 1
    LOAD_FAIL = 2
    UNLOAD = 3
    UNLOAD_COMPLETE = 4


@dataclass(slots=True, eq=False)
class Agent:
    """One library. It is asked one thing at a time, as Triton does while models load; `users` are chains."""

    name: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    handle: Any = None
    users: int = 0


class RepositoryAgents:
    """See the module. `directory` is where the folders of agents are; an agent is there while a model has it."""

    def __init__(self, host: NativeHost, directory: str, tasks: asyncio.TaskGroup) -> None:
        self._host = host
        self._directory = directory
        self._tasks = tasks
        self._agents: dict[str, Agent] = {}
        self._numbers = count(1)
        # Chains that come to their end, by model.
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def load(self, name: str, location: str, config: Config, folder: OverrideFolder | None) -> AgentChain:
        """Have the agents of a model's configuration look at it. `folder` is held if the model lies in it.

        Raises LoadError with what an agent says; then the others have been told. Who gets the chain releases it.
        """
        if name in self._ending:
            await asyncio.wait((self._ending[name],))
        self._host.begin("repository agents", name)
        chain = AgentChain(self, name, location, folder, next(self._numbers))
        try:
            text = render(config).decode()
            for agent in config.model_repository_agents.agents:
                await self._add(chain, agent.name, text, sorted(agent.parameters.items()))
        except BaseException:
            await chain.finish(loaded=False)
            chain.release()
            raise
        return chain

    async def close(self) -> None:
        """Wait for what is coming to its end."""
        if self._ending:
            await asyncio.wait(self._ending.values())

    async def _add(self, chain: AgentChain, name: str, config: str, parameters: list[tuple[str, str]]) -> None:
        agent = self._agents.setdefault(name, Agent(name))
        agent.users += 1
        try:
            async with agent.lock:
                if agent.handle is None:
                    agent.handle = await self._open(name, chain.model)
                handle = self._host.native.AgentModel(agent.handle, chain.location, config, parameters)
                await self._host.threads.run(handle.initialize, undo=handle.finalize)
        except BaseException:
            await self.drop(agent)
            raise
        chain.links.append((agent, handle))
        await self.act(agent, handle, Action.LOAD)
        chain.location = handle.location

    async def _open(self, name: str, model: str) -> Any:
        path = self._find(name)
        await asyncio.to_thread(prepare, path, model=model, entry_point=ENTRY_POINT)
        handle = self._host.native.Agent(path)
        try:
            await self._host.threads.run(handle.open)
        except LoadError as exc:
            raise LoadError(explain(str(exc), path, model), exc.code) from exc
        await self._host.threads.run(handle.initialize, undo=handle.finalize)
        return handle

    def _find(self, name: str) -> str:
        library = f"libtritonrepoagent_{name}.so"
        path = os.path.join(self._directory, name, library)
        if "/" in name or not os.path.isfile(path):
            raise LoadError(f"unable to find '{library}' for repo agent '{name}', searched: {self._directory}")
        return path

    # What chains need.

    async def act(self, agent: Agent, handle: Any, action: Action) -> None:
        """Tell an agent what happens to a model. Raises LoadError."""
        async with agent.lock:
            await self._host.threads.run(lambda: handle.act(action))

    async def end(self, agent: Agent, handle: Any) -> None:
        """An agent is done with a model; of whom nobody has a use any more is finalized. Raises LoadError."""
        try:
            async with agent.lock:
                await self._host.threads.end(handle.finalize)
        finally:
            await self.drop(agent)

    async def drop(self, agent: Agent) -> None:
        """A chain does without an agent from now on."""
        agent.users -= 1
        if agent.users:
            return
        async with agent.lock:  # who wants it meanwhile waits until it has ended, and begins anew
            handle, agent.handle = agent.handle, None
            if handle is not None:
                try:
                    await self._host.threads.end(handle.finalize)
                except LoadError as exc:
                    _LOG.error("repository agent '%s' failed to finalize: %s", agent.name, exc)
            if not agent.users:
                self._agents.pop(agent.name, None)

    def end_later(self, model: str, step: Callable[[], Awaitable[None]]) -> None:
        """Bring a chain to its end, after those of the same model that end already."""
        before = self._ending.get(model)

        async def end() -> None:
            if before is not None:
                await asyncio.wait((before,))
            await step()

        task = self._ending[model] = self._tasks.create_task(end(), name=f"end the agents of {model}")
        task.add_done_callback(lambda _: self._ended(model, task))

    def _ended(self, model: str, task: asyncio.Task[None]) -> None:
        if self._ending.get(model) is task:
            del self._ending[model]


class AgentChain:
    """The agents of one load of a model. It is there while somebody holds it; who makes it does.

    `location` is the folder that the model is to be loaded from. `number` is of this load alone.
    """

    def __init__(
        self, agents: RepositoryAgents, model: str, location: str, folder: OverrideFolder | None, number: int
    ) -> None:
        self.model = model
        self.location = location
        self.number = number
        self.links: list[tuple[Agent, Any]] = []
        self._agents = agents
        self._folder = folder
        # Versions that serve, or will; and those who hold the chain, the load that made it among them.
        self._serving = 0
        self._holders = 1
        self._last = Action.LOAD
        if folder is not None:
            folder.hold()

    def __repr__(self) -> str:
        return f"<AgentChain {self.model} [{len(self.links)} agents, {self._last.name}]>"

    async def finish(self, loaded: bool) -> None:
        """Its load is over: some version serves, or none does."""
        await self._tell(Action.LOAD_COMPLETE if loaded else Action.LOAD_FAIL)
        await self._unload()

    def hold(self) -> None:
        """A version was loaded."""
        self._holders += 1
        self._serving += 1

    async def retire(self) -> None:
        """A version is about to end."""
        self._serving -= 1
        await self._unload()

    def release(self) -> None:
        """Who held it does not need it any more; the last one to say so ends it."""
        self._holders -= 1
        if not self._holders:
            self._agents.end_later(self.model, self._end)

    async def _unload(self) -> None:
        if self._last is Action.LOAD_COMPLETE and not self._serving:
            await self._tell(Action.UNLOAD)

    async def _end(self) -> None:
        if self._last is Action.UNLOAD:
            await self._tell(Action.UNLOAD_COMPLETE)
        for agent, handle in self.links:
            try:
                await self._agents.end(agent, handle)
            except LoadError as exc:
                _LOG.error("repository agent '%s' failed to finalize for '%s': %s", agent.name, self.model, exc)
        if self._folder is not None:
            self._folder.release()

    async def _tell(self, action: Action) -> None:
        """What an agent has against it is logged: it is too late for it."""
        self._last = action
        links = self.links if action is Action.UNLOAD else self.links[::-1]
        for agent, handle in links:
            try:
                await self._agents.act(agent, handle, action)
            except LoadError as exc:
                _LOG.error("Agent model returns error on TRITONREPOAGENT_ACTION_%s: %s", action.name, exc)

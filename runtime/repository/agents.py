# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs repository agents: libraries that check a model, or replace its files, before it is loaded.

A model's configuration names its agents, in order: they are its *chain*, and each receives the folder that the previous
one returned. They are notified of the model's actions until its last version has ended: of LOAD and UNLOAD in order, of
the results in the opposite order.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING

from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.instances.native.host import NativeHost
from pyruntime.runtime.repository.override_folder import OverrideFolder
from pyruntime.utils.errors import LoadError

if TYPE_CHECKING:  # the extension is loaded with the first model that needs it
    from pyruntime.runtime.native import _triton

_LOG = logging.getLogger("pyruntime.repository")

ENTRY_POINT = "TRITONREPOAGENT_ModelAction"


class Action(IntEnum):
    """An action on a model: TRITONREPOAGENT_ActionType."""

    LOAD = 0
    LOAD_COMPLETE = 1
    LOAD_FAIL = 2
    UNLOAD = 3
    UNLOAD_COMPLETE = 4


@dataclass(slots=True, eq=False)
class Agent:
    """One library. It gets one call at a time, as in Triton while models load; `users` is the number of its chains."""

    name: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    handle: _triton.Agent | None = None
    users: int = 0


class RepositoryAgents:
    """See the module. `directory` contains the folders of agents; an agent stays loaded while a model uses it."""

    def __init__(self, host: NativeHost, directory: str, tasks: asyncio.TaskGroup) -> None:
        self._host = host
        self._directory = directory
        self._tasks = tasks
        self._agents: dict[str, Agent] = {}
        self._numbers = count(1)
        # The tasks that end chains, by model.
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def load(self, name: str, location: str, config: Config, folder: OverrideFolder | None) -> AgentChain:
        """Run the agents of a model's configuration on it. Holds `folder` if the model lies in it.

        Raises LoadError with an agent's message, after the others were notified. The caller must release the chain.
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
        """Wait until all chains have ended that are ending."""
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

    async def _open(self, name: str, model: str) -> _triton.Agent:
        # Here, because a server without agents starts faster without it.
        from pyruntime.runtime.native.libraries import explain, prepare

        path = self._find(name)
        await asyncio.to_thread(prepare, path, model=model, entry_point=ENTRY_POINT)
        handle: _triton.Agent = self._host.native.Agent(path)
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

    # Called by chains.

    async def act(self, agent: Agent, handle: _triton.AgentModel, action: Action) -> None:
        """Notify an agent of an action on a model. Raises LoadError."""
        async with agent.lock:
            await self._host.threads.run(lambda: handle.act(action))

    async def end(self, agent: Agent, handle: _triton.AgentModel) -> None:
        """Finalize a model of an agent, and the agent itself if no chain uses it any more. Raises LoadError."""
        try:
            async with agent.lock:
                await self._host.threads.end(handle.finalize)
        finally:
            await self.drop(agent)

    async def drop(self, agent: Agent) -> None:
        """Release the use of an agent by a chain."""
        agent.users -= 1
        if agent.users:
            return
        async with agent.lock:  # a new user meanwhile waits for the end, and loads the agent again
            handle, agent.handle = agent.handle, None
            if handle is not None:
                try:
                    await self._host.threads.end(handle.finalize)
                except LoadError as exc:
                    _LOG.error("repository agent '%s' failed to finalize: %s", agent.name, exc)
            if not agent.users:
                self._agents.pop(agent.name, None)

    def end_later(self, model: str, step: Callable[[], Awaitable[None]]) -> None:
        """End a chain, after those of the same model that are ending already."""
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
    """The agents of one load of a model. It exists while it has holders; its creator is the first one.

    `location` is the folder to load the model from. `number` is unique to this load.
    """

    def __init__(
        self, agents: RepositoryAgents, model: str, location: str, folder: OverrideFolder | None, number: int
    ) -> None:
        self.model = model
        self.location = location
        self.number = number
        self.links: list[tuple[Agent, _triton.AgentModel]] = []
        self._agents = agents
        self._folder = folder
        # The number of versions that serve or will serve, and the number of holders, including the load itself.
        self._serving = 0
        self._holders = 1
        self._last = Action.LOAD
        if folder is not None:
            folder.hold()

    def __repr__(self) -> str:
        return f"<AgentChain {self.model} [{len(self.links)} agents, {self._last.name}]>"

    async def finish(self, loaded: bool) -> None:
        """The load has ended; `loaded` if some version serves."""
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
        """Release one hold. The last release ends the chain."""
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
        """Notify all agents. Errors are only logged, because the action can no longer be prevented."""
        self._last = action
        links = self.links if action is Action.UNLOAD else self.links[::-1]
        for agent, handle in links:
            try:
                await self._agents.act(agent, handle, action)
            except LoadError as exc:
                _LOG.error("Agent model returns error on TRITONREPOAGENT_ACTION_%s: %s", action.name, exc)

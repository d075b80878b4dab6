# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A server's models without its processes: all parts are real but for the loader and its versions."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.preferred_groups import with_groups_of
from pyruntime.runtime.inference.model_version import Exchange
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.control import ModelControl
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.repository.live import LiveVersions
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.errors import LoadError
from tests.patience import PATIENCE_S


class NewInstance:
    """Stands for an instance that a version does not use yet."""

    name = "m_0_1"

    def __init__(self):
        self.stops = []

    async def stop(self, timeout_s):
        self.stops.append(timeout_s)


class Version:
    """Stands for a ModelVersion. It stops at once, or once `busy` is set again; `config` is that of its load."""

    def __init__(self, name, number, config=None, path=""):
        self.spec = SimpleNamespace(name=name) if config is None else model_spec(config)
        self.version = number
        self.config = config
        self.path = path
        self.stops = []
        self.kills = 0
        self.finished = asyncio.Event()
        self.finished.set()

        self.instances = ["old"]
        self.released = []
        self.in_sequences = []
        self.may_release = asyncio.Event()
        self.may_release.set()
        # Where its tensors are, and what finds that out.
        self.find_places = lambda: None
        self.on_gpus = None

    def busy(self):
        self.finished.clear()

    def show(self, config):
        self.config = config

    def configure(self, config):
        self.config = config

    def exchange(self, spec, instances):
        leaving = [each for each in self.instances if each not in instances]
        self.instances = instances
        self.review_places()
        return leaving

    def review_places(self):
        before, self.on_gpus = self.on_gpus, self.find_places()
        return self.on_gpus != before

    def has_sequences(self, instance):
        return instance in self.in_sequences

    async def release(self, instance, timeout_s):
        await self.may_release.wait()
        self.released.append(instance)

    async def discard(self, instance):
        await instance.stop(0)

    async def stop(self, timeout_s):
        self.stops.append(timeout_s)
        await self.finished.wait()

    def kill(self):
        self.kills += 1
        self.finished.set()


class Loader:
    """Stands for a ModelLoader. `steps` maps a model to a coroutine function for its versions.

    `log` lists the loads in the order of their beginning, and the exchanges of instances; `complete` completes the
    configuration for the newest version. `new` are the instances that were started for versions that serve. `going_on`
    are the models that load now, and `most` is their largest number so far.
    """

    def __init__(self):
        self.steps = {}
        self.log = []
        self.new = []
        self.going_on = []
        self.most = 0

    def backend_of(self, draft, version):
        return Backend("python", "python", "model.py")

    def complete(self, config):
        return config

    def regrouped(self, draft, model, config):
        return with_groups_of(config, draft.config)

    async def regroup(self, draft, models, config, report):
        for model in models:
            await self._regroup(model, config, report)

    async def _regroup(self, model, config, report):
        name, count = model.spec.name, config.instance_group[0].count
        self.log.append(f"{name}:{model.version} has {count}")
        try:
            if name in self.steps:
                await self.steps[name](model.version)
        except LoadError as exc:
            report(model.version, exc)
        else:
            new = [NewInstance() for _ in range(count - 1)]
            self.new += new
            report(model.version, Exchange(model, model.spec, ["old", *new], new, lambda: model.configure(config)))

    async def load(self, draft, versions, completed, report):
        name = draft.folder.name
        self.going_on.append(name)
        self.most = max(self.most, len(self.going_on))
        try:
            async with asyncio.TaskGroup() as group:
                for version in versions:
                    self.log.append(f"{name}:{version}")
                    group.create_task(self._load(draft, version, completed, report))
        finally:
            self.going_on.remove(name)

    async def _load(self, draft, version, completed, report):
        name = draft.folder.name
        try:
            if name in self.steps:
                await self.steps[name](version)
            if version == draft.newest and not completed.done():
                completed.set_result(self.complete(draft.config))
            config = await asyncio.shield(completed)
        except LoadError as exc:
            if version == draft.newest and not completed.done():
                completed.set_exception(exc)
                completed.exception()
            report(version, exc)
        else:
            report(version, Version(name, version, config, draft.folder.path))


class World:
    """The models of a server: `add` and `touch` change the repository."""

    def __init__(self, repository, tasks, **settings):
        self.repository = repository
        self.settings = ServerSettings((str(repository),), **{"model_control_mode": "explicit", **settings})
        self.table = LifecycleTable()
        self.live = LiveVersions(self.table, tasks, self.settings.exit_timeout_s)
        self.loader = Loader()
        self.agents = None  # these models have none
        self.control = ModelControl(self.settings, self.table, self.live, self.loader, tasks, self.agents)

    def add(self, *names, versions=(1,), config="backend: 'python'"):
        for name in names:
            for version in versions:
                folder = self.repository / name / str(version)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "model.py").write_text("")
            (self.repository / name / "config.pbtxt").write_text(config)

    def touch(self, path):
        path = self.repository / path
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))

    def gate(self, name):
        """Hold loads of a model up until the event that is returned is set."""
        event = asyncio.Event()

        async def wait(version):
            await event.wait()

        self.loader.steps[name] = wait
        return event

    def fail(self, name, *versions, reason="ValueError: no"):
        """Have versions of a model fail to load, all of them if none are named."""

        async def step(version):
            if not versions or version in versions:
                raise LoadError(reason)

        self.loader.steps[name] = step

    def states(self, name):
        return {version: state.name for version, state in self.table.states(name).items()}

    async def until(self, condition):
        """Wait until a condition holds that something else is about to bring about."""
        while not condition():  # noqa: ASYNC110 - what brings it about does not know of us
            await asyncio.sleep(0.001)


@pytest.fixture
def world(tmp_path):
    """`world(test, **settings)`: run `await test(the world)`, and end the world."""

    def run(test, **settings):
        async def main():
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                repository = tmp_path / "models"
                repository.mkdir(exist_ok=True)
                made = World(repository, tasks, **settings)
                try:
                    await test(made)
                finally:
                    await made.control.close()
                    for model in made.live._alive:
                        model.finished.set()
                    await made.live.stop(0)

        asyncio.run(main())

    return run


@pytest.fixture
def version():
    """The class of stand-ins for model versions."""
    return Version

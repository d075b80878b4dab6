# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads of ensembles: where their tensors may lie on GPUs is found out once, however deeply they are nested."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from types import SimpleNamespace

from pyruntime.runtime.gpus.tensor_places import TensorPlaces
from pyruntime.runtime.loaders.ensemble import EnsembleLoader
from pyruntime.runtime.loaders.version_loader import VersionFactory
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.settings import ServerSettings
from pyruntime.utils.request_codec import MEMORY_GPU

from ..model_specs import config_from, spec_from

TENSORS = "input { name: 'in' data_type: TYPE_INT8 dims: 1 } output { name: 'out' data_type: TYPE_INT8 dims: 1 }"
PLACES = [TensorPlaces({"in": gpu}, {"out": (0, 0, MEMORY_GPU, gpu)}) for gpu in range(2)]


def chain(step, length=3):
    """An ensemble that calls one model several times."""
    tensors = ["in", *(f"t{number}" for number in range(1, length)), "out"]
    steps = " ".join(
        f"step {{ model_name: '{step}' model_version: -1 input_map {{ key: 'in' value: '{read}' }} "
        f"output_map {{ key: 'out' value: '{written}' }} }}"
        for read, written in pairwise(tensors)
    )
    return f"platform: 'ensemble' {TENSORS} ensemble_scheduling {{ {steps} }}"


class Model:
    """A model that counts how often somebody looks where its tensors may lie."""

    def __init__(self, places):
        self.spec = spec_from(f"backend: 'python' {TENSORS}", "m")
        self.places = places
        self.looks = 0

    @property
    def on_gpus(self):
        self.looks += 1
        return self.places


ENSEMBLE = Backend("ensemble", "ensemble", "")


async def load(loader, name, step, folder):
    """Load an ensemble of a chain of this step."""
    config = config_from(chain(step), name)
    draft = SimpleNamespace(config=config, newest=1, folder=SimpleNamespace(name=name, path=str(folder)))
    completed = asyncio.get_running_loop().create_future()
    async with AsyncExitStack() as undo:
        model, _ = await loader.load(draft, 1, ENSEMBLE, completed, undo)
        undo.pop_all()
    return model


def nested(places, folder, test):
    """Call `test` with a model and three ensembles, each of them of the one before."""

    async def main():
        models = {"m": Model(places)}
        server, factory = SimpleNamespace(peers=None), VersionFactory(ServerSettings((str(folder),)), None, None)
        loader = EnsembleLoader(lambda name, version: models[name], server, factory)
        for name, step in zip("efg", "mef", strict=True):
            models[name] = await load(loader, name, step, folder)
        test(*models.values())
        for name in "efg":
            models[name].memory.close()

    asyncio.run(main())


def test_models_in_main_memory(tmp_path):
    """Ensembles of them have no places, and nobody looks for any but the load, once for each step."""

    def test(model, *ensembles):
        assert [each.on_gpus for each in ensembles] == [None, None, None]
        assert model.looks == 3

    nested(None, tmp_path, test)


def test_models_on_gpus(tmp_path):
    """An ensemble keeps its places until it is told that a step has moved."""

    def test(model, *ensembles):
        assert [each.on_gpus for each in ensembles] == [PLACES[0]] * 3
        model.places = PLACES[1]
        assert [each.on_gpus for each in ensembles] == [PLACES[0]] * 3
        assert model.looks == 3
        assert [each.review_places() for each in ensembles] == [True] * 3
        assert [each.review_places() for each in ensembles] == [False] * 3
        assert [each.on_gpus for each in ensembles] == [PLACES[1]] * 3
        assert model.looks == 9

    nested(PLACES[0], tmp_path, test)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Draws a scenario from a seed: its models, its clients, and how much goes wrong.

Each part is drawn from a stream of its own, so that a new part leaves what the others draw as it is. To add a feature,
add a field to Scenario and a function that draws it.
"""

from dataclasses import dataclass
from random import Random

from .catalogue import KINDS, VARIANTS, model_of, named
from .clients import KEPT_S_MAX, ClientPlan, Sending

# How often each kind of model is drawn, as the first one of a scenario.
WEIGHTS = {
    "plain": 3,
    "batched": 6,
    "decoupled": 3,
    "cached": 2,
    "streamed": 2,
    "warmed": 2,
    "sequence": 3,
    "stateful": 3,
    "iterative": 2,
    "caller": 2,
    "native": 3,
    "ensemble": 4,
}
assert set(WEIGHTS) == {*KINDS, "ensemble"}

GAPS_S = (0.0, 0.0, 0.00001, 0.001, 0.02, 0.3)
PROTOCOLS = ("http", "http", "grpc")
STREAM_PROTOCOLS = ("generate", "stream")
GPU_PROTOCOL = "gpu"
TIMEOUTS_US = (0, 0, 500, 20_000)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the server: `what` is the name of a method of Events, see run.py."""

    at_s: float
    what: str
    model: str = ""
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class WirePlan:
    """A client that is connected to the server: it draws what it does from a seed of its own."""

    protocol: str
    model: str
    seed: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """See the module. `wires` are the clients over connections, and `pending_bytes` is the budget for their bytes.
    `faults`, `errors`, `launches_fail` and `broker_faults` are likelihoods from 0 to 1. `limit_ms` is how long
    executions may take, 0 for any time."""

    seed: int
    models: tuple
    clients: tuple
    events: tuple
    faults: float
    errors: float
    launches_fail: float
    limits_rate: bool
    wires: tuple
    pending_bytes: int
    broker_faults: float
    limit_ms: int

    @property
    def features(self):
        """The kinds of its models, the protocols of its clients, and what else happens."""
        kinds = {model.kind for model in self.models}
        limit = {"execution limit"} if self.limit_ms else set()
        return kinds | {event.what for event in self.events} | {wire.protocol for wire in self.wires} | limit

    @property
    def is_faultless(self):
        """Whether nothing happens that may make a request fail within the server."""
        harmless = {"reloads", "regroups", "wall_clock_jumps"}
        broker_faults = self.broker_faults if "gpu" in self.features else 0.0
        faults = self.faults or self.errors or self.launches_fail or broker_faults or self.limit_ms
        return not faults and harmless.issuperset(event.what for event in self.events)


def scenario_of(seed):
    """The scenario of a seed."""

    def stream(name):
        return Random(f"{seed} {name}")

    models = _models(stream("models"))
    wires = _wires(stream("wires"), models) + _streams(stream("streams"), models)
    gpus = stream("gpus")
    wires += _gpu_wires(gpus, models)
    # With this name no seed that is kept has a limit, which would let a model that hangs go on.
    limits = stream("duration")
    draw = stream("faults")
    is_calm = draw.random() < 0.4
    return Scenario(
        seed,
        models,
        _clients(stream("clients"), models),
        _events(stream("events"), models, is_calm) + _moves(stream("moves"), models, wires, is_calm),
        0.0 if is_calm else draw.choice((0.0, 0.2, 0.6)),
        draw.choice((0.0, 0.0, 0.1)),
        0.0 if is_calm else draw.choice((0.0, 0.0, 0.2)),
        stream("rate limiter").random() < 0.3,
        wires,
        draw.choice((150, 200, 300, 1 << 20)) * (4 if any(wire.protocol == GPU_PROTOCOL for wire in wires) else 1),
        gpus.choice((0.0, 0.4, 0.8)),
        limits.choice((100, 1000)) if limits.random() < 0.12 else 0,
    )


def _models(draw):
    """One or two models, after those that they need: steps, and models that they call."""
    found = {}

    def add(model):
        for step in model.steps:
            add(step)
        if model.calls:
            add(named(model.calls))
        found[model.name] = model

    for _ in range(draw.choice((1, 1, 2))):
        (kind,) = draw.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))
        add(model_of(kind, draw.randrange(VARIANTS)))
    return tuple(found.values())


def _clients(draw, models):
    """Some clients, of one to a dozen requests each."""
    return tuple(_client(draw, models, number) for number in range(draw.randint(1, 4)))


def _client(draw, models, number):
    model = draw.choice(models[-2:])
    style = draw.choice(("patient", "patient", "flood", "cancels", "leaves"))
    count = draw.randint(1, 12) if style == "flood" else draw.randint(1, 6)
    keep_s = draw.choice((0.0, 0.0, 0.001, KEPT_S_MAX))
    sendings = []
    is_running = False
    for index in range(count):
        is_start = model.is_sequence and (not is_running or draw.random() < 0.05)
        is_end = model.is_sequence and (index == count - 1 or draw.random() < 0.3) and draw.random() < 0.9
        is_running = not is_end
        sendings.append(
            Sending(
                model.name,
                0.0 if style == "flood" else draw.choice(GAPS_S),
                1 if model.is_sequence else draw.randint(1, min(3, max(1, model.spec.max_batch_size))),
                draw.choice((1, 1, 1, 2)),
                draw.randrange(4),
                draw.choice(TIMEOUTS_US),
                style != "flood" and draw.random() < 0.7,
                draw.choice((0.0, 0.0005, 0.01)) if style == "cancels" and draw.random() < 0.5 else None,
                keep_s,
                number + 1 if model.is_sequence else 0,
                is_start,
                is_end,
                1 if model.spec.response_cache and draw.random() < 0.5 else None,
            )
        )
    return ClientPlan(tuple(sendings), draw.choice((0.0005, 0.01, 0.2)) if style == "leaves" else None)


def _wires(draw, models):
    """Clients that are connected to the server, in some scenarios."""
    if draw.random() > 0.2:
        return ()
    return tuple(
        WirePlan(draw.choice(PROTOCOLS), draw.choice(models[-2:]).name, draw.randrange(1 << 32))
        for _ in range(draw.choice((1, 2, 4)))
    )


def _streams(draw, models):
    """Clients that read streams of responses, in some scenarios; mostly of models that send several."""
    if draw.random() > 0.1:
        return ()
    decoupled = [model for model in models[-2:] if model.is_decoupled]
    choice = decoupled if decoupled and draw.random() < 0.8 else models[-2:]
    return tuple(
        WirePlan(draw.choice(STREAM_PROTOCOLS), draw.choice(choice).name, draw.randrange(1 << 32))
        for _ in range(draw.choice((1, 1, 2)))
    )


def _gpu_wires(draw, models):
    """Clients with memory on a GPU, in some scenarios; mostly of models that send one response."""
    if draw.random() > 0.1:
        return ()
    plain = [model for model in models[-2:] if not model.is_decoupled]
    choice = plain if plain and draw.random() < 0.9 else models[-2:]
    return tuple(
        WirePlan(GPU_PROTOCOL, draw.choice(choice).name, draw.randrange(1 << 32)) for _ in range(draw.choice((1, 2, 3)))
    )


def _events(draw, models, is_calm):
    """What else happens, if the scenario is not a calm one."""
    if is_calm:
        return ()
    events = []
    for what in ("memory_runs_out", "time_stands_still", "wall_clock_jumps", "reloads", "regroups", "unloads", "kills"):
        if draw.random() < 0.12:
            model = draw.choice(models).name
            events.append(Event(draw.choice((0.0001, 0.003, 0.05)), what, model, draw.choice((0.01, 0.5, 20.0))))
    return tuple(events)


def _moves(draw, models, wires, is_calm):
    """More loads in scenarios with GPUs, unless they are calm ones. A reload may put a model on another GPU."""
    if is_calm or not any(wire.protocol == GPU_PROTOCOL for wire in wires):
        return ()
    return tuple(
        Event(draw.choice((0.003, 0.02, 0.05)), draw.choice(("reloads", "regroups")), draw.choice(models).name, 0.0)
        for _ in range(draw.choice((0, 1, 2, 3)))
    )

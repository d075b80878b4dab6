# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The C interface of native backends, and what backends are given there."""

import ctypes
import select

import pytest

from pyruntime.utils.flow_control import BYTES_AHEAD_MAX, RESPONSES_AHEAD_MAX

NUMBERS = (ctypes.c_int, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_double)


class Interface:
    """The C interface of the extension as native code calls it: by name, without TRITONSERVER_. Errors are (code,
    message), and None for success.
    """

    # Codes of errors, kinds of metrics, types of parameters, levels of the log.
    INTERNAL, INVALID_ARG, UNSUPPORTED = 1, 3, 5
    COUNTER, GAUGE, HISTOGRAM = range(3)
    STRING, INT, BOOL, DOUBLE, BYTES = range(5)
    INFO, WARN, ERROR, VERBOSE = range(4)

    def __init__(self, path):
        self._library = ctypes.CDLL(path)

    def function(self, name, result, *types):
        """A function by its whole name."""
        # An object of its own, because those that are attributes of the library have one signature for everybody.
        return ctypes.CFUNCTYPE(result, *types)((name, self._library))

    def get(self, result, name, *arguments):
        """Call a function that returns something of a type of ctypes."""
        types = [type(each) if isinstance(each, NUMBERS) else ctypes.c_void_p for each in arguments]
        return self.function(f"TRITONSERVER_{name}", result, *types)(*arguments)

    def call(self, name, *arguments):
        """Call a function that returns an error; which one."""
        error = self.get(ctypes.c_void_p, name, *arguments)
        if not error:
            return None
        failure = self.get(ctypes.c_int, "ErrorCode", error), self.get(ctypes.c_char_p, "ErrorMessage", error).decode()
        self.get(None, "ErrorDelete", error)
        return failure

    def make(self, name, *arguments):
        """Call a function that makes an object and stores it at its first argument; the object, or the error."""
        made = ctypes.c_void_p()
        return self.call(name, ctypes.byref(made), *arguments) or made.value

    def parameter(self, name, value, kind=STRING):
        """A parameter; None if there can be none of such a value."""
        if kind == self.BYTES:
            return self.get(ctypes.c_void_p, "ParameterBytesNew", name, value, ctypes.c_uint64(len(value)))
        held = value if kind == self.STRING else (None, ctypes.c_int64, ctypes.c_bool, ctypes.c_double)[kind](value)
        place = held if kind == self.STRING else ctypes.byref(held)
        return self.get(ctypes.c_void_p, "ParameterNew", name, ctypes.c_int(kind), place)

    def message(self, text):
        """A message."""
        return self.make("MessageNewFromSerializedJson", text, ctypes.c_size_t(len(text)))

    def family(self, kind, name, description=b"of a test"):
        """A family of metrics, or the error."""
        return self.make("MetricFamilyNew", ctypes.c_int(kind), name, description)

    def metric(self, family, *labels, bounds=None):
        """A metric with labels: name, value, and the type of the parameter, if it is another. Or the error."""
        args = None
        if bounds is not None:
            args = self.make("MetricArgsNew")
            numbers = (ctypes.c_double * len(bounds))(*bounds)
            assert self.call("MetricArgsSetHistogram", args, numbers, ctypes.c_uint64(len(bounds))) is None
        parameters = [self.parameter(*label) for label in labels]
        array = (ctypes.c_void_p * len(parameters))(*parameters)
        made = self.make("MetricNewWithArgs", family, array, ctypes.c_uint64(len(parameters)), args)
        for parameter in parameters:
            self.get(None, "ParameterDelete", parameter)
        assert self.call("MetricArgsDelete", args) is None
        return made

    def measure(self, operation, metric, value):
        """Increment, set or observe."""
        return self.call(f"Metric{operation}", metric, ctypes.c_double(value))

    def value(self, metric):
        """The value of a metric, or the error."""
        value = ctypes.c_double()
        return self.call("MetricValue", metric, ctypes.byref(value)) or value.value


@pytest.fixture
def interface():
    """The functions that native code calls."""
    from pyruntime.runtime.native import _triton

    return Interface(_triton.__file__)


@pytest.fixture
def no_driver():
    """The reason why this machine has no memory of GPUs."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        return str(exc)
    return pytest.skip("this machine has NVIDIA's driver, and so memory of GPUs")


class NativeJob:
    """The events of one request, without their kind and the job, in order and by kind."""

    def __init__(self):
        self.events = []

    @property
    def responses(self):
        """(final, failure, outputs, parameters) of each."""
        return [rest for kind, rest in self.events if kind == "response"]

    @property
    def parameters(self):
        """Those of the one response."""
        ((_, failure, _, parameters),) = self.responses
        assert failure is None
        return parameters

    @property
    def failure(self):
        """Of the last response, which is the final one."""
        final, failure, outputs, parameters = self.responses[-1]
        assert final
        assert outputs is None
        assert parameters is None
        return failure

    @property
    def released(self):
        """(reschedule, statistics) of each release."""
        return [rest for kind, rest in self.events if kind == "released"]

    @property
    def states(self):
        """(name, datatype, shape, buffer) of each."""
        return [rest for kind, rest in self.events if kind == "state"]

    @property
    def activities(self):
        """(when, activity, name) of each."""
        return [rest for kind, rest in self.events if kind == "activity"]

    @property
    def over(self):
        """Whether there is nothing more to come."""
        return bool(self.released) and any(final for final, *_ in self.responses)


class NativeInstance:
    """An instance of a model of a compiled backend, with this process for a server. It is its own owner."""

    def __init__(self, path, outputs, decoupled, iterative, states):
        from pyruntime.runtime.native import _triton

        self.triton = _triton
        _triton.set_response_window(RESPONSES_AHEAD_MAX, BYTES_AHEAD_MAX)
        self._settle()
        self._kinds = {
            _triton.RESPONSE: "response",
            _triton.RELEASED: "released",
            _triton.EARLIER_RESPONSE: "earlier",
            _triton.STATE: "state",
            _triton.ACTIVITY: "activity",
        }
        self.backend = _triton.Backend("tested", str(path), str(path.parent), "{}")
        self.backend.open()
        self.backend.initialize()
        self.model = _triton.Model(
            self.backend,
            "model",
            1,
            str(path.parent),
            '{"name":"model","max_batch_size":0}',
            False,
            decoupled,
            outputs,
            iterative,
            states,
        )
        self.model.initialize()
        self.instance = _triton.Instance(self.model, self, "model_0", 2, 0, False, [], [], "{}")
        self.instance.initialize()
        self._serial = 1
        self._running = {}
        self.logged = []
        # Answers a call.
        self.answer = None

    def close(self):
        """Finalise everything."""
        self.instance.finalize()
        self.model.finalize()
        self.backend.finalize()
        self._settle()

    def _settle(self):
        """Take the events that a test has left, and further ones that this causes: no other test expects them."""
        while self.triton.drain():
            pass

    def execute(self, *requests, base=0):
        """Give the backend a batch of requests, as `request` makes them; their jobs."""
        jobs = [NativeJob() for _ in requests]
        self._running[self._serial] = [wire for wire, _ in requests], [held for _, held in requests]
        self.instance.execute(jobs, [wire for wire, _ in requests], self._serial, base)
        self._serial += len(requests)
        return jobs

    def run(self, *requests):
        """The same, and wait until all of it is over."""
        jobs = self.execute(*requests)
        self.wait(lambda: not self._running and all(job.over for job in jobs))
        return jobs

    def wait(self, condition):
        """Take events until the condition is met."""
        poll = select.poll()
        poll.register(self.triton.descriptor(), select.POLLIN)
        while not condition():
            assert poll.poll(60_000), "the backend does nothing more"
            self.take()

    def take(self):
        """Take the events that there are."""
        for kind, subject, *rest in self.triton.drain():
            if kind in self._kinds:
                subject.events.append((self._kinds[kind], tuple(rest)))
            elif kind == self.triton.ANSWERED:
                *response, statistics, execution = rest
                assert execution is None  # nothing is plain
                subject.events += [("response", (True, *response)), ("released", (False, statistics))]
            elif kind == self.triton.EXECUTED:
                ((serial, *_),) = rest
                del subject._running[serial]
            elif kind == self.triton.LOG:
                self.logged.append(rest[-1])
            elif kind == self.triton.CALL:
                self.answer(subject)


@pytest.fixture
def native(compile_library):
    """`native(source, outputs=, decoupled=, iterative=, states=)`: an instance of a backend of tests/native."""
    opened = []

    def native(source, outputs=("OUT",), decoupled=True, iterative=False, states=()):
        opened.append(NativeInstance(compile_library(source), outputs, decoupled, iterative, states))
        return opened[-1]

    yield native
    for instance in opened:
        instance.close()


@pytest.fixture
def request_of():
    """`request_of(id, *inputs, ...)`: a request for NativeInstance; an input is (name, datatype, shape, contents).

    With it goes what holds its memory. `region` is the OutputRegion for large outputs, or the outputs for GPUs.
    """

    def request_of(id, *inputs, outputs=None, parameters="", correlation=0, flags=0, timeout=0, trace="", region=None):
        held = [(ctypes.c_char * max(1, len(contents))).from_buffer_copy(contents or b"-") for *_, contents in inputs]
        tensors = [
            (name, datatype, shape, ctypes.addressof(memory), len(contents), 0, 0)
            for (name, datatype, shape, contents), memory in zip(inputs, held, strict=True)
        ]
        return [id, correlation, flags, timeout, outputs, parameters, tensors, trace, region], held

    return request_of


@pytest.fixture
def make(native, compile_library):
    """`make(source=, outputs=)`: PlainInstance of an instance of a backend of tests/native."""
    from .plain import PlainInstance

    def make(source="plain.cc", outputs=("OUT", "OUT2")):
        return PlainInstance(native(source, outputs=outputs, decoupled=False), compile_library(source))

    return make


@pytest.fixture
def requests(make):
    """PlainInstance of an instance of plain.cc."""
    made = make()
    yield made
    made.let_go()


class Lifecycle:
    """Makes backends, models and instances of one library by name, and keeps their log lines and events."""

    def __init__(self, path):
        from pyruntime.runtime.native import _triton

        self.triton = _triton
        _triton.set_response_window(RESPONSES_AHEAD_MAX, BYTES_AHEAD_MAX)
        self.path = path
        self.events = []
        self.lines = []
        _triton.drain()  # what earlier tests have left

    def backend(self, name="backend", *, opened=True):
        """A backend that is not initialised yet."""
        backend = self.triton.Backend(name, self.path, "/artifacts", '{"cmdline":{}}')
        if opened:
            backend.open()
        return backend

    def model(self, backend, name="model", auto_complete=False):
        """A model that is not initialised yet."""
        return self.triton.Model(backend, name, 3, "/models/model", '{"name":"model"}', auto_complete, False, ["OUT"])

    def instance(self, model, name="instance", owner=None, kind=1, device=0):
        """An instance that is not initialised yet; kind 1 is a CPU's, 2 a GPU's."""
        devices = [("KIND_NVDLA", 1), ("KIND_NVDLA", 2)]
        return self.triton.Instance(model, owner, name, kind, device, True, ["small", "large"], devices, '{"cpu":{}}')

    def take(self):
        """Sort new events into lines and others; combined events are split."""
        triton = self.triton
        for kind, *rest in triton.drain():
            if kind == triton.LOG:
                self.lines.append(rest[-1])
            elif kind == triton.ANSWERED:
                job, *response, statistics, execution = rest
                assert execution is None  # nothing is plain
                self.events += [(triton.RESPONSE, job, True, *response), (triton.RELEASED, job, False, statistics)]
            elif kind == triton.EXECUTED:
                owner, (*executed, reported) = rest
                self.events.append((kind, owner, *executed))
                if reported is not None:
                    self.events.append((triton.BATCH_STATISTICS, owner, reported))
            else:
                self.events.append((kind, *rest))

    def wait(self, *kinds):
        """Wait for one event of each of these kinds, beyond those that were waited for before; these events."""
        found = []
        for kind in kinds:
            self._wait(lambda kind=kind: any(event[0] == kind for event in self.events))
            index = next(index for index, event in enumerate(self.events) if event[0] == kind)
            found.append(self.events.pop(index)[1:])
        return found

    def wait_for_step(self, step):
        """Wait until the backend has begun a step: a function and the name of its object."""
        self._wait(lambda: any(line.startswith(step) for line in self.lines))

    def _wait(self, condition):
        poll = select.poll()
        poll.register(self.triton.descriptor(), select.POLLIN)
        while not condition():
            assert poll.poll(60_000), "the backend does nothing more"
            self.take()

    def learned(self):
        """The reports of the backend since the last call as {name: value}, and the steps that it was taken through."""
        self.take()
        lines, self.lines = self.lines, []
        told = dict(line.split(": ", 1) for line in lines)
        return told, [what for what in told if what.split()[0] not in ("Backend", "Model", "Instance", "Statistics")]


@pytest.fixture
def lifecycle(compile_library):
    """Objects of the backend that tells of its life."""
    return Lifecycle(compile_library("lifecycle.cc"))


@pytest.fixture
def lives(lifecycle):
    """An initialised backend, its model and an instance, `owner` their own; finalised when the test is over."""
    backend = lifecycle.backend()
    model = lifecycle.model(backend)
    backend.initialize()
    model.initialize()
    made = []

    def lives(name="instance", **options):
        made.append(lifecycle.instance(model, name, **options))
        made[-1].initialize()
        return made[-1]

    yield lives
    for instance in made:
        instance.finalize()
    model.finalize()
    backend.finalize()

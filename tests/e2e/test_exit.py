# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a model has still to do when its process ends is done, whichever Python it has and whatever ends it."""

import json
from pathlib import Path

import numpy as np
import pytest

# Each habit leaves a trace in the model's folder, or none of what it has made.
HABITS = """
import atexit, ctypes, logging.handlers, multiprocessing.util, tempfile, weakref
from concurrent.futures import ThreadPoolExecutor

LIBC = ctypes.CDLL(None)


class Attribute:
    def __init__(self, folder):
        self.folder = folder

    def __del__(self):
        with open(self.folder + "/attribute", "w") as file:
            json.dump("deleted", file)


class TritonPythonModel:
    def initialize(self, args):
        self.folder = folder = args["model_repository"]
        atexit.register(self.note, "atexit")
        atexit.register(print, "printed at the exit")
        atexit.register(logging.getLogger("late").warning, "logged at the exit")
        self.kept = Attribute(folder)
        weakref.finalize(logging.getLogger("anchor"), note, folder, "finalizer")
        self.unwritten = open(folder + "/unwritten", "w")
        self.unwritten.write("from the buffer of a file")
        target = logging.FileHandler(folder + "/records")
        own = logging.getLogger("own")
        own.addHandler(logging.handlers.MemoryHandler(1000, target=target))
        own.warning("from a handler in memory")
        self.temporary = tempfile.TemporaryDirectory()
        self.pool = ThreadPoolExecutor(1)
        threading.Thread(target=self.work_on).start()
        with open(folder + "/made", "w") as file:
            json.dump([self.temporary.name, multiprocessing.util.get_temp_dir()], file)

    def execute(self, requests):
        LIBC.printf(b"printed in C\\n")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]

    def finalize(self):
        self.pool.submit(self.note, "pool")
        with open(self.folder + "/finalized", "w"):
            pass

    def work_on(self):
        threading.main_thread().join()  # which comes to its end only at the exit
        self.note("thread")

    def note(self, name):
        note(self.folder, name)


def note(folder, name):
    with open(folder + "/" + name, "w") as file:
        file.write("done")
"""
TRACES = {
    "atexit": "done",
    "attribute": '"deleted"',
    "finalizer": "done",
    "pool": "done",
    "records": "from a handler in memory\n",
    "thread": "done",
    "unwritten": "from the buffer of a file",
}
SAID = ("m_0: printed in C", "m_0: printed at the exit", "m_0: logged at the exit")


@pytest.mark.parametrize("end", ["unload", "SIGTERM"])
def test_what_python_does_at_the_exit_of_a_program_it_does_for_a_model(model, serve, python, end, wait_until):
    """Handlers run, destructors too, buffers are written, folders and threads end."""
    folder = model("m", HABITS, more=python)
    server = serve("--model-control-mode=explicit", "--load-model=m")
    server.infer("m", {"IN": np.arange(3)})
    made = [Path(each) for each in json.loads((folder / "made").read_text())]
    assert all(each.is_dir() for each in made)
    if end == "unload":
        assert server.request("POST", "/v2/repository/models/m/unload", "{}").status == 200
        wait_until(lambda: server.stubs() == [])
        wait_until(lambda: b'"UNLOADING"' not in server.request("POST", "/v2/repository/index", "{}").body)
    else:
        server.stop()
    traces = {name: (folder / name).read_text() if (folder / name).exists() else None for name in TRACES}
    assert traces == TRACES
    assert [str(each) for each in made if each.exists()] == []
    assert [text for text in SAID if text not in server.log] == []


HANGS = """
class TritonPythonModel:
    def initialize(self, args):
        import atexit

        atexit.register(threading.Event().wait)

    def execute(self, requests):
        return []
"""


def test_an_exit_that_does_not_come_to_an_end_is_cut_off(model, serve, python, wait_until):
    """It has the time that requests and `finalize` have, and the log says so."""
    model("m", HANGS, more=python)
    server = serve("--model-control-mode=explicit", "--load-model=m", "--exit-timeout-secs=1")
    assert server.request("POST", "/v2/repository/models/m/unload", "{}").status == 200
    wait_until(lambda: b'"unloaded"' in server.request("POST", "/v2/repository/index", "{}").body)
    assert server.stubs() == []
    assert "m_0: did not finish within 2 s and is killed" in server.log

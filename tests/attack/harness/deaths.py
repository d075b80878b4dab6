# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models whose processes are killed and whose numbers of instances change while clients use them."""

import http.client
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random

from ...e2e.harness.ensembles import ensemble, step
from ...e2e.harness.models import ECHO, write_model
from ...e2e.harness.server import Server
from ...e2e.harness.waiting import LIMIT_S

CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            inputs = request.inputs()
            call = pb_utils.InferenceRequest(model_name="numbers", requested_output_names=["OUT"], inputs=inputs)
            answer = call.exec()
            if answer.has_error():
                answers.append(pb_utils.InferenceResponse(error=answer.error()))
            else:
                answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return answers
"""
PAIR = ensemble(step("numbers", {"IN": "IN"}, {"OUT": "t"}), step("more", {"IN": "t"}, {"OUT": "OUT"}))
# The models with instances of their own, and those that clients ask.
KILLED = ("numbers", "more", "caller", "threads")
ASKED = (*KILLED, "pair")
CLIENTS_PER_MODEL = 2
# Seconds between two deaths, and between two changes; an instance that dies five times in a row is given up.
DEATH_EVERY_S, CHANGE_EVERY_S = 3.5, 5.0
INSTANCES_MAX = 4
PAUSE_S = 0.002


def write(folder: Path) -> None:
    """Write the models."""
    for name in KILLED:
        code = CALLER if name == "caller" else ECHO
        mode = "parameters { key: 'INSTANCE_MODE' value: { string_value: 'thread' } }" if name == "threads" else ""
        write_model(folder, name, code, more=f"{mode}\ninstance_group {{ count: 3 }}\n")
    write_model(folder, "pair", None, PAIR)


class Answers:
    """What became of all requests: numbers of (model, status), and the texts of errors."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.errors: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()

    def note(self, model: str, status: int, body: bytes, number: int) -> None:
        """An answer to the request of a number has come; 0 for none."""
        with self._lock:
            self.counts[model, status] += 1
            if status == 200:
                if json.loads(body)["outputs"][0]["data"] != [number]:
                    self.wrong.append(f"{model} answered {number} with {body[:200]!r}")
            else:
                self.errors[status, re.sub(r"\d+", "N", body[:200].decode(errors="replace"))] += 1

    def statuses(self) -> Counter[int]:
        """The numbers of answers by status."""
        found: Counter[int] = Counter()
        for (_, status), number in self.counts.items():
            found[status] += number
        return found


@contextmanager
def clients(server: Server) -> Iterator[Answers]:
    """Clients of all models, until the end of the block."""
    answers, end, numbers = Answers(), threading.Event(), count(1)

    def ask(model: str) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)) as connection:
            while not end.wait(PAUSE_S):
                number = next(numbers)
                tensor = {"name": "IN", "datatype": "INT64", "shape": [1], "data": [number]}
                status, body = 0, b""
                with suppress(OSError, http.client.HTTPException):
                    connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}))
                    response = connection.getresponse()
                    status, body = response.status, response.read()
                answers.note(model, status, body, number)
                if status == 0:
                    connection.close()

    threads = [threading.Thread(target=ask, args=(model,)) for model in ASKED * CLIENTS_PER_MODEL]
    for each in threads:
        each.start()
    try:
        yield answers
    finally:
        end.set()
        for each in threads:
            each.join()


def kill_and_change(server: Server, folder: Path, random: Random, until_s: float) -> tuple[int, int]:
    """Kill processes of models and change numbers of instances in turn, until a time. Returns how often each."""
    deaths = changes = 0
    due_s = [time.monotonic() + DEATH_EVERY_S, time.monotonic() + CHANGE_EVERY_S]
    while (now := time.monotonic()) < until_s:
        if due_s[0] <= now:
            due_s[0] += DEATH_EVERY_S
            stubs = server.stubs()
            if stubs:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(stubs).pid, signal.SIGKILL)
                    deaths += 1
        elif due_s[1] <= now:
            due_s[1] += CHANGE_EVERY_S
            name = random.choice(KILLED)
            config = folder / name / "config.pbtxt"
            number = random.randint(1, INSTANCES_MAX)
            config.write_text(re.sub(r"count: \d+", f"count: {number}", config.read_text()))
            answer = server.request("POST", f"/v2/repository/models/{name}/load", "{}")
            assert answer.status == 200, answer.body
            changes += 1
        else:
            time.sleep(min(due_s) - now)
    return deaths, changes

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of the load run: a function for each kind.

A function returns what has become of its request ("answered"; "failed", where that is meant; "cancelled", where the
client hung up), or raises what is wrong with it. Numbers choose what varies, so that a run has a bit of everything.
"""

import http.client
import random
import threading
import time
from contextlib import suppress

import numpy as np
from load_clients import Duplicated, Wrong, encode, expect

# What a slow reader takes over each response, in seconds.
SLOW_S = 0.005
SIDES = {"large": 512, "small": 8}  # of images; the large ones have 1 MiB
CHANNELS = 4
VALUES = 251


def make_image(number, side):
    """An image of four even channels, with its number in the first two pixels; and what its channels are."""
    values = (number + np.arange(CHANNELS)) % VALUES
    image = np.empty((side, side, CHANNELS), np.uint8)
    image[:] = values
    image.reshape(-1)[:8].view(np.int64)[0] = number
    return image, values


def show_images(size):
    def show_image(client, number):
        """An image through a pipeline of models, and every fourth time the pixels back."""
        image, values = make_image(number, SIDES[size])
        wanted = ("ID", "LABEL", "PIXELS") if number % 4 == 0 else ("ID", "LABEL")
        found = client.answer(number, {"IMAGE": image}, wanted)
        label = f"{number}:{values.argmax()}:{values.max()}"
        expect("the label", found["LABEL"].tolist(), [label.encode()])
        expect("the outputs", sorted(found), sorted(wanted))
        if "PIXELS" in found:
            expect("the shape", found["PIXELS"].shape, (SIDES[size] // 2, SIDES[size] // 2, CHANNELS))
            expect("whether all pixels are right", bool((found["PIXELS"] == values).all()), True)
        return "answered"

    return show_image


class Sums:
    """Requests to the accumulator; what it should have counted in the end."""

    def __init__(self):
        self.requests = self.sum = 0
        self._lock = threading.Lock()

    def accumulate(self, client, number):
        """Rows of numbers, for their sums."""
        rows = np.arange(number % 4 + 1)[:, np.newaxis] + np.full((1, (1, 50, 5000)[number % 3]), number)
        with self._lock:
            self.requests += 1
            self.sum += int(rows.sum())
        expect("the sums", client.answer(number, {"NUMBERS": rows})["SUM"][:, 0].tolist(), rows.sum(axis=1).tolist())
        return "answered"


def square(client, number):
    """Some numbers, for their squares."""
    numbers = np.full((1, 100, 20_000)[number % 3], number)
    numbers[1:] = 7
    found = client.answer(number, {"NUMBERS": numbers})
    expect("the number of squares", found["SQUARES"].shape, numbers.shape)
    expect("whether all squares are right", bool((found["SQUARES"] == numbers**2).all()), True)
    if "LABEL" in found:
        expect("the label", found["LABEL"].tolist(), [f"{number}:1:1".encode()])
    return "answered"


def image_number(client, number):
    """An image, for its number."""
    found = client.answer(number, {"IMAGE": make_image(number, SIDES["large"])[0]})
    expect("the number of the image", found["NUMBER"].tolist(), [number])
    return "answered"


def check_order(client, number, threads, pause_s=0, **inputs):
    """A stream of COUNT responses. Of `threads` that send them each has an order of its own; all of it must come."""
    latest, seen = {}, set()
    for status, event in client.events(number, NUMBER=number, **inputs):
        time.sleep(pause_s)
        if "error" in event:
            return f"{status} {event['error']}", len(seen)
        expect("the number of a response", (event["id"], event["ID"], event["NUMBER"]), (*[str(number)] * 2, number))
        index = event["INDEX"]
        if index in seen:
            raise Duplicated(f"response {index} comes again")
        expect("the order of responses", index > latest.get(index % threads, -1), True)
        latest[index % threads] = index
        seen.add(index)
        if "TOKEN" in event:
            expect("the size of a token", len(event["TOKEN"]), inputs["SIZE"])
    missing = inputs["COUNT"] - len(seen)
    if missing:
        raise http.client.HTTPException(f"{missing} of {inputs['COUNT']} responses have not come")
    return "", len(seen)


def stream_tokens(client, number):
    """Tokens of a few bytes or of many."""
    count, size = ((20, 3), (0, 1), (1, 50_000), (100, 10))[number % 4]
    expect("the error", check_order(client, number, 1, COUNT=count, SIZE=size)[0], "")
    return "answered"


def stream_to_slow_reader(client, number):
    """Large tokens, faster than they are read: their sender has to wait."""
    expect("the error", check_order(client, number, 1, COUNT=100, SIZE=100_000, pause_s=SLOW_S)[0], "")
    return "answered"


def stream_indexes(client, number):
    """Responses that are sent by one thread."""
    expect("the error", check_order(client, number, 1, COUNT=number % 30)[0], "")
    return "answered"


def stream_by_threads(client, number):
    """Responses that are sent by ten threads at a time; more than a sender may be ahead of its client."""
    expect("the error", check_order(client, number, 10, COUNT=number % 3 * 100)[0], "")
    return "answered"


def stream_until_crash(client, number):
    """Responses that stop, with an error, when their model dies."""
    error, _ = check_order(client, number, 1, COUNT=number % 50)
    if error and "is not healthy. It was lost while it ran this request: exited with code 4" not in error:
        raise Wrong(error)
    return "failed" if error else "answered"


def reload(client, number):
    """Have a model replaced by a new generation of it, while others use it."""
    found = client.answer(number, {"GENERATION": np.array([number])})
    expect("the generation after a reload", found["GENERATION"].tolist(), [number])
    return "answered"


BLAMED = "Failed to process the request(s) for model 'failing_0_0', message: "
# How a request to `failing` asks to fail, and what must come of it: status and part of the message.
FAILURES = {
    "nothing_wrong": (200, ""),
    "raise": (500, BLAMED + "ValueError: raised on purpose for {}"),
    "return_an_error": (404, "refused on purpose for {}"),
    "send_an_error": (503, "refused on purpose for {}"),
    "return_garbage": (500, BLAMED),
    "return_too_many": (500, BLAMED),
    "return_no_list": (500, BLAMED),
    "name_a_wrong_output": (200, ""),  # the output is dropped
    "let_go": (500, "the model has let go of the request without a response"),
    "answer_twice": (200, ""),
}


def fail(client, number):
    """One failure of each kind in turn."""
    how = list(FAILURES)[number % len(FAILURES)]
    status, text = FAILURES[how]
    arrays = {"HOW": np.array([how.encode()], dtype=np.object_)}
    if status == 200:
        client.answer(number, arrays)
        return "answered"
    found, document, _ = client.infer(number, arrays)
    if found != status or text.format(number) not in document.get("error", ""):
        raise Wrong(f"{how} ends with {found} {document}")
    return "failed"


def ask_what_is_not_there(client, number):
    """A model that could not be loaded."""
    status, document, _ = client.infer(number, {"HOW": np.array([b"any"], dtype=np.object_)})
    if status not in (400, 404, 503) or "failing_initialize" not in document.get("error", ""):
        raise Wrong(f"{status} {document}")
    return "failed"


def crash(how):
    """Have a model's process die, or that of the model it calls: the error says so."""

    def crash_it(client, number):
        if client.model == "crashing_streams":
            error, _ = check_order(client, number, 1, COUNT=-1)
        else:
            arrays = {"HOW": np.array([how.encode()], dtype=np.object_)}
            if client.model == "crashing":
                arrays["NUMBERS"] = np.arange(3)
            else:
                arrays["IMAGE"] = make_image(number, SIDES["large"])[0]
            status, document, _ = client.infer(number, arrays)
            error = f"{status} {document.get('error')}"
        if not error.startswith("500 ") or "is not healthy. It was lost while it ran this request: " not in error:
            raise Wrong(f"what should have crashed ended with {error!r}")
        return "failed"

    return crash_it


# What others ask beside inference, with the status that it must be answered with; None where a model may be down.
PATHS = {
    "/v2/health/live": 200,
    "/v2/health/ready": 200,
    "/v2/models/stats": 200,
    "/v2/models/pipeline/ready": 200,
    "/v2/models/pipeline/config": 200,
    "/v2/models/failing/ready": 400,
    "/v2/models/failing_initialize/ready": 404,
    "/v2/models/crashing/ready": None,
}


def probe(client, number):
    """One of the things that orchestrators and dashboards ask."""
    path, expected = list(PATHS.items())[number % len(PATHS)]
    status = client.get(path)
    if expected is not None:
        expect(f"the status of {path}", status, expected)
    return "answered"


# Clients that hang up.


def leave_stream(client, number):
    """Hang up in the midst of a stream that would not end."""
    left, size = random.randrange(20), (10, 100_000)[number % 2]
    with suppress(StopIteration):
        events = client.events(number, NUMBER=number, COUNT=-1, SIZE=size)
        for index in range(left + 1):
            expect("the index", next(events)[1].get("INDEX"), index)
        client.hang_up()
        events.close()
        return "cancelled"
    raise Wrong("a stream without end has ended")


def leave_unanswered(client, number):
    """Hang up after a request, without waiting for the answer; or in the midst of it."""
    image, _ = make_image(number, SIDES["large" if number % 3 else "small"])
    body, headers = encode(number, {"IMAGE": image})
    if number % 2:
        headers["Content-Length"] = str(len(body))
        body = body[: len(body) // 2]
    client.send("infer", body, headers)
    threading.Event().wait(random.choice((0, 0.001, 0.01)))
    client.hang_up()
    return "cancelled"

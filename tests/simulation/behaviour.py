# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a simulated stub does, drawn anew for each of its lives."""

from .faults import FAULTS

# A fault comes at one of this many first messages of a stub.
FAULT_WITHIN = 12
# Times of executions and between responses, in seconds: most are short, and some are longer than any time-out.
TIMES_S = (0.00001, 0.0005, 0.002, 0.01, 0.05, 0.3, 4.0)
TIMES_WEIGHTS = (20, 30, 20, 10, 8, 4, 1)


class Behaviour:
    """See the module. `faults` is how likely a life of a stub has one, from 0 to 1; `errors`, that a batch fails."""

    def __init__(self, draw, faults, errors, threads=None):
        """`threads` draws how threads of its models send responses; None if each request has a thread of its own."""
        self._draw = draw
        self._threads = threads
        self._errors = errors
        self._fault = draw.choice(FAULTS) if draw.random() < faults else None
        self._messages_left = draw.randrange(FAULT_WITHIN)
        self._load_fails = draw.random() < faults * 0.1
        self._sends = draw.random() < 0.3
        self._keeps = draw.random() < 0.2

    def fault_at(self, message):
        """The fault in place of this message, or None."""
        if self._fault is None:
            return None
        self._messages_left -= 1
        if self._messages_left >= 0:
            return None
        fault, self._fault = self._fault, None
        return fault

    def lease_seed(self):
        """From this it is drawn what it leases on GPUs."""
        return self._draw.random()

    def load_s(self):
        return self._draw.random() * 0.02

    def load_fails(self):
        return self._load_fails

    def exit_delay_s(self):
        return self._draw.random() * 0.002

    def execute_s(self):
        return self._draw.choices(TIMES_S, TIMES_WEIGHTS)[0]

    def gap_s(self):
        return self._draw.random() * 0.005

    def fails(self):
        """Whether execute fails as a whole."""
        return self._draw.random() < self._errors

    def retains(self):
        """Whether the model keeps the inputs of a request."""
        return self._keeps and self._draw.random() < 0.5

    def style(self, model):
        """How a request is answered: by "response", "error", "sender" or "reschedule"."""
        chance = self._draw.random()
        if model.is_decoupled:
            return "sender"
        if chance < self._errors:
            return "error"
        if model.is_iterative and chance < 0.5:
            return "reschedule"
        return "sender" if self._sends and chance > 0.6 else "response"

    def sending(self, model):
        """How a thread sends the responses of a whole batch: "in turn", "reversed", or "" if each has its own."""
        if self._threads is None or not model.is_decoupled:
            return ""
        return self._threads.choice(("", "", "in turn", "reversed"))

    def more_responses(self):
        """How many more a thread sends to each request of its batch: more than the windows have room for."""
        return self._threads.choice((0, 8))

    def is_early(self):
        """Whether a sender begins while execute runs."""
        return self._draw.random() < 0.5

    def responses(self):
        """How many responses a decoupled model sends."""
        return self._draw.choice((0, 1, 1, 2, 3, 5, 9))

    def ends_apart(self):
        """Whether the end of a stream is a message of its own."""
        return self._draw.random() < 0.5

    def heeds_flags(self):
        """Whether the model looks whether a request is cancelled."""
        return self._draw.random() < 0.7

    def callee(self, model, models):
        """The model that the batch calls, or None."""
        if not model.calls or self._draw.random() < 0.3:
            return None
        return models.get(model.calls)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the scenarios of many seeds in several processes, and names the seed also where a process ends or hangs."""

from multiprocessing import get_context
from multiprocessing.connection import wait

from .run import problems

# The scenarios that a process runs before it says what it found.
BLOCK = 100
# No scenario takes so long, in seconds, however busy the machine is.
SCENARIO_S_MAX = 120.0


def _work(seeds, seed_now, results):
    """Run scenarios, in a process of its own. `seed_now` is the one that runs."""

    def named():
        for seed in block:
            seed_now.value = seed
            yield seed

    for begin in range(0, len(seeds), BLOCK):
        block = seeds[begin : begin + BLOCK]
        results.send((len(block), list(problems(named()))))


class _Worker:
    """A process that runs scenarios, and runs on behind one that ends it."""

    def __init__(self, context, seeds):
        self._context = context
        self._seeds = seeds
        self._start()

    def _start(self):
        self._seed_now = self._context.Value("q", self._seeds[0], lock=False)
        self.results, theirs = self._context.Pipe(duplex=False)
        self._process = self._context.Process(target=_work, args=(self._seeds, self._seed_now, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def seed_now(self):
        return self._seed_now.value

    def read(self):
        """The result of a block: how many scenarios ran, and the problem of each seed that has one."""
        try:
            count, found = self.results.recv()
        except EOFError:
            return self._ended()
        self._seeds = self._seeds[count:]
        return count, found

    @property
    def is_done(self):
        return not self._seeds

    def _ended(self):
        self._process.join()
        at = self._seeds.index(self.seed_now)
        # Those before it ran, and what they found was not said: they run again.
        again, seed = self._seeds[:at], self._seeds[at]
        found = [(seed, f"its process ended with {self._process.exitcode}")]
        self._seeds = [*again, *self._seeds[at + 1 :]]
        self.results.close()
        if self._seeds:
            self._start()
        return 1, found

    def kill(self):
        """End a process that hangs: `read` names its seed."""
        self._process.kill()

    def close(self):
        """The process has ended, or is about to."""
        self.results.close()
        self._process.join()


def run_all(seeds, jobs):
    """Run scenarios in so many processes. Yields (count, found) block by block, see _Worker.read."""
    context = get_context("fork")
    workers = {}
    for number in range(min(jobs, len(seeds))):
        worker = _Worker(context, seeds[number::jobs])
        workers[worker.results] = worker
    while workers:
        before = {worker: worker.seed_now for worker in workers.values()}
        ready = wait(workers, SCENARIO_S_MAX)
        for worker in () if ready else before:
            if worker.seed_now == before[worker]:
                worker.kill()
        for results in ready:
            worker = workers.pop(results)
            yield worker.read()
            if worker.is_done:
                worker.close()
            else:
                workers[worker.results] = worker

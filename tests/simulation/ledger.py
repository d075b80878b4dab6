# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The books on all jobs of a scenario, and the invariants that must hold for them.

The ledger hears of each job when it is given to a version, when a batch is given to an executor, and when the job is
answered. It computes from the configuration alone what must hold, and shares no code with the schedulers.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pyruntime.runtime.execution.job import Job
from pyruntime.utils.errors import Code, InferenceError

# How much later than its deadline a request may be rejected, in nanoseconds: some turns of the loop.
TIMEOUT_BOUND_NS = 200_000
# How long a request may wait beside an idle instance, in nanoseconds: the time that a stub's words take to the host.
IDLE_BOUND_NS = 1_000_000
# How often a level may be passed over here: less than in the product, so that few requests are enough.
PASSED_OVER_MAX = 3

# What is said of a stub that the server has killed because it did not come to an end.
GIVEN_UP = "by the server: it did not finish within"


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(slots=True, eq=False)
class Entry:
    """A job. `postings` is how often it was given to an executor, and `queues` whether the scheduler has it.

    `policy` is that of its level, or None. `must_end`: it was cancelled while it waited.
    """

    number: int
    version: object
    job: Job
    arrived_ns: int
    level: int
    policy: object
    deadline_ns: int | None
    queues: bool = False
    postings: int = 0
    finals: int = 0
    must_end: bool = False

    @property
    def is_waiting(self):
        """Whether it waits for its execution."""
        return self.queues and not self.finals and self.job.instance is None

    @property
    def is_new(self):
        """Whether it waits for its first execution."""
        return self.is_waiting and not self.postings

    @property
    def delays(self):
        """Whether it goes behind the others when its time is over."""
        return self.policy is not None and self.policy.delays


@dataclass(slots=True)
class Books:
    """What the ledger knows of one version. `passed_over` counts, by level, the batches that left it out.

    `order` are the requests whose answers must come in this order. `homes` are the batches of the executor that has the
    state of a sequence, by its id.
    """

    open: dict[Job, Entry] = field(default_factory=dict)
    order: list[Entry] = field(default_factory=list)
    passed_over: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    homes: dict[int | str, object] = field(default_factory=dict)
    answered: int = 0


class Ledger:
    """See the module. `violations` is what was found; the loop ends the scenario with the first."""

    def __init__(self, clock, note, is_faultless):
        """`is_faultless`: nothing happens that may make a request fail within the server."""
        self._clock = clock
        self._is_faultless = is_faultless
        self._note = note
        self.violations = []
        self.books = {}
        self._numbers = 0

    def violated(self, what):
        """An invariant does not hold."""
        self.violations.append(what)

    def check(self):
        """Raise the first violation."""
        if self.violations:
            raise Violation(self.violations[0])

    def open_books(self, version):
        """A version is made."""
        self.books[version] = Books()

    # What happens to a job.

    def begin(self, version, job):
        """A job is given to a version: its answers are watched from now on."""
        self._numbers += 1
        level, policy = _level_of(version.spec, job)
        deadline_ns = None
        if policy is not None and policy.default_timeout_us:
            timeout_us = policy.default_timeout_us
            if policy.allow_timeout_override and 0 < job.options.timeout_us < timeout_us:
                timeout_us = job.options.timeout_us
            deadline_ns = job.arrived_ns + timeout_us * 1000
        entry = Entry(self._numbers, version, job, self._clock.now_ns, level, policy, deadline_ns)
        self.books[version].open[job] = entry
        job.respond = self.watch(entry, job.respond)
        self._note("begins", version.spec.name, entry.number)
        return entry

    def watch(self, entry, respond):
        """A function like `respond` that counts the answers."""

        def watched(outcome, final):
            self._answered(entry, outcome, final)
            respond(outcome, final)

        return watched

    def queued(self, version, job):
        """The job goes to the scheduler, and not to the cache."""
        entry = self.books[version].open.get(job)
        if entry is not None:
            entry.queues = True

    def cancelling(self, version, job):
        """The job is about to be cancelled. Returns its entry, None if it is answered already.

        A call in a deadlock is refused in this way, by a function that nobody watches yet.
        """
        entry = self.books[version].open.get(job)
        if entry is not None:
            self._note("cancelled", version.spec.name, entry.number)
            entry.must_end = entry.is_waiting
            if getattr(job.respond, "__module__", "").endswith("calls.model_call"):
                job.respond = self.watch(entry, job.respond)
        return entry

    def cancelled(self, entry):
        """The job was cancelled: its model must know, if it executes it."""
        job = entry.job
        if entry.version.world.executes(job.instance, job.serial) and not job.cancelled:
            self.violated(f"request {entry.number} is executed, and its model does not see that it is cancelled")

    def takes_turn(self, version, job):
        """The job is about to be answered from the cache."""
        entry = self.books[version].open.get(job)
        if entry is not None and _is_ordered(version.spec):
            self.books[version].order.append(entry)

    def refused(self, entry):
        """The job was refused, and must not be answered."""
        if entry.finals:
            self.violated(f"request {entry.number} is refused, and was answered")
        entry.finals += 1
        del self.books[entry.version].open[entry.job]
        self._note("refused", entry.version.spec.name, entry.number)

    def _answered(self, entry, outcome, final):
        spec = entry.version.spec
        self._note("answered", spec.name, entry.number, type(outcome).__name__, final)
        if entry.finals:
            self.violated(f"request {entry.number} of {spec.name} is answered again after its last response")
        is_internal = isinstance(outcome, InferenceError) and outcome.code is Code.INTERNAL
        # A client that reads nothing may hold up a model that leaves for longer than the server waits for it.
        is_given_up = is_internal and GIVEN_UP in outcome.message
        if is_internal and self._is_faultless and not entry.job.cancelled and not is_given_up:
            self.violated(f"request {entry.number} of {spec.name} fails without any fault: {outcome}")
        is_overdue = isinstance(outcome, InferenceError) and outcome.code is Code.DEADLINE_EXCEEDED
        if is_overdue and not entry.version.world.plan.limit_ms:
            self.violated(f"request {entry.number} of {spec.name} takes too long, and may take any time")
        if not final:
            if not spec.decoupled:
                self.violated(f"request {entry.number} of {spec.name}, which is not decoupled, gets several responses")
            return
        entry.finals += 1
        books = self.books[entry.version]
        books.answered += 1
        books.open.pop(entry.job, None)
        if entry in books.order:
            first = next(each for each in books.order if not each.finals or each is entry)
            if first is not entry:
                self.violated(f"{spec.name}: request {entry.number} is answered before {first.number}, out of order")
            books.order = [each for each in books.order if not each.finals]

    # Batches.

    def posted(self, version, inflight, batch):
        """A batch is given to the batches of an executor."""
        books, spec = self.books[version], version.spec
        entries = [books.open[job] for job in batch if not job.is_padding and job in books.open]
        self._note("posted", spec.name, [entry.number for entry in entries])
        self._check_limits(spec, batch)
        if spec.sequence_batching is None:
            self._check_order(books, spec, entries)
        for entry in entries:
            if _is_ordered(spec) and entry not in books.order:
                books.order.append(entry)
            entry.postings += 1
            if spec.sequence_batching is not None:
                if entry.job.is_end:
                    books.homes.pop(entry.job.sequence_id, None)
                else:
                    books.homes[entry.job.sequence_id] = inflight

    def _check_limits(self, spec, batch):
        rows = sum(job.rows for job in batch)
        if rows > max(1, spec.max_batch_size) and len(batch) > 1:
            self.violated(f"{spec.name} gets a batch of {rows} rows")
        if spec.dynamic_batching is None and spec.sequence_batching is None and len(batch) > 1:
            self.violated(f"{spec.name}, which does not batch, gets {len(batch)} requests at a time")
        if spec.is_batched and len({tuple(job.tensors[0][2][1:]) for job in batch if not job.is_padding}) > 1:
            self.violated(f"{spec.name} gets a batch of requests with different shapes")
        if any(job.cancelled for job in batch):
            self.violated(f"{spec.name} gets a request that is cancelled")
        sequences = [job.sequence_id for job in batch if job.sequence_id and not job.is_padding]
        if spec.sequence_batching is not None and len(set(sequences)) < len(sequences):
            self.violated(f"{spec.name} gets a batch with two requests of a sequence")

    def _check_order(self, books, spec, entries):
        """Levels are taken in order, unless one was passed over too often; within one, first come is first served."""
        now_ns = self._clock.now_ns
        waiting = [each for each in books.open.values() if each.is_waiting and each not in entries]
        for entry in entries:
            if entry.postings and spec.iterative_sequence:
                continue  # it was executed, and goes behind all others
            for other in waiting:
                is_behind = other.postings and spec.iterative_sequence
                is_late = other.delays and other.deadline_ns is not None and other.deadline_ns <= now_ns
                # Of two that come back from two stubs, and arrived at the same time, either may be the first.
                is_tie = entry.postings and other.arrived_ns == entry.arrived_ns
                is_before = other.level == entry.level and other.number < entry.number
                if is_before and not is_behind and not is_late and not is_tie:
                    self.violated(f"{spec.name}: request {entry.number} overtakes {other.number} of the same level")
        if not entries:
            return
        first = entries[0].level
        levels = {entry.level for entry in entries}
        is_early = any(other.level < first and not other.postings for other in waiting)
        if is_early and books.passed_over[first] < PASSED_OVER_MAX:
            self.violated(f"{spec.name}: a request of level {first} goes before one of a higher level")
        for level in {other.level for other in waiting} - levels:
            books.passed_over[level] += 1
            if books.passed_over[level] > PASSED_OVER_MAX + spec.dynamic_batching.priority_levels:
                self.violated(f"{spec.name}: level {level} is passed over {books.passed_over[level]} times")
        for level in (books.passed_over.keys() - {other.level for other in waiting}) | levels:
            books.passed_over[level] = 0

    # What must hold whenever time passes.

    def rest(self):
        """All has happened that can happen now: check the requests that still wait."""
        for version, books in self.books.items():
            if books.open:
                # What is open has no last answer, unless that waits for its turn: see Entry.is_waiting.
                waiting = [
                    entry
                    for entry in books.open.values()
                    if entry.queues and entry.job.instance is None and not _is_held(entry.job)
                ]
                if waiting and version.world.is_serving(version):
                    self._check_waiting(version, books, waiting, self._clock.now_ns)

    def _check_waiting(self, version, books, waiting, now_ns):
        spec = version.spec
        is_limited = False
        for entry in waiting:
            if entry.policy is not None:
                is_limited = is_limited or entry.policy.max_queue_size
                if entry.deadline_ns is not None:
                    self._check_time(entry, now_ns)
            if entry.must_end:
                self.violated(f"{spec.name}: request {entry.number} waits, although it was cancelled")
        if is_limited:
            self._check_limit(spec, waiting)
        if version.world.is_limited(version):
            return  # an idle instance may have to wait for a resource
        if _is_ordered(spec) and any(not (entry.finals or entry.is_waiting) for entry in books.order[:1]):
            return  # many responses may be held until the first request is answered, by a model or by a cache
        if spec.sequence_batching is not None:
            if not version.scheduler.has_full_order:
                self._check_sequences(version, books, waiting, now_ns)
        elif spec.ensemble is None:
            self._check_idle(version, waiting, now_ns)

    def _check_time(self, entry, now_ns):
        """No request waits when its time is over."""
        may_expire = not entry.delays and not entry.postings
        if may_expire and now_ns > entry.deadline_ns + TIMEOUT_BOUND_NS:
            name = entry.version.spec.name
            self.violated(f"{name}: request {entry.number} waits longer than its time-out")

    def _check_limit(self, spec, waiting):
        """No level has more requests than its queue may have."""
        limited = [entry for entry in waiting if entry.policy is not None and entry.policy.max_queue_size]
        counts = Counter(entry.level for entry in limited if entry.is_new)
        for entry in limited:
            if entry.policy.max_queue_size < counts[entry.level]:
                self.violated(f"{spec.name}: {counts[entry.level]} requests wait in level {entry.level}")
                return

    def _check_sequences(self, version, books, waiting, now_ns):
        """The next request of a sequence does not wait for an idle instance, nor a new sequence beside free slots."""
        batching = version.spec.sequence_batching
        delay_ns = batching.max_queue_delay_us * 1000 + IDLE_BOUND_NS
        idle = {executor.inflight: version.world.idle_since_ns(executor) for executor in version.scheduler.executors}
        for entry in waiting:
            since_ns = idle.get(books.homes.get(entry.job.sequence_id))
            if since_ns is None or entry.job.is_start or now_ns <= max(since_ns, entry.arrived_ns) + delay_ns:
                continue
            others = (other for other in books.open.values() if other.job.sequence_id == entry.job.sequence_id)
            if all(other.number >= entry.number for other in others):
                self.violated(
                    f"{version.spec.name}: request {entry.number} waits, and the instance of its sequence is idle"
                )
        is_free = len(books.homes) < batching.slots * len(idle) and None not in idle.values()
        if is_free and now_ns > max(*idle.values(), *(entry.arrived_ns for entry in waiting), 0) + delay_ns:
            self.violated(f"{version.spec.name}: {len(waiting)} requests wait, and all instances are idle")

    def _check_idle(self, version, waiting, now_ns):
        """No request waits while an instance that could take it is idle, once the delay of its batch is over."""
        delay_us = version.spec.dynamic_batching.max_queue_delay_us if version.spec.dynamic_batching else 0
        since_ns = min([entry.arrived_ns for entry in waiting]) + delay_us * 1000
        if now_ns <= since_ns + IDLE_BOUND_NS:
            return
        for executor in version.scheduler.executors:
            idle_ns = version.world.idle_since_ns(executor)
            if idle_ns is not None and now_ns > max(idle_ns, since_ns) + IDLE_BOUND_NS:
                self.violated(f"{version.spec.name}: {len(waiting)} requests wait, and {executor.name} is idle")

    def end(self):
        """The scenario is over: nothing may be left."""
        for version, books in self.books.items():
            for entry in books.open.values():
                self.violated(f"{version.spec.name}: request {entry.number} is lost")
            statistics = version.statistics
            counted = statistics.success_count + statistics.failure_count
            # The first values of states stay as long as the version.
            slots = version.memory.live - len(version.world.models[version.spec.name].states)
            if version.since_ms and slots:
                self.violated(f"{version.spec.name}: {slots} slots of request memory are never freed")
            if counted < books.answered:
                self.violated(
                    f"{version.spec.name}: {counted} requests are counted, and {books.answered} were answered"
                )


def _is_ordered(spec):
    return spec.dynamic_batching is not None and spec.dynamic_batching.preserve_ordering


def _is_held(job):
    """Whether the last answer is there, and waits for its turn."""
    return job.turn is not None and bool(job.turn.held) and job.turn.held[-1][1]


def _level_of(spec, job):
    """The priority level of a job, 1 for models without levels, and the queue policy that holds there, or None."""
    batching = spec.dynamic_batching
    if batching is None:
        return 1, None
    levels = batching.priority_levels
    level = 1
    if levels:
        level = job.priority if 1 <= job.priority <= levels else batching.default_priority_level
    return level, batching.policy_of(level)

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics page, and the families that models create with `pb_utils.MetricFamily`. (pure)

All models and instances share families by name, and metrics by labels. An *owner* (one process of a stub) has
*handles*: a number for each of its objects. A metric or family exists as long as it has a handle, and dropping the
handle of a family drops those of its metrics. So nothing outlives the last stub that uses it, and a counter of a single
stub starts at 0 after a restart, as in any process.

Owners are untrusted: a number finds only the owner's own handles.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import count

from pyruntime.runtime.observe.built_in import SAMPLE_NAMES
from pyruntime.runtime.observe.families import OPERATIONS, Family, Histogram, Metric
from pyruntime.runtime.observe.metric_checks import check_family, checked_buckets, checked_labels, invalid
from pyruntime.runtime.observe.native_families import Snapshot, native_gauges, native_lines

# Far more than a server with many models has. It stops a loop that creates families.
FAMILIES_MAX = 1000
# Each set of labels is a time series in Prometheus, which advises tens of them, not thousands.
METRICS_PER_FAMILY_MAX = 2000
# The objects of one stub at any time. Models that create and drop some for every request have few at a time.
HANDLES_PER_OWNER_MAX = 10_000
# About 40,000 lines. It limits the work of a scrape and of the event loop that renders the page.
PAGE_BYTES_MAX = 4 << 20

# Triton's message for each operation of a metric whose family is deleted.
FAMILY_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class _Owner:
    """The handles of one owner: of families, each with the numbers of its metrics, and of metrics."""

    __slots__ = ("families", "metrics")

    def __init__(self) -> None:
        self.families: dict[int, tuple[Family, set[int]]] = {}
        self.metrics: dict[int, tuple[int, Metric]] = {}

    def has_family(self, number: object) -> bool:
        return type(number) is int and number in self.families

    def has_metric(self, number: object) -> bool:
        return type(number) is int and number in self.metrics

    def check_room(self) -> None:
        if len(self.families) + len(self.metrics) >= HANDLES_PER_OWNER_MAX:
            raise invalid(f"an instance has {HANDLES_PER_OWNER_MAX} objects of metrics and families at most")


class Metrics:
    """All families of models. Every refusal is an InferenceError (INVALID_ARG) and changes nothing.

    When the page is rendered, `server_lines` is asked for the server's own families, which stand first, and `native`
    for those that native backends made.
    """

    def __init__(
        self, server_lines: Callable[[], Iterable[str]] = tuple, native: Callable[[], Snapshot] = tuple
    ) -> None:
        self._server_lines = server_lines
        self._native = native
        self._families: dict[str, Family] = {}
        self._sample_names = set(SAMPLE_NAMES)
        self._owners: dict[Hashable, _Owner] = {}
        self._numbers = count(1)
        self._size = 0

    def __repr__(self) -> str:
        metrics = sum(len(family.metrics) for family in self._families.values())
        return f"<Metrics [{len(self._families)} families, {metrics} metrics | {len(self._owners)} owners]>"

    # Operations of models.

    def family(self, owner: Hashable, name: str, description: str, kind: str) -> int:
        """A new handle of the family with this name. Creates the family if needed; else its first description stays.

        `kind` is "counter", "gauge" or "histogram", and must match an existing family.
        """
        check_family(name, description, kind)
        own = self._owners.get(owner) or _Owner()
        own.check_room()
        family = self._families.get(name)
        if family is None:
            family = self._add_family(Family(name, description, kind))
        elif family.kind != kind:
            raise invalid(f"metric family '{name}' is a {family.kind} already and cannot be a {kind} as well")
        family.references += 1
        self._owners[owner] = own
        number = next(self._numbers)
        own.families[number] = (family, set())
        return number

    def metric(self, owner: Hashable, family: int, labels: dict[str, str], buckets: list[float] | None) -> int:
        """A new handle of the metric with these labels in the family of a handle. Creates the metric if needed.

        `buckets` are the increasing bounds of a histogram; they have no effect on an existing metric.
        """
        own = self._owners.get(owner) or _Owner()
        if not own.has_family(family):
            raise invalid(FAMILY_DELETED)
        found, siblings = own.families[family]
        text = checked_labels(labels)
        bounds = checked_buckets(buckets)
        own.check_room()
        made = found.new_metric(text, bounds)  # even if the metric exists, because it validates the buckets
        metric = found.metrics.get(text) or self._add_metric(found, made)
        metric.references += 1
        number = next(self._numbers)
        own.metrics[number] = (family, metric)
        siblings.add(number)
        return number

    def measure(self, owner: Hashable, metric: int, operation: str, value: float) -> None:
        """Perform the operation "increment", "set" or "observe" on the metric of a handle."""
        found = self._metric(owner, metric)
        if operation not in OPERATIONS:
            raise invalid(f"an operation of a metric is one of {', '.join(OPERATIONS)}, not {operation!r:.40}")
        if type(value) is not float:
            raise invalid(f"the value of a metric is a float, not {type(value).__name__}")
        do: Callable[[float], None] = getattr(found, operation)
        do(value)

    def add_observations(self, owner: Hashable, metric: int, counts: list[int], total: float) -> None:
        """Add observations made elsewhere to the histogram of a handle: the number in each bucket, and the sum."""
        found = self._metric(owner, metric)
        are_numbers = type(counts) is list and all(type(count) is int for count in counts) and type(total) is float
        if not isinstance(found, Histogram) or not are_numbers:
            raise invalid("observations are added to a histogram, as a list of integers and a float")
        found.add(counts, total)

    def value(self, owner: Hashable, metric: int) -> float:
        """The current value of the counter or gauge of a handle."""
        return self._metric(owner, metric).value()

    # Deletion. The order depends on the models' garbage collectors, so dropping an unknown handle is not an error.

    def drop_family(self, owner: Hashable, number: int) -> None:
        """The model deleted a family object; the metrics created by it become unusable."""
        own = self._owners.get(owner)
        if own is None or not own.has_family(number):
            return
        for metric in list(own.families[number][1]):
            self.drop_metric(owner, metric)
        family, _ = own.families.pop(number)
        family.references -= 1
        if not family.references:
            del self._families[family.name]
            self._sample_names -= family.sample_names()
            self._size -= family.size
        if not own.families:
            del self._owners[owner]

    def drop_metric(self, owner: Hashable, number: int) -> None:
        """The model deleted a metric object."""
        own = self._owners.get(owner)
        if own is None or not own.has_metric(number):
            return
        handle, metric = own.metrics.pop(number)
        family, siblings = own.families[handle]
        siblings.discard(number)
        metric.references -= 1
        if not metric.references:
            del family.metrics[metric.labels]
            self._size -= metric.size

    def drop_owner(self, owner: Hashable) -> None:
        """The stub ended: drop all its handles."""
        for number in list(self._owners[owner].families) if owner in self._owners else ():
            self.drop_family(owner, number)

    # The page.

    def render(self) -> bytes:
        """The page in Prometheus' text format, version 0.0.4, as UTF-8."""
        return "".join(self.parts()).encode()

    def parts(self) -> Iterator[str]:
        """The page in parts, each of which takes about as long as one model. Others may serve requests in between."""
        yield from self._server_lines()
        native = native_lines(self._native(), self._families)
        for name, family in list(self._families.items()):
            yield family.lines() + native.pop(name, "")
        yield from native.values()

    def gauges(self, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, str, float]]:
        """The name, the labels and the value of each gauge whose family is wanted, by its name."""
        for family in self._families.values():
            if family.kind == "gauge" and is_wanted(family.name):
                for labels, metric in family.metrics.items():
                    yield family.name, labels, metric.value()
        yield from native_gauges(self._native(), is_wanted)

    # Inside.

    def _metric(self, owner: Hashable, number: int) -> Metric:
        own = self._owners.get(owner)
        if own is None or not own.has_metric(number):
            raise invalid(FAMILY_DELETED)
        return own.metrics[number][1]

    def _add_family(self, family: Family) -> Family:
        if len(self._families) >= FAMILIES_MAX:
            raise invalid(f"there are {FAMILIES_MAX} metric families already, and no more can be had")
        taken = sorted(family.sample_names() & self._sample_names)
        if taken:
            raise invalid(f"metric family '{family.name}' would have samples named '{taken[0]}', as another family has")
        self._check_size(family.size)
        self._families[family.name] = family
        self._sample_names |= family.sample_names()
        self._size += family.size
        return family

    def _add_metric(self, family: Family, metric: Metric) -> Metric:
        if len(family.metrics) >= METRICS_PER_FAMILY_MAX:
            raise invalid(f"metric family '{family.name}' has {METRICS_PER_FAMILY_MAX} metrics, and no more can be had")
        self._check_size(metric.size)
        family.metrics[metric.labels] = metric
        self._size += metric.size
        return metric

    def _check_size(self, size: int) -> None:
        if self._size + size > PAGE_BYTES_MAX:
            raise invalid(f"all custom metrics together would have more than {PAGE_BYTES_MAX} bytes on their page")

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.MetricFamily`: custom metrics of a model on the server's metrics page.

The server stores the values, shared by all models and instances; the objects here refer to them. Constructors and
`value` wait for the server. Operations such as `increment` do not wait, so `execute` may call them. Everything is
thread-safe. A metric exists as long as its object, and not longer than the object of its family: keep both.
"""

from __future__ import annotations

import math
import weakref
from enum import IntEnum
from typing import Any, ClassVar, Dict, List, Optional, SupportsFloat, Union

from pyruntime.stub.host import Host, get_host
from pyruntime.stub.pb_utils.arguments import as_float, as_text
from pyruntime.stub.pb_utils.errors import TritonModelException

_Number = Union[int, float, SupportsFloat]

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
_ONLY_UP = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."


class MetricKind(IntEnum):
    """The kind of a metric: a value that only grows, a value that goes up and down, or a distribution of values."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


# The operations of each kind.
_SUPPORTED = {
    MetricKind.COUNTER: ("increment", "value"),
    MetricKind.GAUGE: ("increment", "set", "value"),
    MetricKind.HISTOGRAM: ("observe",),
}


class _Handle:
    """A handle of an object on the server. 0 if its creation failed."""

    _number = 0
    _host: Host

    def _drop(self, method: str) -> None:
        """Tell the server that the object is deleted.

        Called by destructors, maybe at the end of the interpreter, when globals of this module may be gone.
        """
        try:  # noqa: SIM105
            self._host.tell(method, [self._number])
        except Exception:
            # The server has ended, or is stopping this process; then it drops all its handles.
            pass


class Metric(_Handle):
    """One metric, created by `MetricFamily.Metric`. Methods raise TritonModelException if they fail."""

    def __init__(self, host: Host, family: MetricFamily, number: int) -> None:
        self._host = host
        self._kind = family._kind
        # Weak, because deleting the family's object must end its metrics.
        self._family = weakref.ref(family)
        self._number = number

    def increment(self, value: _Number) -> None:
        """Add `value`, which must not be negative for a counter."""
        number = self._operand("increment", value)
        if self._kind is MetricKind.COUNTER and number < 0:
            raise _failure("increment", _ONLY_UP)
        self._host.measure(self._number, "increment", number)

    def set(self, value: _Number) -> None:
        """Set a gauge to `value`, which may be infinite or NaN."""
        self._host.measure(self._number, "set", self._operand("set", value))

    def observe(self, value: _Number) -> None:
        """Count `value` in a histogram."""
        self._host.measure(self._number, "observe", self._operand("observe", value))

    def value(self) -> float:
        """The value of a counter or a gauge, after all earlier operations of this model. Waits for the server."""
        self._check("value")
        try:
            return float(self._host.ask("metric_value", [self._number]))
        except TritonModelException as exc:
            raise _failure("value", str(exc)) from exc

    def _operand(self, operation: str, value: _Number) -> float:
        """`value` as a float that is valid for this operation."""
        self._check(operation)
        try:
            number = as_float(value, "a metric's value")
        except OverflowError:
            raise _failure(operation, f"the value is too large: {str(value)[:40]}...") from None
        if self._kind is not MetricKind.GAUGE and not math.isfinite(number):
            raise _failure(operation, f"the value must be a finite number, found {number}")
        return number

    def _check(self, operation: str) -> None:
        if self._family() is None:
            raise _failure(operation, _DELETED)
        if operation not in _SUPPORTED[self._kind]:
            name = f"TRITONSERVER_METRIC_KIND_{self._kind.name}"
            raise _failure(operation, f"{name} does not support {operation.capitalize()}")

    def __del__(self) -> None:
        # The server drops a family's metrics together with the family.
        if self._number and self._family() is not None:
            self._drop("drop_metric")


_Metric = Metric


class MetricFamily(_Handle):
    """Metrics of one name and one kind. Models and instances that use the same name share one family."""

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM

    def __init__(self, name: Union[str, bytes], description: Union[str, bytes], kind: MetricKind) -> None:
        """Waits for the server. Raises TypeError for wrong types, TritonModelException if the server refuses."""
        name = as_text(name, "name of a MetricFamily")
        description = as_text(description, "description of a MetricFamily")
        if not isinstance(kind, MetricKind):
            raise TypeError(f"kind must be MetricFamily.COUNTER, GAUGE or HISTOGRAM, found {kind!r}")
        self._kind = kind
        self._host = get_host()
        try:
            self._number = int(self._host.ask("metric_family", [name, description, kind.name.lower()]))
        except TritonModelException as exc:
            raise TritonModelException(f"Failed to create metric family. {exc}") from exc

    def Metric(self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None) -> _Metric:
        """The family's metric with these labels; equal labels give the same metric. Waits for the server.

        `buckets` are the increasing bounds of a histogram's buckets; other kinds have none. Raises
        TritonModelException if the server refuses.
        """
        try:
            arguments = [self._number, _checked_labels(labels), _checked_buckets(buckets, self._kind)]
            return Metric(self._host, self, int(self._host.ask("metric", arguments)))
        except TritonModelException as exc:
            raise TritonModelException(f"Failed to create metric. {exc}") from exc

    def __del__(self) -> None:
        if self._number:
            self._drop("drop_family")


def _checked_labels(labels: Any) -> Dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Labels must be a dictionary.")
    for name, text in labels.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TritonModelException(f"Labels must be a dictionary of str to str, found {name!r:.40}: {text!r:.40}")
    return labels


def _checked_buckets(buckets: Any, kind: MetricKind) -> Optional[List[float]]:
    if buckets is None:
        if kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Missing required buckets.")
        return None
    if not isinstance(buckets, list):
        raise TritonModelException("Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        raise TritonModelException("Unexpected buckets found.")
    try:
        return [as_float(bound, "a bound") for bound in buckets]
    except (TypeError, ValueError, OverflowError):
        raise TritonModelException("Buckets must be a list of numbers.") from None


def _failure(operation: str, reason: str) -> TritonModelException:
    verb = "get" if operation == "value" else operation
    return TritonModelException(f"Failed to {verb} metric value: {reason}")

"""Counters, gauges and histograms in Prometheus' text format 0.0.4.

prometheus_client appends ``_total`` to every counter; TGI's counters carry no suffix, and dashboards know them so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric:
    """A named family of samples, one child for each value of its label.

    Args:
        name: full name on the wire.
        help_text: one line.
        label: name of the only label; "" for a metric without one.

    Counters and histograms also take ``values``, the label values that are exported from the start, so that a rate
    over them is never missing.
    """

    kind = "untyped"

    def __init__(self, name: str, help_text: str, label: str = "") -> None:
        self.name = name
        self.help_text = help_text
        self.label = label

    def samples(self) -> Iterator[str]:
        """Lines of the exposition, without HELP and TYPE."""
        raise NotImplementedError

    def lines(self) -> Iterator[str]:
        """All lines of this family."""
        yield f"# HELP {self.name} {self.help_text}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self.samples()

    def _labels(self, value: str, extra: str = "") -> str:
        pairs = [f'{self.label}="{value}"'] if self.label else []
        if extra:
            pairs.append(extra)
        return "{" + ",".join(pairs) + "}" if pairs else ""


class Counter(Metric):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, label: str = "", values: Sequence[str] = ("",)) -> None:
        super().__init__(name, help_text, label)
        self._counts = dict.fromkeys(values, 0.0)

    def inc(self, amount: float = 1, value: str = "") -> None:
        """Add ``amount`` to the child of label ``value``."""
        self._counts[value] = self._counts.get(value, 0.0) + amount

    def samples(self) -> Iterator[str]:
        for value, count in self._counts.items():
            yield f"{self.name}{self._labels(value)} {_number(count)}"


class Gauge(Metric):
    """A number read when the metrics are scraped."""

    kind = "gauge"

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        super().__init__(name, help_text)
        self._read = read

    def samples(self) -> Iterator[str]:
        yield f"{self.name} {_number(self._read())}"


class ReadCounter(Gauge):
    """A number that only grows and is kept elsewhere: read when the metrics are scraped."""

    kind = "counter"


class Summary(Metric):
    """Sum and count of observations, without quantiles."""

    kind = "summary"

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(name, help_text)
        self._sum = 0.0
        self._count = 0

    def observe(self, amount: float) -> None:
        """Count one observation."""
        self._sum += amount
        self._count += 1

    def samples(self) -> Iterator[str]:
        yield f"{self.name}_sum {_number(self._sum)}"
        yield f"{self.name}_count {self._count}"


class Histogram(Metric):
    """Counts of observations by upper bound."""

    kind = "histogram"

    def __init__(
        self, name: str, help_text: str, bounds: Sequence[float], label: str = "", values: Sequence[str] = ("",)
    ) -> None:
        super().__init__(name, help_text, label)
        self._bounds = tuple(bounds)
        self._counts = {value: [0] * (len(self._bounds) + 1) for value in values}
        self._sums = dict.fromkeys(values, 0.0)

    def observe(self, amount: float, value: str = "") -> None:
        """Count one observation for the child of label ``value``, which must be among its values."""
        self._counts[value][bisect_left(self._bounds, amount)] += 1
        self._sums[value] += amount

    def samples(self) -> Iterator[str]:
        for value, counts in self._counts.items():
            total = 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                total += count
                le = f'le="{_number(bound)}"'
                yield f"{self.name}_bucket{self._labels(value, le)} {total}"
            yield f"{self.name}_sum{self._labels(value)} {_number(self._sums[value])}"
            yield f"{self.name}_count{self._labels(value)} {total}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)

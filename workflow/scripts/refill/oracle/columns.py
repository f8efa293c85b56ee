"""Columns of documents as NumPy arrays: what a query compares, a sort orders, a bucket counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from refill.told import ToldError

Bools = NDArray[np.bool_]
Values = NDArray[np.float64]

# What Elasticsearch gives as the sort value of a document without the field.
LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)
BOUNDS = {"gt": np.greater, "gte": np.greater_equal, "lt": np.less, "lte": np.less_equal}


class OracleError(ToldError, ValueError):
    """A request is not one that the oracle can answer; the text says what of it."""


@dataclass(frozen=True)
class Column:
    """One field of all documents.

    Attributes:
        name: the field.
        kind: its type in Elasticsearch: keyword, integer, double or date.
        values: one number a document, NaN where it has no value: the number itself, milliseconds
            of a date, the rank of a keyword among `vocabulary`. Exact, for whole numbers are
            below 2^53.
        vocabulary: the keywords in use, in the order of their characters; empty for numbers.
    """

    name: str
    kind: str
    values: Values
    vocabulary: list[str]

    @classmethod
    def read(cls, name: str, kind: str, series: pd.Series[Any]) -> Column:
        """Read a column of a data frame."""
        if kind == "keyword":
            vocabulary = sorted(series.dropna().unique())
            ranks = {word: float(rank) for rank, word in enumerate(vocabulary)}
            return cls(name, kind, series.map(ranks).to_numpy(np.float64), vocabulary)
        if kind == "date":
            epoch = pd.Timestamp(0, tz="UTC")
            series = (series - epoch) / pd.Timedelta(milliseconds=1)
        return cls(name, kind, series.to_numpy(np.float64, na_value=np.nan), [])

    @property
    def present(self) -> Bools:
        """Which documents have a value."""
        return ~np.isnan(self.values)

    def equal(self, value: Any) -> Bools:
        """Which documents have this value."""
        if self.kind != "keyword":
            return np.asarray(self.values == self._number(value))
        self._check_text(value)
        if value not in self.vocabulary:
            return np.zeros(len(self.values), np.bool_)
        return np.asarray(self.values == self.vocabulary.index(value))

    def within(self, bounds: dict[str, Any]) -> Bools:
        """Which documents have a value within bounds: gt, gte, lt, lte; NaN is in no range."""
        if self.kind == "keyword" or not bounds or bounds.keys() - BOUNDS.keys():
            raise OracleError(f"range on the {self.kind} field {self.name}: {bounds}")
        mask = self.present
        for bound, value in bounds.items():
            mask &= BOUNDS[bound](self.values, self._number(value))
        return mask

    def places(self, descending: bool) -> Values:
        """Where each document stands in a sort, ascending; those without a value stand last."""
        places = -self.values if descending else self.values
        return np.where(self.present, places, np.inf)

    def cursor(self, value: Any, descending: bool) -> float:
        """Where a value of `search_after` stands among `places`."""
        if self.kind == "keyword":
            self._check_text(value)
            if value not in self.vocabulary:
                raise OracleError(f"search_after: no document has {self.name} {value!r}")
            number = float(self.vocabulary.index(value))
        else:
            number = self._number(value)
        return -number if descending else number

    def shown(self, row: int, descending: bool) -> Any:
        """A document's value as it stands in a hit's `sort`."""
        value = self.values[row]
        if np.isnan(value):
            if self.kind == "keyword":
                return None
            if self.kind == "double":
                return "-Infinity" if descending else "Infinity"
            return LONG_MIN if descending else LONG_MAX
        if self.kind == "keyword":
            return self.vocabulary[int(value)]
        return float(value) if self.kind == "double" else int(value)

    def _check_text(self, value: Any) -> None:
        if not isinstance(value, str):
            raise OracleError(f"{self.name} is a keyword, {value!r} is no text")

    def _number(self, value: Any) -> float:
        if self.kind == "date" and isinstance(value, str):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                raise OracleError(f"{self.name}: {value!r} has no time zone")
            return (moment - datetime.fromisoformat("1970-01-01T00:00:00Z")).total_seconds() * 1e3
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise OracleError(f"{self.name} is a number or a date, {value!r} is not")
        return float(value)

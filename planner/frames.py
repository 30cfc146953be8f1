"""Frames: what results are in a notebook, frames of pandas or polars and a table of HTML.

Whatever has flat records is `Framed`; how something looks as HTML is registered with `html` by who
has the words for it, `planner.show`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from planner.errors import PlannerError, shorten

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Framed", "Library", "Record", "Shown", "frame", "html", "no_table"]

Library = Literal["pandas", "polars"]
"""Libraries of frames."""

Record = dict[str, Any]
"""One row: numbers, texts and truth values by the name of their column, units in the names."""

T = TypeVar("T", bound=str)


@overload
def frame(
    rows: Iterable[Mapping[str, Any]], library: Literal["pandas"] = ...
) -> pandas.DataFrame: ...


@overload
def frame(rows: Iterable[Mapping[str, Any]], library: Literal["polars"]) -> polars.DataFrame: ...


def frame(rows: Iterable[Mapping[str, Any]], library: Library = "pandas") -> Any:
    """Rows as a frame, with every column that any row has, in the order in which they come.

    In pandas, whole numbers beside a missing one are `Int64`, and Python's own in a column of
    objects where one is beyond 64 bits: none is rounded. Raises PlannerError where the library is
    not installed.

    >>> frame([{"dp": 4}, {"dp": 8, "step_time_s": 0.5}]).shape
    (2, 2)
    """
    given = list(rows)
    columns = list(dict.fromkeys(name for row in given for name in row))
    records = [{name: row.get(name) for name in columns} for row in given]
    if library not in ("pandas", "polars"):
        raise PlannerError(
            f"library = {shorten(str(library))!r} makes no frames; use pandas or polars"
        )
    try:
        if library == "polars":
            import polars

            # every row decides what a column holds
            return polars.DataFrame(records, infer_schema_length=None)
        import pandas
    except ImportError:
        raise PlannerError(
            f"a frame needs {library}, which is not installed; run pip install {library}"
        ) from None
    table = pandas.DataFrame(records)
    # pandas would turn whole numbers and truth values into others where one is missing
    for name in columns:
        values = [record[name] for record in records]
        kinds = {type(value) for value in values}
        if kinds == {bool, type(None)}:
            table[name] = pandas.array(values, dtype="boolean")
        elif kinds == {int, type(None)}:
            wide = any(not -(2**63) <= value < 2**63 for value in values if value is not None)
            table[name] = pandas.array(values, dtype=object if wide else "Int64")
    return table


class Shown:
    """What a notebook shows as a table instead of its Python text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html(self)


class Framed(Shown, Generic[T]):
    """What has flat records, of one kind or of several that have names."""

    __slots__ = ()

    def records(self, table: T | None = None) -> list[Record]:
        """The rows of one of its tables, or of the first."""
        raise NotImplementedError

    @overload
    def to_frame(
        self, table: T | None = None, *, library: Literal["pandas"] = "pandas"
    ) -> pandas.DataFrame: ...

    @overload
    def to_frame(
        self, table: T | None = None, *, library: Literal["polars"]
    ) -> polars.DataFrame: ...

    def to_frame(self, table: T | None = None, *, library: Library = "pandas") -> Any:
        """The rows of one of its tables, or of the first, as a frame of pandas or polars."""
        return frame(self.records(table), library)


def no_table(table: str, known: Iterable[str]) -> PlannerError:
    """The error for a table that there is not."""
    return PlannerError(
        f"table = {shorten(str(table))!r} is not known; use one of {', '.join(known)}"
    )


@functools.singledispatch
def html(value: object) -> str:
    """Something as HTML for a notebook: no style but what light and dark pages both bear.

    >>> html("<b>")
    '<pre>&#x27;&lt;b&gt;&#x27;</pre>'
    """
    return f"<pre>{escape(repr(value))}</pre>"

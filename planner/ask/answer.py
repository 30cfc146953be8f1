"""Answer: one sentence, the table behind it, and the input of the question."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from planner.errors import DescriptionError, shorten
from planner.tables import Record, Table, Tabular

Row = Record
"""One row: text, number, bool or None by column; a column's name ends in its unit."""


@dataclass(frozen=True, slots=True)
class Answer(Tabular[Literal["rows"]]):
    """The answer to a question as plain data; columns are in SI units by suffix (`_bytes`)."""

    question: str
    """Name of the question."""
    asked: dict[str, Any]
    """Job and options of the question, by catalogue name if unchanged, then values for programs."""
    found: bool
    """True if there is an answer: something fits, or a limit can be met."""
    verdict: str
    """The answer in one sentence."""
    rows: tuple[Row, ...]
    """The options that were compared."""
    notes: tuple[str, ...] = ()
    """Assumptions, and what is not counted."""

    def __str__(self) -> str:
        """Verdict and notes, one per line."""
        return "\n".join([self.verdict, *(f"- {note}" for note in self.notes)])

    def tables(self) -> dict[str, Table]:
        """Return the rows as a table."""
        return {"rows": Table(self.rows)}

    def to_json(self) -> str:
        """Return the answer as JSON text, which `from_json` reads."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Read the text of `to_json`; raise DescriptionError if it is not an answer."""
        try:
            data = json.loads(text)
            json.dumps(data, allow_nan=False)  # every number is finite
            names = sorted(field.name for field in fields(cls))
            if sorted(data) != names or not isinstance(data["verdict"], str):
                raise TypeError("it has other fields, or a verdict that is not text")
            data["rows"] = tuple(dict(row) for row in data["rows"])
            data["notes"] = tuple(map(str, data["notes"]))
            return cls(**data)
        except (TypeError, ValueError, RecursionError) as error:
            raise DescriptionError(
                f"not an answer: {shorten(str(error), 200)}; give what `planner ask --json` prints"
            ) from None

    def to_csv(self) -> str:
        """Return the rows as CSV text, with every column that any row has."""
        return self.table().to_csv()


def interval_names(name: str) -> tuple[str, str]:
    """Return the names of the columns with the ends of a column's interval."""
    unit = next((unit for unit in ("_s", "_bytes") if name.endswith(unit)), "")
    stem = name.removesuffix(unit)
    return f"{stem}_low{unit}", f"{stem}_high{unit}"

"""Answer: what a question was, what the answer is, and the table behind it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from planner.errors import DescriptionError
from planner.tables import Record, Table, Tabular

__all__ = ["Answer", "Row"]

Row = Record
"""A record: texts, numbers, truth values or None by column; the name of a column ends in its
unit."""


@dataclass(frozen=True, slots=True)
class Answer(Tabular[Literal["rows"]]):
    """The answer to a question, in plain data alone.

    Columns are in SI units by their suffix (`_s`, `_bytes`, `_bytes_per_s`); the 90 % interval of
    `step_time_s` stands in `step_time_low_s` and `step_time_high_s`, and so for others; `reason`
    says why. `planner.ask` has the questions.
    """

    question: str
    """Its name."""
    asked: dict[str, Any]
    """Everything that it was asked with; model, machine and frameworks by name where the catalogue
    has them as they were, else whole."""
    found: bool
    """Whether there is an answer: something fits, or a limit can be kept."""
    verdict: str
    """The answer in one sentence."""
    rows: tuple[Row, ...]
    """What was looked at."""
    notes: tuple[str, ...] = ()
    """How it was looked for, and what is left out."""

    def __str__(self) -> str:
        """The sentence, and how it was looked for: `print` has no use for all fields.

        >>> print(Answer("host", {}, True, "It is enough.", (), ("One node.",)))
        It is enough.
        - One node.
        """
        return "\n".join([self.verdict, *(f"- {note}" for note in self.notes)])

    def tables(self) -> dict[str, Table]:
        """Return the rows as a table."""
        return {"rows": Table(self.rows)}

    def to_json(self) -> str:
        """The answer as JSON text.

        >>> import planner
        >>> job = planner.Workload(global_batch=64, sequence_length=1024)
        >>> answer = planner.ask.host("gpt2", "polaris", workload=job)
        >>> Answer.from_json(answer.to_json()) == answer
        True
        """
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """The answer that `to_json` wrote; DescriptionError where the text is none."""
        try:
            data = json.loads(text)
            if sorted(data) != sorted(field.name for field in fields(cls)):
                raise TypeError("it has other fields")
            data["rows"] = tuple(dict(row) for row in data["rows"])
            data["notes"] = tuple(map(str, data["notes"]))
            return cls(**data)
        except (TypeError, ValueError, RecursionError) as error:
            raise DescriptionError(
                f"not an answer: {error}; give the output of `planner ask --json`"
            ) from None

    def to_csv(self) -> str:
        """The rows as CSV text; every column that any of them has."""
        return self.table().to_csv()

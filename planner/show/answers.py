"""Answers: display of an answer as sentence, table and notes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from planner.ask.answer import Answer, Row, interval_names
from planner.choose.verdicts.answer_lines import percent_chance
from planner.describe.files import read_toml
from planner.tables import Block, Column, Line, Notes, Table, page
from planner.units import format_amount, format_bytes, format_count, format_rate, format_seconds

_FORMS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("bytes_per_s", format_rate),
    ("_bytes", format_bytes),
    ("_probability", percent_chance),
    ("_per_device", format_amount),
    ("_s", format_seconds),
    ("_kWh", format_amount),
)
"""Formats of numbers, by the suffix of their column."""
_COLUMNS = read_toml(Path(__file__).parents[1] / "ask" / "columns.toml")
"""Titles and formats of columns by name."""


@page.register
def answer_page(answer: Answer) -> list[Block]:
    """Return the sentence, the table and the notes of an answer."""
    verdict = Line(answer.verdict, "bold green" if answer.found else "bold red")
    tables = [answer_table(answer)] if answer.rows else []
    return [verdict, *tables, Notes(answer.notes)]


def answer_table(answer: Answer) -> Table:
    """Return the display table of an answer, with units and with intervals in one cell."""
    names = [name for name in _names(answer.rows) if _is_shown(answer.rows, name)]
    samples = answer.asked.get("workload", {}).get("sequence_length") == 1
    return Table(answer.rows, columns=tuple(_column(name, samples) for name in names))


def _column(name: str, samples: bool) -> Column:
    title = column_title(name)
    if samples:
        title = title.replace("tokens/s", "samples/s")
    return Column(
        "", title, lambda row: _cell(row, name), min_width=_COLUMNS["min_widths"].get(title, 0)
    )


def _names(rows: Sequence[Row]) -> list[str]:
    """List the columns of all rows in the order of the longest row, the reason last."""
    columns = [*max(rows, key=len), *(name for row in rows for name in row)]
    last = ["reason"] if any("reason" in row for row in rows) else []
    return [name for name in dict.fromkeys(columns) if name != "reason"] + last


def _is_shown(rows: Sequence[Row], name: str) -> bool:
    """True if a column is shown: it distinguishes rows and is not the end of an interval."""
    if name == "fits":
        return not all(row.get(name, True) for row in rows)
    if name.endswith("_bytes") and _base(name) not in _COLUMNS["totals"]:
        distinct = {row[name] for row in rows if row.get(name) is not None}
        if len(distinct) == 1 or not any(distinct):
            # a part that is equal in all rows does not distinguish them
            return len(rows) == 1 and any(distinct)
    if name == "framework" and not any("layout" in row for row in rows):
        return True
    return name not in _COLUMNS["omitted"] and _base(name) == name


def _base(name: str) -> str:
    """Return the column whose interval a column bounds, else the column itself."""
    for end in ("_low", "_high"):
        for unit in ("_s", "_bytes", ""):
            if name.endswith(end + unit):
                return name.removesuffix(end + unit) + unit
    return name


def _cell(row: Row, name: str) -> str:
    value = row.get(name)
    if value is None:
        return "-"
    text = column_text(name, value)
    if name == "layout" and "framework" in row:
        return f"{text} [{row['framework']}]"
    ends = [row.get(end) for end in interval_names(name)]
    if name not in _COLUMNS["intervals"] or None in ends:
        return text
    low, high = (column_text(name, end) for end in ends)
    unit = text.partition(" ")[2]
    if unit and low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.removesuffix(f" {unit}"), high.removesuffix(f" {unit}")
    return f"{text} ({low}-{high})"


def column_text(name: str, value: Any) -> str:
    """Format a value in the unit of its column."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and name != "num_params":
        return f"{value:,}"
    plain = name.removesuffix("_low").removesuffix("_high")
    if plain in _COLUMNS["signed_shares"]:
        return f"{100 * value:+.1f} %"
    if plain in _COLUMNS["shares"] or plain.endswith("_share"):
        return f"{100 * value:.1f} %"
    if plain in _COLUMNS["amounts"]:
        return format_amount(value)
    form = next((form for end, form in _FORMS if name.endswith(end)), None)
    if form is not None:
        return form(value)
    return format_count(value) if abs(value) >= 1 else f"{value:.3g}"


def column_title(name: str) -> str:
    """Return the title of a column."""
    plain = name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
    return str(_COLUMNS["titles"].get(name, plain))

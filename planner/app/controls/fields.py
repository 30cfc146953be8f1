"""Fields: a widget for a field of a description, with its choices, bounds and help."""

import enum
import typing
from typing import Any

from planner.app.draw import on_page
from planner.describe.base import Description, field_docs

_MAX_VALUE = 10_000_000.0
_SHORT_OF = 0.99  # share of an exclusive upper bound that a widget allows


class Kind(enum.Enum):
    """Kind of value in a field."""

    CHOICE = "one option"
    WORDS = "several options"
    INTEGER = "whole number"
    REAL = "number"
    TRUTH = "boolean"
    TEXT = "text"

    @property
    def number(self) -> type:
        """Python type of a number of this kind."""
        return int if self is Kind.INTEGER else float


def kind_of(description: type[Description], name: str) -> Kind:
    """Return the kind of value in a field of a description."""
    annotation = description.model_fields[name].annotation
    if typing.get_origin(annotation) is tuple:
        return Kind.WORDS
    if typing.get_origin(annotation) is typing.Literal:
        return Kind.CHOICE
    if annotation is bool:
        return Kind.TRUTH
    if annotation is str:
        return Kind.TEXT
    return Kind.INTEGER if annotation is int else Kind.REAL


def options_of(description: type[Description], name: str) -> tuple[str, ...]:
    """Return the words that a field accepts."""
    annotation = description.model_fields[name].annotation
    if kind_of(description, name) is Kind.WORDS:
        annotation = typing.get_args(annotation)[0]
    return typing.get_args(annotation)


def bounds(description: type[Description], name: str) -> tuple[float, float]:
    """Return the smallest and largest value that a number field accepts."""
    least, most = 0.0, _MAX_VALUE
    for rule in description.model_fields[name].metadata:
        least = getattr(rule, "ge", least)
        if hasattr(rule, "lt"):
            most = rule.lt * _SHORT_OF
        most = getattr(rule, "le", most)
    return least, most


def integer(
    place: Any, label: str, key: str, bounds: tuple[int, int], about: str | None, step: int = 1
) -> None:
    """Draw an integer input whose value is in the session state."""
    least, most = bounds
    place.number_input(label, min_value=least, max_value=most, step=step, key=key, help=about)


def widget(
    place: Any,
    description: type[Description],
    name: str,
    label: str = "",
    *,
    key: str,
    options: typing.Sequence[str] = (),
    value: Any = None,
) -> Any:
    """Draw a widget for a field, with `value` at first; None: the session state has its value."""
    label = label or name.replace("_", " ")
    kind, text = kind_of(description, name), on_page(field_docs(description)[name])
    settings: dict[str, Any] = {"key": key, "help": text}
    if kind is Kind.CHOICE:
        options = options or options_of(description, name)
        start = {} if value is None else {"index": list(options).index(value)}
        return place.selectbox(label, options, **settings, **start)
    if kind is Kind.WORDS:
        settings |= {} if value is None else {"default": list(value)}
        return place.multiselect(label, options_of(description, name), **settings)
    if kind in (Kind.TRUTH, Kind.TEXT):
        settings |= {} if value is None else {"value": value}
        return (place.checkbox if kind is Kind.TRUTH else place.text_input)(label, **settings)
    low, most = bounds(description, name)
    number = kind.number
    if description.model_fields[name].default is None:
        settings |= {"value": None, "placeholder": "the model's own", "step": 0.05}
    elif value is not None:
        settings |= {"value": number(value)}
    settings = {"step": number(1), "max_value": number(most), **settings}
    return place.number_input(label, min_value=number(low), **settings)

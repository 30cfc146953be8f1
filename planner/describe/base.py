"""Base of all descriptions: frozen, strict, no unknown fields; `replaced` makes a valid copy."""

import ast
import functools
import inspect
import itertools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from planner.errors import DescriptionError, shorten
from planner.tables import NotebookView

Kind = Literal["datasheet", "measured", "calibrated", "assumed"]
"""Kind of evidence for a number. Assumed numbers are marked wherever they matter."""


class Description(NotebookView, BaseModel):
    """Base of the descriptions: frozen, strict types, no unknown fields; lists become tuples."""

    # `field_docs` reads the docstrings under fields on demand; pydantic would parse every module
    # at import
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _arrays(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}

    def __init__(self, /, **fields: Any) -> None:
        """Create an instance; raises DescriptionError with field, value and rule."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise DescriptionError(explain(error, type(self).__name__.lower())) from None

    # nested descriptions skip this __init__, so that errors state the whole path of a field
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def replaced(self, **changes: Any) -> Self:
        """Copy with `changes`, validated; raises DescriptionError."""
        return type(self).described({**self.model_dump(), **changes})

    @classmethod
    def described(cls, fields: dict[str, Any], where: str = "") -> Self:
        """Create an instance from plain data; raises DescriptionError."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise DescriptionError(explain(error, where or cls.__name__.lower())) from None

    @classmethod
    def from_text(cls, fields: dict[str, str], where: str = "") -> Self:
        """Create an instance from text values, such as those of a URL; raises DescriptionError."""
        try:
            return cls.model_validate_strings(fields, strict=False)
        except ValidationError as error:
            raise DescriptionError(explain(error, where or cls.__name__.lower())) from None


class Quantity(Description):
    """A number of a catalogue with its source."""

    value: float
    """The number in SI units."""
    kind: Kind
    """datasheet, measured, calibrated or assumed."""
    source: str = Field(min_length=2)
    """Where the number was read, or how it was obtained."""
    error: float = Field(ge=0, default=0.0)
    """Mean relative error of the fit that gave the number; widens intervals."""

    def __init_subclass__(cls, **bounds: Any) -> None:
        """Bound the value, with the arguments of pydantic's `Field`."""
        limited = Annotated[float, Field(**bounds)]
        cls.__annotations__ = {**inspect.get_annotations(cls), "value": limited}


def assumed(value: float, source: str) -> dict[str, Any]:
    """Fields of an assumed quantity."""
    return {"value": value, "kind": "assumed", "source": source}


class Fraction(Quantity, ge=1e-6, le=1):
    """A fraction above zero, at most one."""


class Share(Quantity, ge=0, le=1):
    """A fraction from zero to one."""


class Factor(Quantity, ge=0.01, le=100):
    """A ratio of two quantities in the same unit."""


class ByteCount(Quantity, ge=0, le=1e12):
    """Memory of a program or a library [B]."""


class Memory(Quantity, ge=1e8, le=1e15):
    """Capacity of a memory [B]."""


class Storage(Quantity, ge=1e6, le=1e21):
    """Capacity of a disk or a file system [B]."""


class Rate(Quantity, ge=1e6, le=1e18):
    """Bytes or operations per second [B/s] or [FLOP/s]."""


class Duration(Quantity, ge=0, le=1):
    """A latency below one second [s]."""


class Power(Quantity, ge=1, le=1e6):
    """Power of a device or a node [W]."""


class Count(Quantity, ge=1, le=1e6, multiple_of=1):
    """A whole number, at least one."""


BytesPerElement = Annotated[float, Field(ge=0, le=64)]
"""Bytes of one parameter or element; 64 is more than any state needs [B]."""

Elements = Annotated[float, Field(ge=0, le=1e12)]
"""Elements of a buffer."""

Width = Annotated[int, Field(ge=0, le=10_000_000)]
"""A width of a model; 0: absent."""
PositiveWidth = Annotated[int, Field(ge=1, le=10_000_000)]


def _check_variable(text: str) -> str:
    if not (text.isascii() and text.isidentifier()):
        raise ValueError("name a variable by letters, digits and _")
    return text


def _check_script_text(text: str) -> str:
    if not text.isprintable() or "`" in text:
        raise ValueError("a job script takes one line of printable characters without backticks")
    return text


Variable = Annotated[str, AfterValidator(_check_variable)]
"""Name of an environment variable."""

ScriptText = Annotated[str, AfterValidator(_check_script_text)]
"""Text of one line in a job script."""

ZeroStage = Annotated[int, Field(ge=0, le=3)]
"""A ZeRO stage."""


class Trait(Description):
    """A true or false fact of a catalogue with its source."""

    value: bool
    """Whether it is true."""
    kind: Kind
    """datasheet, measured, calibrated or assumed."""
    source: str = Field(min_length=2)
    """Where it was read, or how it was determined."""


_MOST_SHOWN = 10**18
"""Larger whole numbers are shown in scientific notation."""


def explain(error: ValidationError, where: str) -> str:
    """Explain the first problem of a validation error in one sentence: value, rule, field."""
    first = error.errors(include_url=False)[0]
    field = shorten(".".join(str(part) for part in first["loc"]))
    message_text = first["msg"].removeprefix("Value error, ")
    words = _WORDS.get(first["type"])
    message = words.format(**first.get("ctx", {})) if words else message_text
    message = message[:1].lower() + message[1:]
    if first["type"] == "missing":
        return f"{where}: the field {field!r} is missing; add it"
    if first["type"] == "extra_forbidden":
        return f"{where}: the field {field!r} is not known; remove it or correct its spelling"
    too_small = first["type"] == "greater_than_equal" and field.endswith(".value")
    if too_small or first["type"] in ("less_than", "less_than_equal"):
        message += "; check your units"
    if not field:
        return f"{where}: {message}"
    return (
        f"{where}: {field.removesuffix('.value')} = {quote(first['input'])} is refused: {message}"
    )


_ERROR_WORDS = Path(__file__).parent / "catalogues" / "error_words.toml"
_WORDS: dict[str, str] = tomllib.loads(_ERROR_WORDS.read_text("utf-8"))
"""Rules in plain words, by pydantic's name of the error."""


def quote(value: object) -> str:
    """Format a value for a message, also an integer beyond Python's limit of 4300 digits."""
    try:
        if isinstance(value, int) and abs(value) > _MOST_SHOWN:
            return f"{value:.4g}"
        return shorten(str(value))
    except (OverflowError, ValueError):
        return "a number of thousands of digits"


@functools.cache
def field_docs(cls: type[Description]) -> dict[str, str]:
    """Docstrings of a class's fields by name, for help texts."""
    docs = dict.fromkeys(cls.model_fields, "")
    for base in reversed(cls.__mro__):
        if issubclass(base, Description):
            docs.update(_docs_of(base))
    return docs


def _docs_of(cls: type[Description]) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each field that a class adds to its base."""
    for field, text in itertools.pairwise(_classes_of(cls.__module__)[cls.__name__].body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield field.target.id, inspect.cleandoc(str(text.value.value))


@functools.cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

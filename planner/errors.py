"""Errors that users see: every message carries the value, the rule and the remedy."""

import difflib
from collections.abc import Iterable

FITS, NOTHING_FITS, WRONG_USE, REFUSED_ROWS, UNFORESEEN, INTERRUPTED = 0, 1, 2, 3, 70, 130
"""Exit codes of the command line."""


class PlannerError(ValueError):
    """Base of every error that a user's input can cause."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Make an error; `hint` ends the message, except on pages."""
        self.plain = _printable(message)
        super().__init__(self.plain + hint)
        """The message without the hint."""


class UnknownNameError(PlannerError):
    """A name that is not in a catalogue; offers the nearest ones."""

    def __init__(self, kind: str, name: str, candidates: Iterable[str], listing: str = "") -> None:
        names = sorted(candidates)
        folded = {candidate.lower(): candidate for candidate in names}
        close_names = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
        hint = (
            f"did you mean {' or '.join(folded[n] for n in close_names)}?"
            if close_names
            else f"known are {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
        )
        listing = listing or f"`planner {kind}s` lists all {len(names)}"
        super().__init__(f"unknown {kind} {shorten(name)!r}: {hint}", f" ({listing})")


class CatalogueError(PlannerError):
    """A file that is missing, unreadable or not in the expected form."""


class WriteError(PlannerError):
    """A file that cannot be written; what was there before is unchanged."""


class UnstatedError(PlannerError):
    """A job that leaves out what an estimate needs; the message asks for it by name."""


class DescriptionError(PlannerError):
    """A description whose values contradict each other or physical sense."""


class LayoutError(PlannerError):
    """A layout that the model, the machine or the framework does not allow."""


class EmitError(PlannerError):
    """A layout that the files of a framework or of a scheduler cannot express."""


def shorten(text: str, limit: int = 80) -> str:
    """Cut `text` to `limit` characters, so that hostile input cannot flood a message."""
    return _printable(text if len(text) <= limit else text[: limit - 3] + "...")


def _printable(text: str) -> str:
    """Escape what cannot be printed: a message is one line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shorten_path(path: object, limit: int = 80) -> str:
    """Shorten a path like `shorten`, but cut its beginning: the end names the file."""
    text = str(path)
    return shorten(text if len(text) <= limit else "..." + text[3 - limit :], limit)


def package_fault() -> str:
    """Say which package is missing or too old, and how to install it; empty if none is."""
    from importlib import metadata

    try:
        requirements = metadata.requires("parallelism-planner") or []
    except metadata.PackageNotFoundError:  # a checkout that was not installed
        return ""
    for requirement in requirements:
        package, _, extra = requirement.partition(";")
        name, _, oldest = package.strip().partition(">=")
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = oldest if extra else "0"
        if _numbers(version) < _numbers(oldest):
            state = "is missing" if version == "0" else f"{version} is installed"
            return f"{name} {state}, and planner needs {package}; run `pip install '{package}'`"
    return ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit()]

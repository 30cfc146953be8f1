"""Results: a JSON file, written atomically and resumed after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.describe.files import write_atomically
from planner.errors import PlannerError, shorten, shorten_path

__all__ = ["ResultsError", "ResultsFile"]


class ResultsError(PlannerError):
    """Results that cannot be read back."""


class ResultsFile:
    """Cases by key, saved after each; finished cases are not run again."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.cases: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}
        if path is not None and path.exists():
            self._load(path)
        if path is not None:
            self.save()  # an unwritable path shows before the work, not after it

    def _load(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            settings, cases = data["settings"], data["cases"]
        except OSError as error:
            raise ResultsError(
                f"cannot read {shorten_path(path)}: {error.strerror}; check the path"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise ResultsError(
                f"{shorten_path(path)} holds no results of this command; move it or choose "
                "another path"
            ) from None
        if settings != self.settings:
            raise ResultsError(
                f"{shorten_path(path)} holds results of other settings "
                f"({_difference(settings, self.settings)}); move it or choose another path"
            )
        self.cases = {case["key"]: case for case in cases}

    def has(self, key: str) -> bool:
        """Whether a case is done."""
        return key in self.cases

    def add(self, case: dict[str, Any]) -> None:
        """Keep a finished case."""
        self.cases[case["key"]] = case
        self.save()

    def save(self) -> None:
        """Write everything."""
        if self.path is not None:
            text = json.dumps(self.as_dict(), indent=1, allow_nan=False)
            write_atomically(self.path, text + "\n")

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"settings": self.settings, **self.extra, "cases": list(self.cases.values())}


def _difference(old: Any, new: dict[str, Any]) -> str:
    if not isinstance(old, dict):
        return "unreadable"
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return ", ".join(f"{n}: {shorten(str(old.get(n)), 40)} there" for n in changed[:3])

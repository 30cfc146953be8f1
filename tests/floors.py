"""Floors: the oldest releases that `pyproject.toml` allows, as constraints for pip.

`python -m tests.floors` prints them; `make floors` installs them and runs the quick tests.
"""

from __future__ import annotations

import re
import tomllib

from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
"""Table `project` of `pyproject.toml`."""


def floors() -> dict[str, set[str]]:
    """Return the floors of each package that the project names, by package."""
    extras = PROJECT["optional-dependencies"].values()
    found: dict[str, set[str]] = {}
    for requirement in [*PROJECT["dependencies"], *(name for extra in extras for name in extra)]:
        if match := re.match(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", requirement):
            found.setdefault(match[1].lower(), set()).add(match[2])
    return found


def main() -> None:
    """Print a constraint for each package but torch, whose one release is in `constraints.txt`."""
    for name, releases in floors().items():
        if name != "torch":
            print(f"{name}=={min(releases)}")


if __name__ == "__main__":
    main()

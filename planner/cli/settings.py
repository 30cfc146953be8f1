"""Settings: defaults of the command line from the user's and the project's file."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from planner.errors import FITS, DescriptionError, shorten, shorten_path

VARIABLE = "PLANNER_SETTINGS"
"""Environment variable with the user's file; empty to use no settings at all."""
PROJECT_FILE = "planner.toml"
MEANINGS = {
    "machine": "machine of jobs that name none",
    "frameworks": "frameworks that are searched if a job names none",
    "account": "account that pays for emitted jobs",
    "preferences": "file of preferences (also PLANNER_PREFERENCES)",
    "templates": "folder of own templates (also PLANNER_TEMPLATES)",
}
_EXAMPLE = "fsdp2"
_VARIABLES = {"preferences": "PLANNER_PREFERENCES", "templates": "PLANNER_TEMPLATES"}


class Setting(NamedTuple):
    """A value and the file that states it."""

    value: Any
    file: Path


def files() -> list[Path]:
    """List the files that may state settings, the project's first."""
    named = os.environ.get(VARIABLE)
    if named == "":
        return []
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    working = Path.cwd()
    candidates = [each / PROJECT_FILE for each in (working, *working.parents)]
    project = next((path for path in candidates if path.is_file()), candidates[0])
    user = os.path.expanduser(named or os.path.join(folder, "planner", "settings.toml"))
    return [project, Path(user)]


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Read the settings of both files. Raises DescriptionError for a file that is not right."""
    read: dict[str, Setting] = {}
    for path in reversed(files()):
        if path.is_file():
            read |= {name: Setting(value, path) for name, value in _read(path).items()}
    return read


def value_of(name: str) -> Any:
    """Return the value of a setting; None if no file states it."""
    setting = settings().get(name)
    return None if setting is None else setting.value


def export() -> None:
    """Set the environment variables of preferences and templates, unless they are set."""
    for name, variable in _VARIABLES.items():
        if (value := value_of(name)) is not None:
            os.environ.setdefault(variable, value)


def _read(path: Path) -> dict[str, Any]:
    from planner.describe.files import read_toml

    values = read_toml(path)
    for name, value in values.items():
        if name not in MEANINGS:
            allowed = ", ".join(MEANINGS)
            raise DescriptionError(
                f"{shorten_path(path)}: unknown setting {shorten(name)!r}; use {allowed}"
            )
        example = f'["{_EXAMPLE}"]' if name == "frameworks" else '"..."'
        texts = value if name == "frameworks" and isinstance(value, list) else [value]
        are_texts = all(isinstance(text, str) and text for text in texts)
        if isinstance(value, list) != (name == "frameworks") or not are_texts:
            raise DescriptionError(
                f"{shorten_path(path)}: {name} = {shorten(str(value))} has the wrong type; write "
                f"for example {name} = {example}"
            )
        if name in _VARIABLES:
            values[name] = str(path.parent / os.path.expanduser(str(value)))
    return values


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("config")(config_command)


def config_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show the settings in effect, the file of each, and where files are looked for."""
    current = settings()
    if as_json:
        values = {n: {"value": s.value, "file": str(s.file)} for n, s in current.items()}
        print(json.dumps({"settings": values, "files": list(map(str, files()))}, indent=1))
        return FITS
    for name, meaning in MEANINGS.items():
        setting = current.get(name)
        text = "-" if setting is None else f"{setting.value}  ({shorten_path(setting.file)})"
        print(f"{name:12} {text}\n{'':12} {meaning}")
    for label, path in zip(("project", "user"), files(), strict=False):
        print(f"{label:12} {path}{'' if path.is_file() else '  (none there)'}")
    return FITS

"""Text: fill in templates (jinja2), write plain data as text, and add lines to a file."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomlkit
import yaml
from tomlkit.items import Array

from planner.describe.framework.switches import merge_tables
from planner.errors import EmitError, shorten, shorten_path
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from jinja2 import Environment, Template

VARIABLE = "PLANNER_TEMPLATES"
"""Environment variable with the folder of a site's own templates; empty to use none."""
_FOLDERS = [Path(__file__).parent / room / "templates" for room in ("scripts", "recipes")]


def template_names() -> list[str]:
    """List the templates that a site may replace, those of scripts first."""
    return [path.name for folder in _FOLDERS for path in sorted(folder.glob("*.j2"))]


def site_folder() -> Path | None:
    """Folder of a site's templates; raises EmitError if missing, or for an unknown template."""
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    usual = os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    folder = Path(os.path.expanduser(named or os.path.join(usual, "planner", "templates")))
    if not folder.is_dir():
        if named is None:
            return None
        raise EmitError(
            f"{VARIABLE} = {shorten_path(folder)} is not a folder; name one that exists"
        )
    names = template_names()
    unknown = sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in names and (path.suffix == ".j2" or f"{path.name}.j2" in names)
    )
    if unknown:
        raise EmitError(
            f"{shorten_path(folder)} has {shorten(unknown[0])}, which replaces no template; name "
            f"it as one of {', '.join(names)}"
        )
    return folder


_WRONG = (yaml.YAMLError, ArithmeticError, LookupError, OSError, TypeError, ValueError)


def render(name: str, block: str = "", form: str = "", /, **values: Any) -> str:
    """Fill in a template or one block; raises EmitError if that fails or gives malformed text."""
    from jinja2 import TemplateError

    folder = site_folder()
    try:
        template = _environment(folder).get_template(f"{name}.j2")
        if block and block not in template.blocks:
            raise TemplateError(f"it has no block {block}")
        part = template.blocks[block] if block else template.root_render_func
        text = "".join(part(template.new_context(values)))
        return _CHECKED[form](text) if form in _CHECKED else text
    except (TemplateError, *_WRONG) as error:
        where = "" if folder is None else f" of {shorten_path(folder)}"
        raise EmitError(
            f"the template {name}.j2{where} cannot be filled in: {shorten(str(error), 200)}; "
            "correct it, or remove it to use the planner's own"
        ) from None


def fill(line: str, /, **values: Any) -> str:
    """Fill in a template of one line, such as those of `systems.toml`."""
    return _template(line).render(**values)


@functools.lru_cache(maxsize=256)
def _template(line: str) -> Template:
    return _environment(None).from_string(line)


@functools.lru_cache(maxsize=8)
def _environment(folder: Path | None) -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(
        loader=FileSystemLoader([*([folder] if folder else []), *_FOLDERS]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML; values are quoted where they may hold anything
    )
    environment.filters |= _FILTERS
    return environment


def _yaml_scalar(value: object) -> str:
    return yaml.safe_dump(value).removesuffix("...\n").rstrip("\n")


def _tidy_json(text: str) -> str:
    """Format a template's JSON, which may have trailing commas."""
    strict = re.sub(r'("(?:[^"\\]|\\.)*")|,(\s*[\]}])', lambda m: m[1] or m[2], text)
    return json_text(json.loads(strict))


def _parsed(parse: Callable[[str], object], text: str) -> str:
    parse(text)
    return text


_CHECKED: dict[str, Callable[[str], str]] = {
    ".json": _tidy_json,
    ".yaml": functools.partial(_parsed, yaml.safe_load),
    ".toml": functools.partial(_parsed, tomllib.loads),
}
"""Checks of rendered texts by file ending."""


def _options(table: Mapping[str, Any]) -> str:
    """Write options to an argument file: True for a bare one, None or False to leave it out."""
    lines = []
    for name, value in table.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        if value is True:
            lines.append(f"--{name}")
        elif value is not None and value is not False and values:
            lines.append(" ".join([f"--{name}", *map(str, values)]))
    return arguments_text(lines)


_FILTERS: dict[str, Callable[..., str]] = {
    "bytes": format_bytes,
    "fold": lambda text: " ".join(text.split()),
    "json": json.dumps,
    # a Python literal, with strings in double quotes
    "literal": lambda value: repr(value) if isinstance(value, bool | int) else json.dumps(value),
    "options": _options,
    "quote": shlex.quote,
    "seconds": format_seconds,
    "yaml": _yaml_scalar,
}


def assigned(tables: Mapping[str, Any], lines: Iterable[str]) -> dict[str, Any]:
    """Apply assignments to dotted keys, in TOML notation, to tables."""
    return functools.reduce(merge_tables, map(tomllib.loads, lines), dict(tables))


def yaml_text(data: Mapping[str, Any]) -> str:
    """Write a mapping as block YAML, keys in their given order."""
    return yaml.safe_dump(dict(data), sort_keys=False)


def toml_text(tables: Mapping[str, Mapping[str, Any]], comment: str) -> str:
    """Write tables of plain values, or lists of them, as TOML under a comment."""
    document = tomlkit.document()
    document.add(tomlkit.comment(comment))
    document.add(tomlkit.nl())
    for name, table in tables.items():
        section = tomlkit.table()
        for key, value in table.items():
            item = tomlkit.item(value)
            section.add(key, item.multiline(True) if isinstance(item, Array) else item)
        document.add(name, section)
    return tomlkit.dumps(document)


def json_text(data: Mapping[str, Any]) -> str:
    """Write a mapping as JSON."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def arguments_text(options: Iterable[str]) -> str:
    """Write options one per line: a single value after `=`, several on lines of their own."""
    return "".join(f"{line}\n" for option in options for line in _lines(option))


def _lines(option: str) -> list[str]:
    """Split an option into the words of a command line; argparse takes only one value after `=`."""
    name, *values = option.split(" ")
    return [f"{name}={values[0]}"] if len(values) == 1 else [name, *values]


def _arguments_with(text: str, lines: Iterable[str]) -> str:
    """Add options to an argument file; each replaces the same option, or goes to the end."""
    plain = arguments_text(line.replace(" = ", "=") for line in lines)
    return "".join((_by_name(text) | _by_name(plain)).values())


def _by_name(text: str) -> dict[str, str]:
    """Group the lines of an argument file by option, with values on lines of their own."""
    line_by_name: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("--") or "=" in line:
            name = line.partition("=")[0]
            line_by_name[name] = ""
        line_by_name[name] = f"{line_by_name.get(name, '')}{line}\n"
    return line_by_name


_FORMS: dict[str, Callable[[str, Iterable[str]], str]] = {
    ".args": _arguments_with,
    ".json": lambda text, lines: json_text(assigned(json.loads(text), lines)),
    ".yaml": lambda text, lines: yaml_text(assigned(yaml.safe_load(text), lines)),
}
"""Functions that add lines to a file, by file ending."""


def with_lines(name: str, text: str, lines: Iterable[str]) -> str | None:
    """Add options or assignments to a file's text; None if its format takes none."""
    form = _FORMS.get(name[name.rfind(".") :])
    return None if form is None else form(text, lines)

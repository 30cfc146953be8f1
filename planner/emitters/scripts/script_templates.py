"""Templates of job scripts and of modules: jinja2 files of this package, or a site's own."""

from __future__ import annotations

import functools
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import EmitError, shorten, shorten_path

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["VARIABLE", "render", "site_folder", "template_names"]

VARIABLE = "PLANNER_TEMPLATES"
"""Environment variable with the folder of a site's own templates; empty to use none."""
_FOLDER = Path(__file__).with_name("templates")


def template_names() -> list[str]:
    """Names of the templates that a site may replace."""
    return sorted(path.name for path in _FOLDER.glob("*.j2"))


def site_folder() -> Path | None:
    """Folder of a site's templates, from PLANNER_TEMPLATES or `~/.config/planner/templates`.

    Raises EmitError where it is not there, or holds a file that replaces no template.
    """
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    usual = os.path.expanduser(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    folder = Path(named or os.path.join(usual, "planner", "templates")).expanduser()
    if not folder.is_dir():
        if named is None:
            return None
        raise EmitError(f"{VARIABLE} = {shorten_path(folder)} is no folder; name one that exists")
    names = template_names()
    strange = sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in names and (path.suffix == ".j2" or f"{path.name}.j2" in names)
    )
    if strange:
        raise EmitError(
            f"{shorten_path(folder)} has {shorten(strange[0])}, which replaces no template; name "
            f"it as one of {', '.join(names)}"
        )
    return folder


def render(name: str, **values: Any) -> str:
    """Fill a template in; a site's own file of that name comes before the package's.

    Raises EmitError where a site's template asks for a value that is not given, or is no template.
    """
    from jinja2 import TemplateError

    folder = site_folder()
    try:
        return _environment(folder).get_template(f"{name}.j2").render(**values)
    except (TemplateError, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
        where = "" if folder is None else f" of {shorten_path(folder)}"
        raise EmitError(
            f"the template {name}.j2{where} cannot be filled in: {shorten(str(error), 200)}; "
            "correct it, or remove it to use the planner's own"
        ) from None


@functools.lru_cache(maxsize=8)
def _environment(folder: Path | None) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([*([folder] if folder else []), _FOLDER]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # no HTML; values are quoted where they may hold anything
    )
    environment.filters["quote"] = shlex.quote
    return environment

"""Help panels: the help of a command with many options, by topic."""

import re
import tomllib
from importlib import resources
from typing import Any

from typer.core import TyperCommand

_OF_COMMAND = "Of this command"
_DEFAULT = re.compile(r"\[default: (?:\((.*?)\)|([^];]*))(; [^]]*)?\]$", re.DOTALL)
_NO_NEWS = ("False", "", "0", "0.0", "-1", "none")


class PanelCommand(TyperCommand):
    """A command whose help lists the options of every day first, then the others by topic."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel that has options of the command."""
        text = resources.files(__package__).joinpath("panels.toml").read_text(encoding="utf-8")
        panels = {title: panel["options"] for title, panel in tomllib.loads(text).items()}
        help_texts: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                help_texts[str(parameter.name)] = (record[0], _plain_default(record[1]))
        arguments = [each.name for each in self.params if each.param_type_name == "argument"]
        listed = {name for names in (arguments, *panels.values()) for name in names}
        unlisted = _OF_COMMAND, [name for name in help_texts if name not in listed]
        for title, names in (("Arguments", arguments), unlisted, *panels.items()):
            if options := [help_texts[name] for name in names if name in help_texts]:
                with formatter.section(title):
                    formatter.write_dl(options)


def _plain_default(text: str) -> str:
    """Remove the parentheses of a default, and defaults that say nothing."""
    match = _DEFAULT.search(text)
    if match is None:
        return text
    default, limits = match[1] if match[1] is not None else match[2], match[3] or ""
    facts = [f"default: {default}"] * (default not in _NO_NEWS) + [limits[2:]] * bool(limits)
    return (text[: match.start()] + (f"[{'; '.join(facts)}]" if facts else "")).rstrip()

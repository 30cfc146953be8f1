"""Command line: `planner ask QUESTION`, a command for every question.

The options of a question are those of its signature beside those of `plan`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer

from planner.ask.option import Parameter, parameters
from planner.ask.questions import QUESTIONS, said, summary
from planner.cli.exit_codes import FITS, NOTHING_FITS
from planner.cli.options.job_options import JobOptions
from planner.cli.options.option_groups import keyword, spread
from planner.cli.options.shared_options import AsCsv, AsJson

__all__ = ["register"]

_HELP = "Questions that take many plans: a sentence, a table, the reasons."


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_HELP)
    for name in QUESTIONS:
        group.command(name, help=said(name), short_help=summary(name))(_command(name))
    app.add_typer(group, name="ask")


def _command(name: str) -> Callable[..., int]:
    """The command of a question."""
    asked = parameters(QUESTIONS[name])

    def command(
        *,
        options: JobOptions,
        as_json: AsJson = False,
        as_csv: AsCsv = False,
        **own: Any,
    ) -> int:
        usual = {one.name: one.default for one in asked if one.name == "nodes"}
        job, _ = options.load(**({} if options.states_nodes else usual))
        question = getattr(job.ask, name.replace("-", "_"))
        answer = question(
            **{one.name: _value(one, own[one.name]) for one in asked if one.name != "nodes"}
        )
        if as_json:
            print(answer.to_json())
        elif as_csv:
            print(answer.to_csv(), end="")
        else:
            from planner.show.report import console, show_answer

            show_answer(answer, console())
        return FITS if answer.found else NOTHING_FITS

    own = [_option(one) for one in asked if one.name != "nodes"]
    plain = inspect.signature(command, eval_str=True).parameters.values()
    first = [one for one in plain if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([first[0], *own, *first[1:]])  # type: ignore[attr-defined]
    spread_out = spread(command)
    return spread_out if any(one.name == "nodes" for one in asked) else _without_nodes(spread_out)


def _option(one: Parameter) -> inspect.Parameter:
    """An option of a question as typer reads it."""
    settings: dict[str, Any] = {"help": one.option.help}
    if one.option.metavar:
        settings["metavar"] = one.option.metavar
    if one.kind in (int, float):
        settings |= {"min": one.option.least, "max": one.option.most}
    kind: Any = list[str] if one.repeats else one.kind
    needed = one.default is inspect.Parameter.empty
    default = None if one.repeats or needed else one.default
    flag = f"--{one.name.replace('_', '-')}"
    if one.kind is bool:
        return keyword(one.name, Annotated[bool, typer.Option(flag, **settings)], default)
    if needed:
        option = Annotated[kind, typer.Option(flag, **settings)]
        return keyword(one.name, option, inspect.Parameter.empty)
    return keyword(one.name, Annotated[kind | None, typer.Option(flag, **settings)], default)


def _value(one: Parameter, given: Any) -> Any:
    return tuple(given or ()) if one.repeats else given


def _without_nodes(command: Callable[..., int]) -> Callable[..., int]:
    """The command without the option --nodes, of a question that varies them itself."""
    signature = cast(Any, command).__signature__
    known = {name: one for name, one in signature.parameters.items() if name != "nodes"}

    @functools.wraps(command)
    def called(**values: Any) -> int:
        return command(nodes=None, **values)

    called.__signature__ = signature.replace(parameters=list(known.values()))  # type: ignore[attr-defined]
    called.__annotations__ = {name: one.annotation for name, one in known.items()}
    return called

"""Command line: `planner ask QUESTION`, a command for every question."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from planner.ask import GROUPS, QUESTIONS
from planner.ask.option import Parameter, parameters
from planner.ask.question import Question
from planner.cli.options.help_panels import PanelCommand
from planner.cli.options.job_options import JobOptions
from planner.cli.options.option_groups import keyword, spread
from planner.cli.options.option_styles import AsCsv, AsJson
from planner.cli.waiting import waiting
from planner.errors import FITS, NOTHING_FITS


class QuestionGroup(TyperGroup):
    """The group of all questions."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each subject."""
        for title, questions in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, each.summary) for name, each in questions.items()])


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    summary = "Answer a question with many plans: a sentence, a table, the reasons."
    settings: Any = {"no_args_is_help": True, "rich_markup_mode": None, "help": summary}
    group = typer.Typer(cls=QuestionGroup, **settings)
    for name, question in QUESTIONS.items():
        add_command = group.command(
            name, cls=PanelCommand, help=question.description, short_help=question.summary
        )
        add_command(_command(question))
    app.add_typer(group, name="ask")


def _command(question: Question[...]) -> Callable[..., int]:
    options = {each.name: each for each in parameters(question)}
    nodes = options.pop("nodes", None)

    def command(
        *, options_of_job: JobOptions, as_json: AsJson = False, as_csv: AsCsv = False, **values: Any
    ) -> int:
        usual = {} if nodes is None or options_of_job.states_nodes else {"nodes": nodes.default}
        job, _ = options_of_job.load(**usual)
        repeated = {name: tuple(values[name] or ()) for name, e in options.items() if e.repeats}
        with waiting("planning jobs"):
            chosen = {name: values[name] for name in options} | repeated
            answer = question.of_job(job, **chosen)
        if as_json:
            print(answer.to_json())
        elif as_csv:
            print(answer.to_csv(), end="")
        else:
            from planner.show.job_texts import address
            from planner.show.terminal import console, print_link, show

            show(answer, console())
            described = options_of_job.description(**usual)
            changed = {f"ask_{name}": v for name, v in chosen.items() if v not in (None, ())}
            link = address(described, "ask", question=answer.question, answer=1, **changed)
            print_link(link, console())
        return FITS if answer.found else NOTHING_FITS

    job_options, *outputs, _ = inspect.signature(command, eval_str=True).parameters.values()
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [job_options, *map(_option, options.values()), *outputs]
    )
    # a question without it varies the nodes itself
    return spread(command, left_out=() if nodes else ("nodes",))


def _option(parameter: Parameter) -> inspect.Parameter:
    name, bounds = parameter.name, parameter.bounds
    settings: dict[str, Any] = {"help": bounds.help}
    if bounds.metavar:
        settings["metavar"] = bounds.metavar
    if parameter.kind in (int, float):
        settings |= {"min": bounds.least, "max": bounds.most}
    kind: Any = list[str] if parameter.repeats else parameter.kind
    required = parameter.default is inspect.Parameter.empty
    option = typer.Option(f"--{name.replace('_', '-')}", **settings)
    if required:
        return keyword(name, Annotated[kind, option], inspect.Parameter.empty)
    if kind is not bool:
        kind = kind | None
    return keyword(name, Annotated[kind, option], None if parameter.repeats else parameter.default)

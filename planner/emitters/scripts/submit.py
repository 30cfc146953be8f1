"""Submit: the script that hands the job over, as often as its steps need."""

from __future__ import annotations

from planner.emitters.batch_job import FINISHED, BatchJob
from planner.emitters.queue import Slot
from planner.emitters.recipe import Recipe
from planner.emitters.scripts.kubernetes import CLUSTER, submit_text
from planner.emitters.scripts.system import BatchSystem, Submission

__all__ = ["handed_on", "submit_script"]


def handed_on(recipe: Recipe) -> list[str]:
    """Variables of the user that the job reads."""
    return [*recipe.variables, *(["PROGRAM"] if recipe.default_program else [])]


def submit_script(job: BatchJob, recipe: Recipe, slot: Slot, system: BatchSystem) -> str:
    """`submit.sh`: it stops where something is missing that only the user can give."""
    launch = job.machine.scheduler.launch
    account = launch is not None and launch.account
    lines = [
        "#!/bin/bash",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"if [[ -e {FINISHED} ]]; then",
        f'    echo "all steps are done; remove {FINISHED} to train on" >&2',
        "    exit 2",
        "fi",
    ]
    wanted = {"PROJECT": "the account that pays for the job"} if account else {}
    if system.submission is None:
        wanted |= CLUSTER
    lines += [
        f': "${{{name}:?set it to {meaning}}}"'
        for name, meaning in {**wanted, **recipe.variables}.items()
    ]
    names = handed_on(recipe)
    if recipe.default_program:
        lines.append(f'PROGRAM="${{PROGRAM:-{recipe.default_program}}}"')
    if names:
        lines.append(f"export {' '.join(names)}")
    if system.submission is None:
        lines += submit_text(names)
    else:
        command = _command(system, system.submission, names, account)
        lines += _chain(system.submission, command, slot.chained)
    return "\n".join(lines) + "\n"


def _command(system: BatchSystem, submission: Submission, names: list[str], account: bool) -> str:
    """One submission; an account is named where it is given, though the site may not ask."""
    option = submission.account
    paid = f'{option}"${{PROJECT}}"' if account else f'${{PROJECT:+{option}"${{PROJECT}}"}}'
    words = [submission.command, paid, system.pass_variables(names), '"${after[@]}"', "job.sh"]
    return " ".join(word for word in words if word)


def _chain(submission: Submission, command: str, jobs: int) -> list[str]:
    """Each job starts after the one before, whatever became of that, and goes on from it."""
    cut = [f"    {submission.number}"] if submission.number else []
    return [
        f'JOBS="${{JOBS:-{jobs}}}"',
        "after=()",
        "for ((count = 1; count <= JOBS; count++)); do",
        f'    id="$({command})"',
        *cut,
        '    echo "job ${count} of ${JOBS}: ${id}"',
        f"    after=({submission.after})",
        "done",
    ]

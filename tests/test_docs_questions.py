"""Questions page: every command and call of docs/howto/questions.md gives the output shown."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.ask import QUESTIONS, Answer
from planner.ask.option import parameters
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.verdicts.layout_words import layout_words
from tests.markdown import read
from tests.questions import PAGE, call, command, parts, printed, rewritten, shown, written

PARTS = parts(read(PAGE))
"""Questions of the page, by heading."""
_JOB = ("workload", "frameworks", "tolerance", "experience")
_AGAIN = "python -m tests.questions writes the page again"


def asked(question: Any, args: Any, given: dict[str, Any]) -> Any:
    """Return the job and the options of a call of a question."""
    job = {name: given[name] for name in _JOB if name in given}
    own = {one.name: given.get(one.name, one.default) for one in parameters(question)}
    return JobSpec(*args, **job), own


def _same(part: str) -> None:
    """Check that the writer leaves a part unchanged, and that it restores altered numbers."""
    out, place = printed(part), shown(part)
    assert rewritten(part, out) == part, _AGAIN
    others = re.sub(r"\d(?= ([GM]iB|s|%)[ ,;)])", "?", part[place])
    assert rewritten(part[: place.start] + others + part[place.stop :], out) == part


def test_the_questions_of_the_field_are_there() -> None:
    assert len(PARTS) >= 15
    assert len(PARTS) == read(PAGE).count("\n## ")
    told = {command(part)[1] for part in PARTS.values() if command(part)[0] == "ask"}
    named = set(re.findall(r"`planner ask ([\w-]+)`", read(PAGE)))
    assert told | named >= set(QUESTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("heading", [h for h, part in PARTS.items() if command(part)[0] == "ask"])
def test_an_answer_is_as_shown(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate the call; check that the command has the same job and options, and its output."""
    part = PARTS[heading]
    words = command(part)
    real = QUESTIONS[words[1]]
    calls: list[tuple[Any, dict[str, Any]]] = []

    def heard(*args: Any, **given: Any) -> Any:
        calls.append((args, given))

    namespace = SimpleNamespace(ask=SimpleNamespace(), Workload=planner.Workload)
    setattr(namespace.ask, words[1].replace("-", "_"), heard)
    eval(call(part), {"planner": namespace})
    [(args, given)] = calls

    class Heard:
        """Stand-in for the question that compares the command's arguments with the call's."""

        __signature__ = inspect.signature(real)
        __name__, summary, description = real.__name__, real.summary, real.description

        @staticmethod
        def of_job(job: JobSpec, **options: Any) -> Answer:
            job_of_call, options_of_call = asked(real, args, given)
            for field in ("model", "machine", "workload", "frameworks", "tolerance"):
                assert getattr(job, field) == getattr(job_of_call, field), field
            nodes = {"nodes": job.nodes} if "nodes" in options_of_call else {}
            assert {**nodes, **options} == options_of_call
            return real(*args, **given)

    monkeypatch.setitem(QUESTIONS, words[1], Heard)
    _same(part)


@pytest.mark.slow
@pytest.mark.parametrize("heading", [h for h, part in PARTS.items() if command(part)[0] != "ask"])
def test_other_commands_print_what_is_shown(heading: str) -> None:
    part = PARTS[heading]
    _same(part)
    if call(part):
        plan = eval(call(part), {"planner": planner})
        assert layout_words(plan.recommended.layout, brief=True) in printed(part)


# --- the writer -----------------------------------------------------------------------------------

OUTPUT = """\
It fits from 13 nodes on: dp2 tp4 full recompute [fsdp2], 5 s.

 nodes  layout                         step  reason
     1  dp4 zero3 full recompute      5 min  offload all-nvme,
        offload all-nvme [deepspeed]         backward 3 %
    10  dp8 [ddp]                      12 s  backward 5 %
    13  dp2 tp4 full recompute          5 s  backward 7 %
        [fsdp2]
    14  dp2 tp4 [fsdp2]                 4 s  backward 8 %

- A note.
"""
SHOWN = """\
Why 14 nodes are shown is prose.

    planner ask nodes gpt2 -m polaris

    It fits from 14 nodes on: dp7 tp2 [fsdp2], 6 s.

     nodes  layout                         step ...
         1  dp4 zero3 full recompute      9 min ...
            offload all-nvme [deepspeed] ...
        14  dp7 tp2 [fsdp2]                 6 s ...

```python
planner.ask.nodes("gpt2", "polaris")
```
"""


def test_rows_and_columns_that_were_shown_are_written_again() -> None:
    """The row named by the old sentence is replaced by the one that the new sentence names."""
    assert rewritten(SHOWN, OUTPUT) == SHOWN.replace(
        "from 14 nodes on: dp7 tp2 [fsdp2], 6 s",
        "from 13 nodes on: dp2 tp4 full recompute [fsdp2], 5 s",
    ).replace("9 min", "5 min").replace(
        "    14  dp7 tp2 [fsdp2]                 6 s ...",
        "    13  dp2 tp4 full recompute          5 s ...\n            [fsdp2] ...",
    )


def test_a_row_that_is_gone_is_the_nearest_one() -> None:
    gone = SHOWN.replace("        14  dp7 tp2 [fsdp2]  ", "        11  dp1 [fsdp2]      ")
    assert "        10  dp8 [ddp]                      12 s ...\n" in rewritten(gone, OUTPUT)


def test_rows_between_whole_ones_are_marked() -> None:
    whole = SHOWN.replace(" ...", "")
    lines = rewritten(whole, OUTPUT).splitlines()
    assert lines.count("    ...") == 2  # for row 10 between, and row 14 below
    assert "     13  dp2 tp4 full recompute          5 s  backward 7 %".strip() in [
        line.strip() for line in lines
    ]


def test_what_stands_under_a_row_goes_with_it() -> None:
    """Covers a terminal too narrow for all columns, with wrapped titles."""
    stacked = """\
It fits from 13 nodes on: dp2 tp4 [fsdp2], 5 s.

                  node-
 nodes       step hours
     1      5 min     4
        dp4 zero3 [deepspeed]; backward 3 %
    13        5 s     5
        dp2 tp4 [fsdp2]; backward 7 %
    14        4 s     6
        dp8 [fsdp2]; backward 8 %
"""
    head, table = SHOWN.split("     nodes")[0], stacked.split("\n\n")[1].splitlines()
    old = head + "\n".join(f"    {line}" for line in [*table[:2], *table[4:6]]) + "\n"
    new = head.replace("14 nodes on: dp7 tp2 [fsdp2], 6 s", "13 nodes on: dp2 tp4 [fsdp2], 5 s")
    kept = [*table[:2], "...", *table[4:6], "..."]
    assert (
        rewritten(old.replace("  5 s", "  9 s"), stacked)
        == new + "\n".join(f"    {line}" for line in kept) + "\n"
    )


def test_a_row_with_a_name_that_is_gone_is_an_error() -> None:
    named = OUTPUT.replace("    13  dp2", " fp16  dp2")
    with pytest.raises(ValueError, match=r"the row 'fp8' is not printed any more; show another"):
        rewritten(SHOWN.replace("        14  dp7", "       fp8  dp7"), named)


def test_a_column_that_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"there is no column 'step' any more; cut the table else"):
        rewritten(SHOWN, OUTPUT.replace("step", "pace"))


def test_a_page_keeps_its_prose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.questions.printed", lambda part: OUTPUT)
    page = f"# Title\n\nProse.\n\n## One\n{SHOWN}\n## Two\n{SHOWN}"
    once = written(page)
    assert (
        once == f"# Title\n\nProse.\n\n## One\n{(part := rewritten(SHOWN, OUTPUT))}\n## Two\n{part}"
    )
    assert written(once) == once

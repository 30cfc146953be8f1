"""docs/howto/sweeps.md says what a sweep takes and gives."""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from planner.sweeps import dry_run
from planner.sweeps.columns import columns
from planner.sweeps.definition import SweepPart
from tests.markdown import read, table
from tests.sweeps.samples import done

TEXT = read("sweeps.md")
EXAMPLES = [
    textwrap.dedent(block)
    for block in re.findall(r"(?:^    .*\n|^\n)+", TEXT, re.MULTILINE)
    if "machines = " in block
]
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_fields_are_those_of_a_sweep() -> None:
    said = [n for row in table("sweeps.md", "What is asked") for n in re.findall(r"`(\w+)`", row["field"])]  # fmt: skip # noqa: E501
    assert sorted(said) == sorted([*SweepPart.model_fields, "rows"])


def test_the_examples_ask_as_many_questions_as_they_say() -> None:
    numbers = [dry_run(**tomllib.loads(text))[0].num_stated for text in EXAMPLES]
    assert numbers == [96, 3]
    assert "= 96 plans" in EXAMPLES[0]


def test_every_column_is_said() -> None:
    said = " ".join(row["columns"] for row in table("sweeps.md", "The table"))
    names = set(re.findall(r"`(\w+)`", said))
    parts = re.compile(r"(fastest|time|memory|host)_\w+")
    for kind in ("plan", "estimate"):
        found = columns(kind, ("sequence_length", "global_batch", "precision", "optimizer"))
        order = list(found)
        layout = order[order.index("dp") : order.index("split") + 1]
        left = {name for name in found if not parts.fullmatch(name)} - set(layout)
        assert left <= names, kind


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    first, second = PYTHON
    exec(first.replace('into="', 'backend="sequential", into="'), {})
    exec(second, {})
    (tmp_path / "SWEEP.toml").write_text(EXAMPLES[0])
    shown = done("SWEEP.toml", "--dry-run")
    assert shown.stdout.startswith("96 questions: a plan each.")

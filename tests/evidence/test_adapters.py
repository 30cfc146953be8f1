"""Adapters of single sources: what they write into the columns of a table of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.evidence.runs.run import Run
from tests import ROOT
from tests.evidence.tables import narayanan_rows, row, write


@pytest.fixture(autouse=True)
def _adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def _of_table_1(**cells: object) -> list[dict[str, object]]:
    source = {"source": "Narayanan et al. 2021", "source_ref": "Table 1", "micro_batch": ""}
    return [{**cells, **item, **source} for item in narayanan_rows()]


def test_the_published_script_fills_micro_batch_and_virtual_stages(tmp_path: Path) -> None:
    from narayanan import runs_with_schedules

    own = row(row_id="own", source_ref="", micro_batch="", model="GPT 145.6B")
    runs = runs_with_schedules(write(tmp_path / "n.csv", [*_of_table_1(), own]))
    found = [run for run in runs if isinstance(run, Run)]
    assert len(found) == len(runs)
    # run_table_1.sh of the paper's repository
    assert [run.layout.micro_batch for run in found[:5]] == [16, 16, 4, 2, 1]
    assert [run.layout.vpp for run in found[:5]] == [1, 1, 1, 2, 1]
    assert found[3].layout.schedule == "interleaved-1f1b"
    assert found[3].assumed[:2] == (
        "micro_batch missing: 2 as in the published script",
        "vpp missing: 2 as in the published script",
    )
    # the same name from elsewhere means another run
    assert not any("published script" in sentence for sentence in found[-1].assumed)

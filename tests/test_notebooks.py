"""Notebooks of the documentation: each runs from first to last cell without network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

nbclient = pytest.importorskip("nbclient", reason="no nbclient: pip install '.[test]'")
nbformat = pytest.importorskip("nbformat", reason="no nbformat: pip install '.[test]'")
pytest.importorskip("ipykernel", reason="no ipykernel: pip install '.[test]'")

pytestmark = pytest.mark.alone  # every notebook runs in its own process

_LIMIT_S = 600
_FOLDER = ROOT / "docs" / "notebooks"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that runs a notebook and returns its cells' outputs, by type."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "1"))

    def ran(name: str) -> list[dict[str, str]]:
        notebook = nbformat.read(_FOLDER / f"{name}.ipynb", as_version=4)
        client = nbclient.NotebookClient(notebook, timeout=_LIMIT_S, kernel_name="python3")
        client.execute(cwd=str(tmp_path))
        return [_shown(cell) for cell in notebook.cells if cell.cell_type == "code"]

    return ran


def _shown(cell: Any) -> dict[str, str]:
    """Return a cell's outputs by type; assert that it printed no error."""
    found: dict[str, str] = {}
    for output in cell.outputs:
        if output.output_type == "stream":
            assert output.name == "stdout", output.text
            found["printed"] = found.get("printed", "") + output.text
        else:
            found |= {kind: str(data) for kind, data in output.data.items()}
    return found


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_without_output(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)


def test_the_tour_shows_plans_frames_and_figures(run: Any) -> None:
    plan, ranking, fastest, strategies, steps, bars, mine, both, machine, gain, files = run("tour")
    assert "Fits: llama-3-8b on 4 nodes of polaris" in plan["text/html"]
    assert "step_time_s" in ranking["text/html"]
    assert "megatron-lm" in fastest["text/plain"]
    assert "ZeRO-3" in strategies["text/html"]
    for figure in (steps, bars, both):
        assert "'alt'" in figure["application/vnd.plotly.v1+json"]
    assert "[fsdp2]" in mine["text/html"]
    assert "set by the user" in machine["text/html"]
    assert float(gain["text/plain"]) >= 1
    assert "job.sh" in files["printed"]


def test_the_sweep_is_read_and_plotted(run: Any) -> None:
    _, swept, plans, scaling, shares, refused, best, heat, fastest = run("sweep")
    assert "24 questions: 24 rows, 24 fit, 0 refused." in swept["text/html"]
    assert "step_time_s" in plans["text/html"]
    # two machines, each unchanged and with more memory
    assert scaling["application/vnd.plotly.v1+json"].count("'name': ") == 4
    assert "polaris" in shares["text/plain"]
    assert "tp * pp * cp = 3 does not divide the 16 devices" in refused["printed"]
    assert "micro_batch" in best["text/plain"]
    assert "'heatmap'" in heat["application/vnd.plotly.v1+json"]
    assert len(fastest["text/plain"].splitlines()) == 6

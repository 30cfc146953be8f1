"""Adapters of single sources: what they write into the columns of a table of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.describe.catalogue import load_framework
from planner.describe.files import read_toml
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
    from published import published_runs

    own = row(row_id="own", source_ref="", micro_batch="", model="GPT 145.6B")
    runs = published_runs(write(tmp_path / "n.csv", [*_of_table_1(), own]))
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


@pytest.mark.parametrize(
    ("release", "gpu", "model", "precision", "once", "overlaps"),
    [
        ("25.09", "H100-SXM", "deepseek-v3", "fp8", True, True),
        ("26.02", "H100-SXM", "deepseek-v3", "fp8", False, False),
        ("26.04.01", "B200", "deepseek-v3", "mxfp8", True, True),
        ("26.04.01", "GB200 NVL72", "deepseek-v3", "mxfp8", False, False),
        ("26.06.01", "GB200 NVL72", "deepseek-v3", "mxfp8", True, True),
        ("26.06.01", "GB200 NVL72", "deepseek-v3", "bf16", False, False),
        ("26.08", "GB300 NVL72", "kimi-k2", "mxfp8", False, False),
        ("2026", "GB200 NVL72", "deepseek-v3", "mxfp8", False, False),
    ],
)
def test_recipes_of_a_release_say_how_tokens_travel(
    release: str, gpu: str, model: str, precision: str, once: bool, overlaps: bool
) -> None:
    from megatron_bridge import framework_of_recipe

    row = {"year": release, "gpu": gpu, "precision": precision}
    plain = load_framework("megatron-lm")
    recipe = framework_of_recipe(plain, row, model)
    rules = recipe.communication
    assert (rules.experts_once_per_node, rules.overlap_experts) == (once, overlaps)
    # runs are estimated together by name: another exchange is another framework
    assert (recipe.name == plain.name) == (recipe == plain)


@pytest.mark.parametrize(
    ("year", "gpu", "model", "precision", "graphed"),
    [
        ("26.08", "GB300 NVL72", "deepseek-v3", "mxfp8", 1.0),
        ("26.04", "GB200 NVL72", "qwen3-235b-a22b", "bf16", 0.62),
        ("26.02", "B200", "qwen3-30b-a3b", "fp8", 0.28),
        ("26.04", "H100-SXM", "qwen3-30b-a3b", "fp8", None),
        ("26.02", "B200", "deepseek-v3", "bf16", None),
    ],
)
def test_runs_are_read_with_the_graphs_of_their_release(
    year: str, gpu: str, model: str, precision: str, graphed: float | None
) -> None:
    from megatron_bridge import framework_of_recipe

    row = {"year": year, "gpu": gpu, "precision": precision}
    plain = load_framework("megatron-lm")
    graphs = framework_of_recipe(plain, row, model).host.graphed
    assert (graphs and graphs.value) == graphed


def _recipes() -> list[dict[str, Any]]:
    return read_toml(ROOT / "benchmarks" / "megatron_bridge_jobs.toml")["jobs"]


@pytest.mark.parametrize("recipe", _recipes(), ids=lambda recipe: str(recipe["id"]))
def test_published_recipes_fit(recipe: dict[str, Any]) -> None:
    """They ran: what does not fit is an error of the estimate or of the recipe's description."""
    from advice import Job, estimate_published

    job = Job.read(recipe, ROOT)
    ran = estimate_published(job)
    assert ran is not None
    assert ran.fits
    degrees = ran.layout.dp * ran.layout.tp * ran.layout.pp * ran.layout.cp
    assert degrees == job.nodes * job.machine.node.num_devices


def test_the_recipe_of_405b_by_hand() -> None:
    """Eight layers of a stage, tp 4 and dp 4, as Megatron-Bridge's recipe of GB200 keeps them."""
    from advice import Job, estimate_published

    recipe = next(item for item in _recipes() if item["id"] == "Bridge-L405B-256GB200-26.04")
    ran = estimate_published(Job.read(recipe, ROOT))
    assert ran is not None
    # query and output, key and value of 8 heads of 128, gate, up and down; two norms on every rank
    matrices = 2 * 16384**2 + 2 * 1024 * 16384 + 3 * 16384 * 53248
    layers = 8 * (matrices / 4 + 2 * 16384)
    assert ran.memory_bytes["weights"] == pytest.approx(layers)  # 8 bits, by rows alone
    # fp32 weights and both moments of a quarter
    assert ran.memory_bytes["optimizer_states"] == pytest.approx(12 * layers / 4)
    assert 2 * layers < ran.memory_bytes["gradients"] < 2.3 * layers  # and stand-ins of each shape


def test_quantiles_hold_the_next_run_as_often_as_they_say() -> None:
    from conformal import quantiles

    # split conformal: with n = 20, k = floor(21 * 0.1 / 2) = 1: the extremes themselves
    assert quantiles([float(n) for n in range(1, 20)]) == (1.0, 19.0)
    assert quantiles([float(n) for n in range(1, 21)]) == (1.0, 20.0)
    assert quantiles([float(n) for n in range(1, 41)]) == (2.0, 39.0)
    # eighteen runs are too few for 90 %
    assert quantiles([float(n) for n in range(1, 19)]) == pytest.approx((1 / 1.2, 18 * 1.2))

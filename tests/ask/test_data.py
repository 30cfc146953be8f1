"""What steps wait for their data, as a question, beside the model asked directly."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from planner import Workload, ask
from planner.describe.catalogue import load_dataset
from planner.describe.training.training_run import Loader
from planner.errors import LayoutError
from planner.training.data import input_time

UNET3D = Workload(sequence_length=1024, global_batch=28 * 64)
STEP_S = 0.636
OWN: dict[str, Any] = {"dataset": "unet3d", "step_seconds": 1.0, "workload": UNET3D}


def on_polaris(**own: object) -> ask.Answer:
    """UNet3D's data on 64 nodes of Polaris, with a step that is stated."""
    job = {"nodes": 64, "dataset": "unet3d", "step_seconds": STEP_S, "workload": UNET3D, **own}
    return ask.data("gpt2", "polaris", **job)  # type: ignore[arg-type]


def test_a_row_is_the_model_asked_directly() -> None:
    polaris, dataset = planner.load_machine("polaris"), load_dataset("unet3d")
    rows = on_polaris().rows
    assert {row["staging"] for row in rows} == {"none", "local-disk", "memory"}
    for row in rows:
        nodes, loader = row["nodes"], Loader(staging=row["staging"])
        found = input_time(polaris, nodes, 4, 28 * nodes, STEP_S, dataset, loader)
        for name in ("delivery_s", "exposed_s", "first_epoch_exposed_s", "staging_s"):
            column = name.replace("exposed", "waits")
            assert row[column] == pytest.approx(float(getattr(found, name)))
        assert row["utilisation"] == pytest.approx(STEP_S / (STEP_S + row["waits_s"]))
        assert row["reason"].startswith(str(found.bound))


def test_the_shared_file_system_is_outgrown_and_the_disks_are_not() -> None:
    rows = on_polaris().rows
    shared = [row["utilisation"] for row in rows if row["staging"] == "none"]
    disks = [row["utilisation"] for row in rows if row["staging"] == "local-disk"]
    assert shared == sorted(shared, reverse=True)
    assert shared[-1] < 0.2 < 0.99 < min(disks)
    few, many = on_polaris(), on_polaris(nodes=512, workload=UNET3D.replaced(global_batch=14336))
    assert "times as fast" in few.verdict
    assert "makes it 99.9 %" in many.verdict
    assert any(note.startswith("Helps: copying the dataset") for note in many.notes)


def test_nothing_that_does_not_help_is_advised() -> None:
    for answer in (on_polaris(), on_polaris(workers=1), on_polaris(nodes=512)):
        for note in answer.notes:
            if note.startswith("Helps"):
                after, before = note.split("utilisation ")[1].split(" % instead of ")
                assert float(after) > float(before.split(" %")[0])


@pytest.mark.slow
def test_the_step_is_that_of_the_plan() -> None:
    job = Workload(sequence_length=1024, global_batch=64)
    plan = planner.plan("gpt2", "polaris", nodes=2, workload=job)
    assert plan.recommended is not None
    row = ask.data("gpt2", "polaris", nodes=2, workload=job, most_nodes=2).rows[-1]
    assert row["step_time_s"] == plan.recommended.step_time_s


def test_a_machine_without_disks_has_no_rows_of_them() -> None:
    answer = ask.data("gpt2", "aurora", most_nodes=2, **OWN)
    assert {row["staging"] for row in answer.rows} == {"none", "memory"}
    assert "flare" in answer.verdict


def test_what_is_unknown_is_said_with_its_remedy() -> None:
    answer = ask.data("gpt2", "vsc-5", most_nodes=1, **OWN)
    [said] = [note for note in answer.notes if "states no rate" in note]
    setting = said.rpartition("such as ")[2].rstrip(").")
    stated = planner.load_machine("vsc-5", (setting,))
    again = ask.data("gpt2", stated, most_nodes=1, **OWN)
    assert "file system, " in said
    assert not any("states no rate: file system" in note for note in again.notes)


def test_bounds_of_options_are_kept() -> None:
    with pytest.raises(LayoutError, match="step_seconds = -1 must be more than 0"):
        on_polaris(step_seconds=-1)
    with pytest.raises(LayoutError, match="staging = 'disk' is not known; use none"):
        on_polaris(staging="disk")
    with pytest.raises(LayoutError, match="561"):
        on_polaris(nodes=561)

"""What steps wait for their data, as a question, beside the model asked directly."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from planner import Workload, ask
from planner.describe.catalogue import load_dataset
from planner.describe.training.training_run import Dataset, Loader
from planner.errors import LayoutError
from planner.training.data import input_time

UNET3D = Workload(sequence_length=1024, global_batch=28 * 64)
STEP_S = 0.636
VOLUMES: dict[str, Any] = {"dataset": "unet3d", "dataset_samples": 16_000.0}
OWN: dict[str, Any] = {"dataset": "unet3d", "step_seconds": 1.0, "workload": UNET3D}


def on_polaris(**own: object) -> ask.Answer:
    """Sixteen thousand volumes for 64 nodes of Polaris, with a step that is stated."""
    job = {"nodes": 64, "step_seconds": STEP_S, "workload": UNET3D, **VOLUMES, **own}
    return ask.data("gpt2", "polaris", **job)  # type: ignore[arg-type]


def test_a_row_is_the_model_asked_directly() -> None:
    polaris, dataset = planner.load_machine("polaris"), of_samples(16_000)
    rows = on_polaris().rows
    assert {row["staging"] for row in rows} == {"none", "local-disk", "memory", "memory, sharded"}
    for row in rows:
        staging, _, sharded = row["staging"].partition(", ")
        nodes, loader = row["nodes"], Loader(staging=staging, sharded=bool(sharded))
        found = input_time(polaris, nodes, 4, 28 * nodes, STEP_S, dataset, loader)
        for name in ("delivery_s", "exposed_s", "first_epoch_exposed_s", "staging_s"):
            column = name.replace("exposed", "waits")
            assert row[column] == pytest.approx(float(getattr(found, name)))
        assert row["utilisation"] == pytest.approx(STEP_S / (STEP_S + row["waits_s"]))
        assert row["reason"].startswith(str(found.bound))


def of_samples(count: float) -> Dataset:
    """UNet3D's volumes, as many as stated."""
    samples = {"value": count, "kind": "assumed", "source": "test"}
    return load_dataset("unet3d").replaced(num_samples=samples)


def test_a_dataset_that_a_step_exceeds_is_grown_as_in_mlperf_storage() -> None:
    answer = on_polaris(dataset_samples=None)
    for row in answer.rows:
        # 168 volumes are enough for 28 a node on up to 6 nodes; then 5 x 512 GiB of each node
        own = 168 * 146600628 if row["nodes"] <= 6 else 5 * row["nodes"] * 2**39
        assert row["dataset_bytes"] == pytest.approx(own)
    assert "(more than the 22.94 GiB of the dataset)" in answer.verdict
    assert any(note.startswith("From 8 nodes on a step takes more") for note in answer.notes)
    assert not any("takes more" in note for note in on_polaris().notes)
    # what is stated is read: a step may then read a volume several times
    few = on_polaris(dataset_samples=168.0)
    assert {row["dataset_bytes"] for row in few.rows} == {168 * 146600628.0}
    assert "(more than the 22.94 GiB of the dataset)" in few.verdict


def test_page_caches_fill_over_epochs_and_shards_at_once() -> None:
    answer = on_polaris(nodes=256, workload=UNET3D.replaced(global_batch=28 * 256))
    rows = {row["staging"]: row for row in answer.rows if row["nodes"] == 256}
    shuffled, own = rows["memory"], rows["memory, sharded"]
    # 16,000 volumes are 2.3 TB, of which 3/4 of 512 GiB hold 17.6 %
    assert shuffled["kept"] == pytest.approx(1 / 256)
    assert (1 - 1 / 256) ** shuffled["fill_epochs"] == pytest.approx(1 - 0.9 * 0.176, rel=0.01)
    assert own["kept"] == 1
    assert shuffled["utilisation"] < shuffled["full_utilisation"] < own["utilisation"]
    longer = on_polaris(
        nodes=256, workload=UNET3D.replaced(global_batch=28 * 256), dataset_epochs=90
    )
    assert (
        next(r for r in longer.rows if r["nodes"] == 256 and r["staging"] == "memory")["kept"] > 0.1
    )


def test_the_shared_file_system_is_outgrown_and_the_disks_are_not() -> None:
    rows = on_polaris().rows
    shared = [row["utilisation"] for row in rows if row["staging"] == "none"]
    disks = [row["utilisation"] for row in rows if row["staging"] == "local-disk"]
    assert shared == sorted(shared, reverse=True)
    assert shared[-1] < 0.2 < 0.99 < min(disks)
    few, many = on_polaris(), on_polaris(nodes=512, workload=UNET3D.replaced(global_batch=14336))
    (row,) = [r for r in few.rows if (r["nodes"], r["staging"]) == (64, "none")]
    assert f"reading is {STEP_S / row['delivery_s']:.1f} times as fast" in few.verdict
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
    assert {row["staging"] for row in answer.rows} == {"none", "memory", "memory, sharded"}
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

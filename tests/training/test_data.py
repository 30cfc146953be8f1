"""The input pipeline: its stages by hand, what is kept, what is hidden, and its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.describe.catalogue import load_dataset, load_machine, names
from planner.describe.training.training_run import Dataset, Loader
from planner.errors import DescriptionError, UnknownNameError
from planner.training.data import changes, input_time
from planner.training.data.input import (
    cached_fraction,
    constants,
    node_read_rate,
    reread_fraction,
    staging_time,
)

POLARIS = load_machine("polaris")
UNET3D = load_dataset("unet3d")
STEP_S = 0.636
"""Of UNet3D with a batch of 7 on an A100: mlcommons/storage @caa90c9c, unet3d_a100.yaml."""


def of_size(dataset: Dataset, samples: float) -> Dataset:
    """The dataset with another number of samples."""
    stated = {"value": samples, "kind": "assumed", "source": "test"}
    return dataset.replaced(num_samples=stated)


def unet3d(nodes: Any, **loader: Any) -> Any:
    """UNet3D on Polaris: 4 ranks a node, 7 volumes each."""
    batch = 28 * np.asarray(nodes)
    return input_time(POLARIS, nodes, 4, batch, STEP_S, UNET3D, Loader(**loader))


def test_stages_are_what_one_works_out_by_hand() -> None:
    found = unet3d(100)
    read = 100 * 28 * 146600628
    assert found.stages["file system"] == pytest.approx(read / 650e9)
    assert found.stages["interfaces"] == pytest.approx(28 * 146600628 / 14.7e9)
    assert found.stages["metadata"] == pytest.approx(100 * 28 / 62e3)
    # one target of 650 / 160 GB/s serves a volume, 16 workers of a node read 28 of them
    one = constants().open_s.value + 146600628 / (650e9 / 160)
    assert found.stages["workers"] == pytest.approx(28 * one / 16)
    assert found.delivery_s == pytest.approx(max(found.stages.values()))


def test_unet3d_on_polaris_waits_for_lustre_at_scale_and_not_for_its_disks() -> None:
    nodes = np.array([1, 8, 64, 128, 256, 512])
    lustre, disks = unet3d(nodes), unet3d(nodes, staging="local-disk")
    assert (lustre.utilisation[:3] > 0.99).all()
    assert (np.diff(lustre.utilisation[2:]) < 0).all()
    assert list(lustre.bound[2:]) == ["file system"] * 4
    # 512 nodes ask for 512 x 28 x 146.6 MB / 0.636 s = 3.3 TB/s of 650 GB/s
    assert lustre.utilisation[-1] == pytest.approx(
        650e9 * STEP_S / (512 * 28 * 146600628), rel=0.01
    )
    # the disks of a node give 6.6 GB/s where it asks for 6.45
    assert (disks.utilisation > 0.99).all()
    assert (disks.bound == "local disk").all()
    assert (disks.staging_s > 0).all()


def test_bert_does_not_wait_at_any_scale() -> None:
    nodes = np.array([1, 64, 512])
    bert, step_s = load_dataset("bert"), 0.968  # batch 48, dlio_benchmark bert_v100.yaml
    found = input_time(POLARIS, nodes, 4, nodes * 4 * 48, step_s, bert, Loader())
    assert (found.utilisation > 0.99).all()


def test_tokens_are_cheap_until_they_are_made_or_lie_in_small_files() -> None:
    """A million tokens in 0.3 s on a node: 256 sequences of 4096."""
    job = POLARIS, 1, 4, 256, 0.3
    tokens = load_dataset("openwebtext").of_sequences(4096)
    text = load_dataset("openwebtext-text").of_sequences(4096)
    small = tokens.replaced(samples_per_file={"value": 1, "kind": "assumed", "source": "test"})
    cheap = input_time(*job, tokens, Loader())
    made = input_time(*job, text, Loader())
    assert cheap.utilisation > 0.99
    assert made.delivery_s > 10 * cheap.delivery_s
    assert made.bound == "workers"
    many = 512
    spread = input_time(POLARIS, many, 4, 256 * many, 0.3, small, Loader())
    packed = input_time(POLARIS, many, 4, 256 * many, 0.3, tokens, Loader())
    assert spread.bound == "metadata"
    # 131,072 files of 62,000 a second
    assert spread.exposed_s == pytest.approx(256 * many / 62e3 - 0.3)
    assert spread.utilisation < 0.2 < 0.99 < packed.utilisation


def test_prefetch_and_workers_hide_and_none_does_not() -> None:
    hidden, bare, alone = unet3d(8), unet3d(8, prefetch=0), unet3d(8, workers=0)
    hand_over = constants().hand_over_s.value
    assert hidden.exposed_s == pytest.approx(hand_over)
    assert bare.exposed_s == pytest.approx(bare.delivery_s + hand_over)
    assert alone.exposed_s == pytest.approx(sum(float(each) for each in alone.stages.values()))
    assert hidden.utilisation > bare.utilisation > alone.utilisation


def test_utilisation_is_computing_over_all_time() -> None:
    found = unet3d(256)
    assert found.exposed_s == pytest.approx(found.delivery_s - STEP_S)
    assert found.utilisation == pytest.approx(STEP_S / (STEP_S + found.exposed_s))


def test_memory_helps_after_the_first_epoch() -> None:
    large = of_size(UNET3D, 16_800)
    job = POLARIS, 256, 4, 256 * 28, STEP_S
    own = input_time(*job, large, Loader(staging="memory", sharded=True))
    assert own.cached == 1
    assert max(own.first_epoch_stages, key=own.first_epoch_stages.__getitem__) == "file system"
    assert own.first_epoch_exposed_s > own.exposed_s
    any_part = input_time(*job, large, Loader(staging="memory"), epochs=100)
    second = input_time(*job, large, Loader(staging="memory"), epochs=2)
    assert second.cached == pytest.approx(1 / 256)
    assert second.exposed_s > any_part.exposed_s > own.exposed_s


def test_what_a_node_met_before_is_the_mean_over_the_epochs() -> None:
    for nodes in (1, 3, 64):
        for epochs in (2, 5, 90):
            each = [1 - (1 - 1 / nodes) ** e for e in range(1, epochs)]
            found = reread_fraction(np.array(float(nodes)), np.array(float(epochs)))
            assert found == pytest.approx(np.mean(each))


def test_a_disk_keeps_what_it_has_room_for() -> None:
    twice = of_size(UNET3D, 2 * 3.2e12 / 146600628)
    nodes, epochs = np.array([1.0, 4.0]), np.array(2.0)
    whole = cached_fraction(POLARIS, nodes, twice, Loader(staging="local-disk"), epochs)
    own = Loader(staging="local-disk", sharded=True)
    parts = cached_fraction(POLARIS, nodes, twice, own, epochs)
    assert whole[0] == pytest.approx([0.5, 0.5])
    assert parts[0] == pytest.approx([0.5, 1.0])
    # a quarter of 6.4 TB at the 6.6 GB/s of the disk
    rate = np.array([1e11, 1e11])
    took = staging_time(POLARIS, nodes, twice, own, rate)
    assert took == pytest.approx([3.2e12 / 6.6e9, 1.6e12 / 6.6e9])


def test_one_job_is_the_case_of_many() -> None:
    nodes = np.array([1, 16, 300])
    many = unet3d(nodes, staging="memory")
    for place, count in enumerate(nodes):
        one = unet3d(int(count), staging="memory")
        assert one.delivery_s == pytest.approx(many.delivery_s[place])
        assert one.exposed_s == pytest.approx(many.exposed_s[place])
        assert one.bound == many.bound[place]


def test_more_of_anything_never_takes_longer() -> None:
    worst = unet3d(256, workers=2)
    for better in (
        unet3d(256, workers=8),
        unet3d(256, workers=2, stripe_count=8),
        unet3d(256, workers=2, staging="memory"),
        unet3d(256, workers=2, staging="local-disk"),
    ):
        assert better.delivery_s <= worst.delivery_s
    rate = [node_read_rate(POLARIS, np.array(n), POLARIS.file_systems[0]) for n in (1, 40, 400)]
    assert rate == sorted(rate, reverse=True)


def test_one_file_is_read_as_fast_as_its_stripes() -> None:
    tokens = load_dataset("megatron-tokens").of_sequences(4096)
    job = POLARIS, 256, 4, 100_000, 0.01, tokens
    narrow = input_time(*job, Loader(workers=8)).stages["storage targets"]
    wide = input_time(*job, Loader(workers=8, stripe_count=16)).stages["storage targets"]
    assert narrow == pytest.approx(16 * wide)


def test_random_samples_of_a_file_cost_a_read_each() -> None:
    job = POLARIS, 1, 4, 400, 0.1, load_dataset("imagenet")
    records = input_time(*job, Loader()).stages["workers"]
    random = input_time(*job, Loader(order="random")).stages["workers"]
    assert random - records == pytest.approx(400 * constants().random_read_s.value / 16)


def test_an_unknown_rate_is_named_and_not_taken() -> None:
    vsc = load_machine("vsc-5")
    found = input_time(vsc, 4, 2, 56, STEP_S, UNET3D, Loader())
    assert found.unknown == ("file system", "storage targets", "metadata")
    assert "file system" not in found.stages
    stated = load_machine("vsc-5", ("file_systems.0.bytes_per_s=1GB/s",))
    known = input_time(stated, 4, 2, 56, STEP_S, UNET3D, Loader())
    assert known.bound == "file system"
    assert known.delivery_s == pytest.approx(56 * 146600628 / 1e9)


def test_a_machine_without_a_shared_file_system_reads_its_disks() -> None:
    dgx = load_machine("dgx-a100")
    assert dgx.file_system() is None
    found = input_time(dgx, 1, 8, 56, STEP_S, UNET3D, Loader())
    assert found.bound == "local disk"
    assert found.delivery_s == pytest.approx(56 * 146600628 / 25e9)
    cached = input_time(dgx, 1, 8, 56, STEP_S, UNET3D, Loader(staging="memory"))
    assert max(cached.first_epoch_stages, key=cached.first_epoch_stages.__getitem__) == "local disk"
    assert (cached.cached, cached.staging_s) == (1, 0)
    assert "local disk" not in cached.stages


def test_advice_is_the_model_asked_again() -> None:
    job = POLARIS, 256, 4, 7168, STEP_S
    loader = Loader(workers=2)
    for change in changes(*job, UNET3D, loader):
        again = input_time(*job, change.dataset, change.loader)
        assert change.time.utilisation == again.utilisation
        assert (change.dataset, change.loader) != (UNET3D, loader)
    helped = {
        change.name: float(change.time.utilisation) for change in changes(*job, UNET3D, loader)
    }
    now = float(input_time(*job, UNET3D, loader).utilisation)
    assert helped["local disk"] > 0.99 > 0.5 > now
    assert helped["workers"] == pytest.approx(now)  # it is the file system that is slow


def test_wrong_input_says_value_rule_and_remedy() -> None:
    with pytest.raises(DescriptionError, match=r"counts tokens: cut it .*of_sequences"):
        input_time(POLARIS, 1, 4, 64, 1.0, load_dataset("openwebtext"), Loader())
    disk, nothing = (
        Loader(staging="local-disk"),
        {"value": 0.0, "kind": "assumed", "source": "test"},
    )
    with pytest.raises(DescriptionError, match=r"aurora have no local disk; use none"):
        input_time(load_machine("aurora"), 1, 12, 64, 1.0, UNET3D, disk)
    with pytest.raises(UnknownNameError, match=r"unknown file system 'eagel': did you mean eagle"):
        input_time(POLARIS, 1, 4, 64, 1.0, UNET3D, Loader(file_system="eagel"))
    with pytest.raises(UnknownNameError, match=r"unknown dataset 'unet': did you mean unet3d"):
        load_dataset("unet")
    with pytest.raises(DescriptionError, match=r"sequence_length = 0 cannot be cut"):
        load_dataset("openwebtext").of_sequences(0)
    with pytest.raises(DescriptionError, match=r"sample_bytes = 0"):
        UNET3D.replaced(sample_bytes=nothing)


@pytest.mark.parametrize("name", names("dataset"))
def test_a_dataset_of_the_catalogue_is_timed_in_sequences(name: str) -> None:
    dataset = load_dataset(name)
    cut = dataset.of_sequences(2048)
    assert cut.total_bytes == pytest.approx(dataset.total_bytes)
    assert cut.num_files == pytest.approx(dataset.num_files)
    found = input_time(POLARIS, 1, 4, 64, 1.0, cut, Loader())
    assert all(np.isfinite(each).all() and (each >= 0).all() for each in found.stages.values())


def test_published_sizes_of_the_datasets() -> None:
    # 524,288 samples in "a 1.7TB tarball" with 65,536 of validation: mlcommons/hpc cosmoflow/README
    cosmoflow = load_dataset("cosmoflow")
    assert cosmoflow.sample_bytes.value * (524288 + 65536) == pytest.approx(1.7e12, rel=0.02)
    # "train.bin is ~17GB": karpathy/nanoGPT data/openwebtext/readme.md
    assert load_dataset("openwebtext").total_bytes / 2**30 == pytest.approx(17, rel=0.02)
    # 1,448,283,629,516 bytes of 12,811,670 images: Dell EMC Ready Solutions for AI, table 7
    imagenet = load_dataset("imagenet")
    assert imagenet.sample_bytes.value == pytest.approx(1448283629516 / 12811670, rel=0.02)
    assert imagenet.num_files == pytest.approx(1024, rel=0.001)


def test_decoding_beforehand_trades_cores_for_bytes() -> None:
    job = POLARIS, 64, 4, 64 * 2048, 0.2
    dataset = load_dataset("imagenet")
    now = input_time(*job, dataset, Loader())
    [stored] = [each for each in changes(*job, dataset, Loader()) if each.name == "decoded"]
    assert now.bound == "workers"
    assert stored.time.stages["cores"] == 0
    more = 150528 / 114660
    assert stored.time.stages["file system"] == pytest.approx(more * now.stages["file system"])
    assert not [c for c in changes(*job, UNET3D, Loader()) if c.name == "decoded"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_node_s_cores_are_shared_among_the_loaders_of_its_ranks(ranks: int) -> None:
    job = (POLARIS, 1, ranks, 28, STEP_S)
    [workers] = [
        each.loader.workers
        for each in changes(*job, UNET3D, Loader(workers=1), 1.0)
        if each.name == "workers"
    ]
    assert workers == POLARIS.node.num_cores.value // ranks

"""Catalogues: names, paths, overrides; hostile input is one sentence, never another exception."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.describe.base import Description
from planner.describe.catalogue import (
    folder,
    load_framework,
    load_machine,
    load_model,
    names,
    read_toml,
)
from planner.describe.files import write_atomically
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields, reserve_memory, take_devices
from planner.describe.model.model import Model
from planner.errors import (
    CatalogueError,
    DescriptionError,
    PlannerError,
    UnknownNameError,
    WriteError,
)
from tests.descriptions import scenario

LOADERS = [load_model, load_machine, load_framework]

Loader = Callable[[str], object]
POLARIS = (folder("machine") / "polaris.toml").read_text()


@pytest.mark.parametrize("kind", ["model", "machine", "framework"])
def test_names_are_the_files(kind: str) -> None:
    assert names(kind) == tuple(
        sorted(p.stem for p in folder(kind).iterdir() if p.suffix == ".toml")
    )


def test_name_case_and_alias() -> None:
    assert load_model("LLaMA-3-8B") is load_model("llama-3-8b")
    assert load_machine("Polaris") == load_machine("polaris")


@pytest.mark.parametrize(
    ("loader", "name", "near"),
    [
        (load_model, "mistal-7b", "mistral-7b"),
        (load_machine, "polris", "polaris"),
        (load_framework, "fsdp3", "fsdp2"),
    ],
)
def test_unknown_name_offers_the_nearest(loader: Loader, name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        loader(name)


def test_toml_by_path_equals_name(tmp_path: Path) -> None:
    path = tmp_path / "polaris.toml"
    path.write_text(POLARIS)
    assert load_machine(str(path)) == load_machine("polaris")


def test_a_framework_like_another_states_what_differs(tmp_path: Path) -> None:
    """Traits are the other's, table by table; what is said of it by name is not."""
    path = tmp_path / "fsdp2.toml"
    path.write_text('title = "Ours"\nlike = "fsdp2"\nsource = "us"\n[kernels]\nloss_chunks = 4\n')
    ours, theirs = load_framework(str(path)), load_framework("fsdp2")
    assert (ours.title, ours.configuration, ours.searched) == ("Ours", "none", False)
    assert ours.kernels == theirs.kernels.replaced(loss_chunks=4)
    assert (ours.code, ours.communication) == (theirs.code, theirs.communication)
    path.write_text('title = "Ours"\nlike = "fsdp3"\nsource = "us"\n')
    with pytest.raises(UnknownNameError, match="fsdp2"):
        load_framework(str(path))


def test_a_folder_never_hides_a_catalogue_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("gpt2").num_params == 124_439_808


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(POLARIS)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_machine("~/mine.toml").num_devices == 2240


def _hostile(tmp_path: Path) -> list[str]:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(random.Random(1).randbytes(2000))
    (tmp_path / "bad.toml").write_text("a = = 1\n")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "nested.toml").write_text("a = " + "[" * 100_000)
    (tmp_path / "dotted.toml").write_text("a" + ".a" * 100_000 + " = 1")
    (tmp_path / "tables.toml").write_text("[a" + ".a" * 100_000 + "]\nb = 1")
    (tmp_path / "huge.toml").write_text("# " + "x" * 2_000_000)
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "fifo.toml")
    written = [str(path) for path in sorted(tmp_path.iterdir())]
    long = "x" * 5000
    return [
        *written,
        str(tmp_path / "absent.toml"),
        "",
        long,
        f"{long}.toml",
        "a\0.toml",
        "a\0",
        "~nouser/x.toml",
        "/dev/zero",
        "\udcff.toml",
        "..",
        "-",
    ]


@pytest.mark.parametrize("loader", LOADERS)
def test_hostile_names_and_files(loader: Loader, tmp_path: Path) -> None:
    for name in _hostile(tmp_path):
        with pytest.raises(PlannerError) as caught:
            loader(name)
        assert len(str(caught.value)) < 600, name[:40]
        assert "\n" not in str(caught.value), name[:40]


def test_wrong_toml_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(CatalogueError, match="line 2"):
        read_toml(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_devices             = 4\n", "", "num_devices' is missing"),
        ("num_nics  ", "num_nicks  ", "num_nicks' is not known|nic_of_device|num_nics"),
        ("nic_of_device           = [1, 1, 0, 0]", "nic_of_device = [1, 1, 0]", "3 of 4 devices"),
        (
            "nic_of_device           = [1, 1, 0, 0]",
            "nic_of_device = [1, 1, 0, 2]",
            "below num_nics",
        ),
        ("value = 560,", "value = nan,", "finite"),
        ("value = 560,", "value = 1e300,", "check your units"),
        ("value = 1.555e12,", "value = 1555,", "check your units"),
        ("value = 42412802048,", "value = -1,", "check your units"),
        ("value = 42412802048,", "value = 40,", "check your units"),
        ("value = 0.869,", "value = 86.9,", "check your units"),
        ("value = 0.85,", "value = 0,", "check your units"),
        ("value = 12e-6,", "value = 12,", "check your units"),
        ("num_nodes = [2, 8, 256, 540]", "num_nodes = [0, 8, 256, 540]", "equal to 1"),
        ("num_nodes = [2, 8, 256, 540]", "num_nodes = [8, 2, 256, 540]", "must rise"),
        ("num_nodes = [2, 8, 256, 540]", "num_nodes = [2, 8, 256]", "differ in length"),
        ("fraction  = [0.72,", "fraction  = [0,", "equal to 0.000001"),
    ],
)
def test_profiles_that_make_no_sense(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in POLARIS
    path = tmp_path / "mine.toml"
    path.write_text(POLARIS.replace(old, new, 1))
    with pytest.raises(DescriptionError, match=message):
        load_machine(str(path))


def _leaves(table: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the numbers of plain data stand."""
    items = table.items() if isinstance(table, dict) else enumerate(table)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from _leaves(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, key)


def _checked(kind: type[Description], fields: dict[str, Any]) -> None:
    """Describe something, its switches turned on."""
    made = kind.described(fields)
    if isinstance(made, Framework):
        made.with_checked_switches()


@pytest.mark.parametrize("kind", ["model", "machine", "framework"])
@pytest.mark.parametrize("absurd", [-1, 1e300, 10**30])
def test_every_number_has_bounds(kind: str, absurd: float) -> None:
    """No field of a catalogue takes a negative or an absurd number."""
    kinds: dict[str, type[Description]] = {
        "model": Model,
        "machine": Machine,
        "framework": Framework,
    }
    whole = {
        "model": ("deepseek-v3", "gemma-2-27b", "vit-h-14", "resnet-50"),
        "machine": ("h100-cluster", "aurora", "dgx-gb200"),
        "framework": ("megatron-lm", "fsdp2", "deepspeed", "nanotron"),
    }[kind]
    for name in whole:
        stated = {"name": name, **read_toml(folder(kind) / f"{name}.toml")}
        for path in _leaves(stated):
            fields = copy.deepcopy(stated)
            table: Any = fields
            for key in path[:-1]:
                table = table[key]
            table[path[-1]] = absurd if isinstance(absurd, int) else float(absurd)
            with pytest.raises(DescriptionError) as caught:
                _checked(kinds[kind], fields)
            assert len(str(caught.value)) < 400, path


@pytest.mark.parametrize(
    "figure", ["sustained_fraction", "gemm_efficiency", "attention_efficiency"]
)
def test_no_device_does_more_than_its_peak(figure: str) -> None:
    with pytest.raises(DescriptionError, match=rf"device\.{figure} = 2\.0 is refused.*your units"):
        load_machine("polaris", (f"device.{figure}=2",))


@pytest.mark.parametrize("name", ["own.toml", "config.json"])
def test_numbers_of_thousands_of_digits(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    digits = "9" * 5000
    path.write_text(f"a = {digits}" if name.endswith("toml") else f'{{"a": {digits}}}')
    with pytest.raises(CatalogueError, match="a number with thousands of digits"):
        load_model(str(path))
    with pytest.raises(DescriptionError, match="a number of thousands of digits is refused"):
        Layout.described({"dp": 10**5000})


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", [None, 3, ["gpt2"], {}, True, 2.5])
def test_a_name_is_text(loader: Loader, name: Any) -> None:
    with pytest.raises(PlannerError, match="is not a name; give the name or the path"):
        loader(name)


def test_a_device_without_end_is_not_read() -> None:
    for path in ("/dev/zero", "/dev/stdin", "/proc/self/pagemap"):
        with pytest.raises(CatalogueError):
            read_toml(Path(path))


def test_keys_of_many_parts_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    for text in ("a." * 70 + "b = 1", "x = { " + "a . " * 70 + "b = 1 }", '["a b"' + '."c"' * 70):
        path.write_text(text)
        with pytest.raises(CatalogueError, match="nested too deeply"):
            read_toml(path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text("old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    with pytest.raises(WriteError, match="What was there before is unchanged"):
        write_atomically(tmp_path / "absent" / "x", "text")
    with pytest.raises(WriteError, match="cannot write"):
        write_atomically(tmp_path / "a\0b", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["profile.toml"]


def test_override_takes_units_and_says_so() -> None:
    machine = load_machine("polaris", ("device.memory_bytes=80GB", "node.fabric.kind=switch"))
    memory = machine.device.memory_bytes
    assert (memory.value, memory.kind, memory.source) == (80e9, "assumed", "set by the user")
    assert machine.node.fabric.kind == "switch"
    assert load_machine("polaris").device.memory_bytes.value != 80e9


def test_one_override_needs_no_list() -> None:
    fields = "device.memory_bytes=80GB"
    assert load_machine("polaris", fields) == load_machine("polaris", (fields,))


def test_an_override_names_entries_of_a_list_by_their_places() -> None:
    wires = load_machine("frontier").node.fabric.wires
    changed = load_machine("frontier", ("node.fabric.wires.1-3,6.bytes_per_s=60GB/s",))
    for place, (before, after) in enumerate(zip(wires, changed.node.fabric.wires, strict=True)):
        assert after.bytes_per_s == (60e9 if place in (1, 2, 3, 6) else before.bytes_per_s)
        assert after.devices == before.devices


@pytest.mark.parametrize("places", ["12", "0-12", "x", "", "3-1", "0-99999999999999", "-1"])
def test_an_override_of_entries_that_are_not_there_is_refused(places: str) -> None:
    with pytest.raises(DescriptionError, match="list of 12; write their places, counted from 0 to"):
        load_machine("frontier", (f"node.fabric.wires.{places}.bytes_per_s=60GB/s",))


def test_an_overridden_curve_is_no_longer_measured() -> None:
    curve = load_machine("frontier").network.efficiency
    given = [0.5 for _ in curve.fraction]
    changed = load_machine("frontier", (f"network.efficiency.fraction={given}",)).network.efficiency
    assert (list(changed.fraction), changed.kind) == (given, "assumed")
    assert changed.source == "set by the user"
    assert changed.num_nodes == curve.num_nodes


def test_memory_can_be_left_free() -> None:
    whole = load_machine("polaris")
    kept = load_machine("polaris", ("device.memory_bytes=80GB",), 25)
    assert kept.device.memory_bytes.value == pytest.approx(60e9)
    assert "25 %" in kept.device.memory_bytes.source
    assert reserve_memory(whole, 0) is whole


@pytest.mark.parametrize("name", sorted(names("machine")))
def test_every_machine_has_parts_of_a_node(name: str) -> None:
    whole = load_machine(name)
    for devices in {1, whole.node.num_devices // 2 or 1, whole.node.num_devices}:
        part = take_devices(whole, devices)
        assert part.num_devices == devices
        assert part.device == whole.device
        # no interface without a device, and no more than the devices had
        assert set(part.node.nic_of_device) == set(range(part.node.num_nics))
        assert part.node.num_nics <= whole.node.num_nics
        assert part.node.host_memory_bytes.value <= whole.node.host_memory_bytes.value


def test_half_a_node_has_half_of_what_jobs_share() -> None:
    whole, half = load_machine("vsc-5"), load_machine("vsc-5", devices=1)
    assert half.node.host_memory_bytes.value == whole.node.host_memory_bytes.value / 2
    assert half.node.local_disk is not None
    assert whole.node.local_disk is not None
    assert (
        half.node.local_disk.capacity_bytes.value == whole.node.local_disk.capacity_bytes.value / 2
    )
    assert half.node.host_memory_bytes.source.startswith("the part of 1 of 2 devices of a node")
    # PBS gives Polaris' nodes whole, and a workstation is one's own; LUMI's jobs ask for all
    for name in ("polaris", "workstation-4x4090", "lumi-g"):
        memory = load_machine(name).node.host_memory_bytes
        assert load_machine(name, devices=2).node.host_memory_bytes == memory


@pytest.mark.parametrize("devices", [0, 3, -1])
def test_a_part_is_no_more_than_a_node(devices: int) -> None:
    with pytest.raises(DescriptionError, match="give 1 to 2, or nodes"):
        load_machine("vsc-5", devices=devices)


@pytest.mark.parametrize("percent", [-5, 91, 150, float("nan"), float("inf")])
def test_no_more_is_left_free_than_there_is(percent: float) -> None:
    with pytest.raises(DescriptionError, match=r"free_percent = .* between 0 and 90; give"):
        load_machine("polaris", free_percent=percent)


def test_override_of_an_absent_quantity() -> None:
    machine = load_machine("laptop")
    assert machine.node.nic_bytes_per_s is None
    changed = override_fields(machine, ("node.nic_bytes_per_s=25GB/s",))
    assert changed.node.nic_bytes_per_s is not None
    assert changed.node.nic_bytes_per_s.value == 25e9


@pytest.mark.parametrize(
    "override",
    [
        "foo=1",
        "device.memory=1",
        "device=1",
        "=",
        "x",
        "device.memory_bytes=",
        "a.b.c=1",
        "device.memory_bytes=nan",
        "device.memory_bytes=-40GB",
        "device.memory_bytes=0",
        "device.memory_bytes=1e300",
        "device.memory_bytes=40",
        "device.gemm_efficiency=5",
        "device.memory_bytes_per_s=0",
        "device.num_units=0",
        "node.num_devices=0",
        "node.num_devices=8",
        "node.num_devices=" + "9" * 5000,
        "node.num_devices=" + "[" * 50_000,
        "node.fabric.kind=foo",
        "network=1",
        "num_nodes=0",
        "num_nodes=1e300",
        "network.latency_s=-1",
        "node.nic_bytes_per_s=0",
        "scheduler.queues=5",
        "name.x=1",
    ],
)
def test_hostile_overrides(override: str) -> None:
    with pytest.raises(PlannerError) as caught:
        load_machine("polaris", (override,))
    assert len(str(caught.value)) < 400


def test_unknown_field_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="memory_bytes"):
        load_machine("polaris", ("device.memory=1",))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("huge.toml", "2.0 MB"),
        ("binary.toml", "not UTF-8"),
        ("nested.toml", "nested too deeply"),
        ("dotted.toml", "nested too deeply"),
        ("fifo.toml", "not a regular file"),
        ("folder.toml", "is a directory"),
        ("absent.toml", "No such file"),
        ("bad.toml", "not valid TOML"),
    ],
)
def test_each_kind_of_bad_file_is_told_apart(tmp_path: Path, name: str, says: str) -> None:
    _hostile(tmp_path)
    with pytest.raises(CatalogueError, match=says):
        load_machine(str(tmp_path / name))


@pytest.mark.parametrize(
    ("machine", "fused"), [("polaris", True), ("lumi-g", True), ("aurora", False)]
)
def test_kernels_that_a_runtime_lacks_are_not_used_there(machine: str, fused: bool) -> None:
    """argonne-lcf/Megatron-DeepSpeed @ffa3456d, megatron/initialize.py: fused kernels are only
    supported in cuda, which ROCm's devices are called too; the norm has a kernel everywhere."""
    kernels = scenario(framework="megatron-deepspeed", machine=machine).framework.kernels
    assert (kernels.fused_rope, kernels.fused_residual, kernels.fused_optimizer) == (fused,) * 3
    assert kernels.fused_norm
    # what others run is not said to lack anything
    fsdp2 = load_framework("fsdp2").with_own_blocks()
    assert scenario(framework="fsdp2", machine=machine).framework == fsdp2


@pytest.mark.parametrize(
    ("load", "name", "reason"),
    [
        (load_framework, "neox", "use megatron-deepspeed"),
        (load_framework, "gpt-neox", "use megatron-deepspeed"),
        (load_framework, "levanter", "JAX, which is not estimated"),
        (load_framework, "nemo", "use megatron-lm"),
        (load_machine, "tpu-v4", "TPUs are not estimated"),
    ],
)
def test_what_the_catalogues_lack_is_refused_with_the_reason(
    load: Callable[[str], object], name: str, reason: str
) -> None:
    with pytest.raises(DescriptionError, match=reason):
        load(name)


def test_names_that_people_type_are_those_of_the_catalogue() -> None:
    for name, plain in (("wordplay", "ezpz"), ("fsdp", "fsdp2"), ("Megatron", "megatron-lm")):
        assert load_framework(name) == load_framework(plain)

"""Catalogues: names, paths, overrides; hostile input is one sentence, never another exception."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.describe.catalogue import (
    folder,
    load_framework,
    load_machine,
    load_model,
    names,
    overridden,
    read_toml,
)
from planner.errors import CatalogueError, DescriptionError, PlannerError, UnknownNameError

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
        (load_framework, "fsdp", "fsdp2"),
    ],
)
def test_unknown_name_offers_the_nearest(loader: Loader, name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        loader(name)


def test_toml_by_path_equals_name(tmp_path: Path) -> None:
    path = tmp_path / "polaris.toml"
    path.write_text(POLARIS)
    assert load_machine(str(path)) == load_machine("polaris")


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
        ("num_nodes = [2, 8, 256, 540]", "num_nodes = [0, 8, 256, 540]", "must start at 1"),
        ("num_nodes = [2, 8, 256, 540]", "num_nodes = [8, 2, 256, 540]", "must rise"),
        ("num_nodes = [2, 8, 256, 540]", "num_nodes = [2, 8, 256]", "differ in length"),
        ("fraction  = [0.72,", "fraction  = [0,", "check your units"),
    ],
)
def test_profiles_that_make_no_sense(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in POLARIS
    path = tmp_path / "mine.toml"
    path.write_text(POLARIS.replace(old, new, 1))
    with pytest.raises(DescriptionError, match=message):
        load_machine(str(path))


def test_override_takes_units_and_says_so() -> None:
    machine = load_machine("polaris", ("device.memory_bytes=80GB", "node.fabric.kind=switch"))
    memory = machine.device.memory_bytes
    assert (memory.value, memory.kind, memory.source) == (80e9, "assumed", "set by the user")
    assert machine.node.fabric.kind == "switch"
    assert load_machine("polaris").device.memory_bytes.value != 80e9


def test_override_of_an_absent_quantity() -> None:
    machine = load_machine("laptop")
    assert machine.node.nic_bytes_per_s is None
    changed = overridden(machine, ("node.nic_bytes_per_s=25GB/s",))
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
        ("folder.toml", "Is a directory"),
        ("absent.toml", "No such file"),
        ("bad.toml", "not valid TOML"),
    ],
)
def test_each_kind_of_bad_file_is_told_apart(tmp_path: Path, name: str, says: str) -> None:
    _hostile(tmp_path)
    with pytest.raises(CatalogueError, match=says):
        load_machine(str(tmp_path / name))

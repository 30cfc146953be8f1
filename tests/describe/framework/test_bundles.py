"""Bundles: traits of a library that frameworks name instead of stating them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.describe.catalogue import folder, load_framework, names
from planner.describe.files import read_toml
from planner.errors import DescriptionError, UnknownNameError


def described(path: Path, *lines: str) -> Path:
    """A user's file of a framework like DDP."""
    path.write_text("\n".join(("title = 'mine'", "source = 'here'", "like = 'ddp'", *lines)))
    return path


def test_own_traits_win_over_bundles_and_bundles_over_the_framework_it_is_like(
    tmp_path: Path,
) -> None:
    path = described(tmp_path / "mine.toml", "bundles = ['torch-2.13', 'horovod-fusion']")
    framework = load_framework(str(path))
    assert framework.buffers.whole_embedding_gradient
    assert framework.buffers.reduce_bucket_elements == 33554432
    assert framework.kernels.loss == load_framework("ddp").kernels.loss
    described(path, "bundles = ['horovod-fusion']", "buffers.reduce_bucket_elements = 1000")
    assert load_framework(str(path)).buffers.reduce_bucket_elements == 1000


def test_bundles_are_a_list_of_known_names(tmp_path: Path) -> None:
    path = described(tmp_path / "mine.toml", "bundles = ['torch-2.31']")
    with pytest.raises(UnknownNameError, match=r"torch-2.13"):
        load_framework(str(path))
    described(path, "bundles = 3")
    with pytest.raises(DescriptionError, match="bundles = 3 is not a list"):
        load_framework(str(path))


def test_every_bundle_is_named_by_a_framework() -> None:
    stated = [read_toml(folder("framework") / f"{name}.toml") for name in names("framework")]
    assert {bundle for table in stated for bundle in table.get("bundles", ())} == set(
        names("bundle")
    )

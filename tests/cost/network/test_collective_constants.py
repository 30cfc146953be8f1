"""Constants of collectives: complete, and the ones that the method page prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.cost.constants import PROTOCOLS, InterNode, load, network_constants
from planner.errors import DescriptionError

METHOD = Path(__file__).parents[3] / "docs" / "explanation" / "network.md"


def test_the_method_page_prints_them() -> None:
    text = METHOD.read_text(encoding="utf-8")
    for protocol in PROTOCOLS:
        row = re.search(
            rf"^\| {protocol.name} \| (\S+)/(\S+) \* fabric \| (\S+)/(\S+) \* fabric \| (\S+) "
            r"\| (\S+) us \|$",
            text,
            re.MULTILINE,
        )
        assert row is not None
        ring, ring_over, tree, tree_over, rate, base = map(float, row.groups())
        assert (ring / ring_over, tree / tree_over, rate, base * 1e-6) == pytest.approx(
            (protocol.ring_inside, protocol.tree_inside, protocol.rate, protocol.base_s)
        )
    known = network_constants().inter_node
    assert rf"\frac{{x}}{{{known.large_message_bytes.value / 2**10:.0f}\ \text{{KiB}}}}" in text
    assert rf"{known.large_message_ratio.value:g} \cdot \text{{network}}" in text
    assert f"L(S / {known.tree_pieces.value:g})" in text


def test_a_missing_constant_is_named(tmp_path: Path) -> None:
    path = tmp_path / "constants.toml"
    path.write_text('large_message_bytes = { value = 1, kind = "assumed", source = "test" }')
    with pytest.raises(
        DescriptionError, match=r"constants.toml: .*'large_message_ratio' is missing"
    ):
        load(path, InterNode)

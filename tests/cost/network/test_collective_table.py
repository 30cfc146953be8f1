"""Table of collectives: groups, what the library takes, what bus bandwidth means."""

from __future__ import annotations

import math

import pytest

from planner.cost.network.collective_table import (
    ALGORITHMS,
    OPERATIONS,
    bus_factor,
    group_of,
    table,
    whole_nodes,
)
from planner.cost.network.topology import group_view
from planner.describe.catalogue import load_machine
from planner.errors import LayoutError


@pytest.mark.parametrize("name", ["polaris", "eos", "aurora", "laptop", "workstation-2x3090"])
@pytest.mark.parametrize("size", [8.0, 2.0**20, 2.0**30])
def test_what_is_taken_is_what_estimates_count(name: str, size: float) -> None:
    machine = load_machine(name)
    group = whole_nodes(machine, min(int(machine.num_nodes.value), 16))
    rows = table(group, size)
    assert list(dict.fromkeys(row.operation for row in rows)) == list(OPERATIONS)
    for operation, function in OPERATIONS.items():
        mine = [row for row in rows if row.operation == operation]
        used = [row for row in mine if row.used]
        if group.size == 1:
            assert not used
            continue
        assert [row.time_s for row in used] == [pytest.approx(float(function(group, size)))]
        factor = bus_factor(operation, float(group.size))
        assert used[0].bus_bytes_per_s == pytest.approx(factor * size / used[0].time_s)
        assert all(row.time_s < math.inf for row in mine)


def test_switches_stand_in_the_table_where_they_are() -> None:
    def ways(name: str, *network: str) -> set[str]:
        rows = table(whole_nodes(load_machine(name, network), 4), 2**30)
        return {row.algorithm for row in rows if row.operation == "all_reduce"}

    assert not {"switches (NVLS)", "network (SHARP)"} & ways("polaris")
    assert "switches (NVLS)" in ways("eos")
    assert "network (SHARP)" not in ways("eos")
    assert {"switches (NVLS)", "network (SHARP)"} < ways("eos", "network=sharp")
    assert ways("eos", "network=sharp") == set(ALGORITHMS["all_reduce"])


def test_a_group_of_some_devices_of_a_node_stays_in_it() -> None:
    h200 = load_machine("dgx-h200")
    for ranks in range(2, 9):
        view = group_of(h200, ranks)
        assert (float(view.local), float(view.nodes)) == (ranks, 1)
    # every second device, and one of each node
    assert float(group_of(h200, 4, 2).local) == 4
    assert (float(group_of(h200, 4, 8).local), float(group_of(h200, 4, 8).nodes)) == (1, 4)
    # the last of twelve ranks stand on a second node
    assert (float(group_of(h200, 12).local), float(group_of(h200, 12).nodes)) == (8, 2)
    # groups of layouts, which follow each other, may straddle nodes
    assert float(group_view(h200, 6, 1).nodes) == 3


@pytest.mark.parametrize(
    ("ranks", "stride", "words"),
    [
        (1, 1, "ranks = 1, stride = 1: a collective needs at least 2 ranks"),
        (4, 0, "a stride of at least 1"),
        (2241, 1, "exceed the 2,240 devices of polaris; use fewer ranks or a smaller stride"),
        (3, 1120, "3 ranks with stride 1,120 exceed"),
    ],
)
def test_groups_that_a_machine_has_not_are_refused(ranks: int, stride: int, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        group_of(load_machine("polaris"), ranks, stride)


@pytest.mark.parametrize("size", [0.0, -1.0, math.inf, math.nan])
def test_a_size_that_is_none_is_refused(size: float) -> None:
    with pytest.raises(LayoutError, match="must be positive and finite; for example 64MiB"):
        table(whole_nodes(load_machine("polaris"), 1), size)

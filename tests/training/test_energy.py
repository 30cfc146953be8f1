"""Energy: what nodes draw while they train, against what was measured."""

from __future__ import annotations

import pytest

from planner.describe.catalogue import load_machine, names
from planner.describe.machine.variants import take_devices
from planner.training.energy import energy_kwh, node_power


def test_a_node_of_eight_h100() -> None:
    # arXiv:2412.08602: 8.4 kW at most, of 10.2 kW; arXiv:2506.14551: 76 % in the mean (its source)
    found = node_power(load_machine("dgx-h100"))
    assert found is not None
    assert found.watts == pytest.approx(0.76 * 10_200)
    assert found.low_watts < found.watts < 8_400 < found.high_watts


def test_vsc_4() -> None:
    # derstandard.at/story/2000111760563: 460 kW typical of 790 nodes
    found = node_power(load_machine("vsc-4"))
    assert found is not None
    assert found.watts == pytest.approx(460_000 / 790, rel=0.05)


def test_jean_zay_under_bloom() -> None:
    # arXiv:2211.02001: 433,196 kWh dynamic and 256,646 idle of 1,082,990 device-hours, 8 a node
    found = node_power(load_machine("jean-zay-a100"))
    assert found is not None
    assert found.watts == pytest.approx(8 * 689_842_000 / 1_082_990, rel=0.1)
    assert found.low_watts < 8 * 689_842_000 / 1_082_990 < found.high_watts


@pytest.mark.parametrize("name", names("machine"))
def test_every_machine_has_a_power_or_none(name: str) -> None:
    machine = load_machine(name)
    found = node_power(machine)
    if found is None:
        assert machine.node.power_watts is None
        assert machine.device.power_watts is None
        return
    assert 5 < found.low_watts < found.watts < found.high_watts < 30_000
    if machine.device.power_watts and machine.node.power_watts:
        devices = machine.node.num_devices * machine.device.power_watts.value
        assert machine.node.power_watts.value > devices


def test_half_a_node_draws_half() -> None:
    whole, half = load_machine("vsc-5"), take_devices(load_machine("vsc-5"), 1)
    both = [node_power(machine) for machine in (whole, half)]
    assert both[0] is not None
    assert both[1] is not None
    assert both[1].watts == pytest.approx(both[0].watts / 2)


def test_pue_counts_once() -> None:
    assert float(energy_kwh(10, 1000, 1.5)) == 15

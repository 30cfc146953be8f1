"""Whole training: the parts of its time, and its bill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planner.cost.parts import Part
from planner.describe.files import read_toml
from planner.describe.training.training_run import Charges
from planner.errors import UnknownNameError
from planner.tables import Table, Tabular
from planner.training.energy import NodePower, energy_kwh

_BY_NAME = {
    name: Part(name=name, **fields)
    for name, fields in read_toml(Path(__file__).with_name("parts.toml")).items()
}

PARTS = tuple(_BY_NAME)
"""Names of all parts, in the order of every answer."""


def part(name: str) -> Part:
    """Return the record of a part. Raises UnknownNameError for an unknown name."""
    if name not in _BY_NAME:
        raise UnknownNameError("part", name, _BY_NAME, f"`{__name__}` has all {len(_BY_NAME)}")
    return _BY_NAME[name]


DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Amount:
    """An expected value with its 90 % interval."""

    expected: float
    low: float
    high: float

    def times(self, factor: float) -> Amount:
        """Multiply the value and its interval."""
        return Amount(factor * self.expected, factor * self.low, factor * self.high)


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """A part of a training's time."""

    name: str
    time_s: Amount
    with_steps: bool = False
    """True if its error follows that of the steps, so that both add up linearly."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Costs of a whole training; None if the power, carbon intensity or price is unknown."""

    node_hours: Amount
    energy_kwh: Amount | None
    carbon_kg: Amount | None
    price: Amount | None


@dataclass(frozen=True, slots=True)
class WholeTraining(Tabular[str]):
    """A training from its first job to its last: its time by part, and its bill."""

    nodes: int
    steps: int
    parts: tuple[TrainingPart, ...]
    """All of `PARTS` in their order; their expected times add up to the whole time."""
    jobs: int
    """Consecutive jobs within the queue's limit; 1 if no limit is known."""
    queue: str
    """Name of the queue; empty if none is known."""
    failures: float
    checkpoints: float
    checkpoint_bytes: float
    bill: Bill
    notes: tuple[str, ...]
    """Costs that are not counted, and assumptions."""

    @property
    def time(self) -> Amount:
        """Time from the first job's start to the last step, without waiting in queues [s]."""
        return sum_parts(self.parts)

    @property
    def days(self) -> Amount:
        """Time in days."""
        return self.time.times(1 / DAY_S)

    def part_s(self, name: str) -> float:
        """Return the expected time of a part [s]; UnknownNameError for an unknown name."""
        part(name)
        return next(item.time_s.expected for item in self.parts if item.name == name)

    def tables(self) -> dict[str, Table]:
        """Return the parts of the training's time, with what they count."""
        total = self.time.expected
        parts = tuple(
            {
                "part": item.name,
                "time_s": item.time_s.expected,
                "time_s_low": item.time_s.low,
                "time_s_high": item.time_s.high,
                "share": item.time_s.expected / total,
                "meaning": part(item.name).meaning,
            }
            for item in self.parts
        )
        return {"parts": Table(parts)}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, totals included."""
        return {**asdict(self), "time_s": asdict(self.time), "days": asdict(self.days)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WholeTraining:
        """Read the data that `as_dict` wrote."""
        plain = {name: data[name] for name in cls.__dataclass_fields__}
        parts = tuple(
            TrainingPart(item["name"], Amount(**item["time_s"]), item["with_steps"])
            for item in data["parts"]
        )
        bill = Bill(**{k: v and Amount(**v) for k, v in data["bill"].items()})
        return cls(**{**plain, "parts": parts, "bill": bill, "notes": tuple(data["notes"])})


def sum_parts(parts: tuple[TrainingPart, ...]) -> Amount:
    """Sum of parts [s]: errors that follow the steps add up linearly, others in quadrature."""
    expected = math.fsum(item.time_s.expected for item in parts)
    below = _spread([(p.time_s.expected - p.time_s.low, p.with_steps) for p in parts])
    above = _spread([(p.time_s.high - p.time_s.expected, p.with_steps) for p in parts])
    return Amount(expected, expected - below, expected + above)


def _spread(errors: list[tuple[float, bool]]) -> float:
    """Error of a sum [s], from each part's error and whether it follows the steps."""
    independent = (error for error, with_steps in errors if not with_steps)
    return math.hypot(sum(error for error, with_steps in errors if with_steps), *independent)


def bill_training(
    parts: tuple[TrainingPart, ...], nodes: int, charges: Charges, power: NodePower | None
) -> Bill:
    """Node-hours of a training, and the energy, emissions and price that follow from them."""
    hours = sum_parts(parts).times(nodes / 3600)
    energy = None if power is None else _energy(hours, power, charges.pue)
    carbon = None
    if energy is not None and charges.carbon_g_per_kwh is not None:
        carbon = energy.times(charges.carbon_g_per_kwh / 1000)
    rates = ((hours, charges.price_per_node_hour), (energy, charges.price_per_kwh))
    prices = [use.times(rate) for use, rate in rates if use is not None and rate is not None]
    price = None
    if prices:
        price = Amount(*(sum(getattr(p, k) for p in prices) for k in ("expected", "low", "high")))
    return Bill(hours, energy, carbon, price)


def _energy(hours: Amount, power: NodePower, pue: float) -> Amount:
    """Energy of node-hours [kWh]; relative errors of time and power add in quadrature."""
    mean = float(energy_kwh(hours.expected, power.watts, pue))
    if not mean:
        return Amount(0.0, 0.0, 0.0)
    below = math.hypot(1 - hours.low / hours.expected, 1 - power.low_watts / power.watts)
    above = math.hypot(hours.high / hours.expected - 1, power.high_watts / power.watts - 1)
    return Amount(mean, mean * max(1 - below, 0.0), mean * (1 + above))

"""The answer about a whole training: its parts, which add up to its days, and what it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.describe.training_run import Charges
from planner.tables import Table, Tabular
from planner.training.energy import NodePower, energy_kwh
from planner.training.parts import part

__all__ = ["DAY_S", "Amount", "Bill", "TrainingPart", "WholeTraining", "between", "billed"]

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Amount:
    """An expected value, and between which 90 % of trainings are expected."""

    expected: float
    low: float
    high: float

    def times(self, factor: float) -> Amount:
        """The amount, and its range, times a factor."""
        return Amount(factor * self.expected, factor * self.low, factor * self.high)


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """A part of a training's time."""

    name: str
    time_s: Amount
    with_steps: bool = False
    """Whether it errs as the steps do, so that their errors add up."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What the whole training takes besides time. None: nothing is stated that it follows from."""

    node_hours: Amount
    energy_kwh: Amount | None
    carbon_kg: Amount | None
    price: Amount | None


@dataclass(frozen=True, slots=True)
class WholeTraining(Tabular[str]):
    """A training from its first job to its last: how long, why, and what it takes."""

    nodes: int
    steps: int
    parts: tuple[TrainingPart, ...]
    """All of `PARTS`, in their order: their expected times add up to the training's."""
    jobs: int
    """Jobs in a row into which the queue cuts it; 1 where no limit is known."""
    queue: str
    """The queue whose limit that is; empty where none is known."""
    failures: float
    """Interruptions that are to be expected."""
    checkpoints: float
    """Checkpoints that are written."""
    checkpoint_bytes: float
    """Bytes of one checkpoint [B]."""
    bill: Bill
    notes: tuple[str, ...]
    """What is not counted, and what was assumed."""

    @property
    def time(self) -> Amount:
        """Time from the first job's start to the last step, without waiting in queues [s]."""
        return between(self.parts)

    @property
    def days(self) -> Amount:
        """The same in days."""
        return self.time.times(1 / DAY_S)

    def part_s(self, name: str) -> float:
        """Expected time of a part [s]; UnknownNameError where there is none of the name."""
        part(name)
        return next(one.time_s.expected for one in self.parts if one.name == name)

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
        """The answer as plain data, its totals with it."""
        return {**asdict(self), "time_s": asdict(self.time), "days": asdict(self.days)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WholeTraining:
        """The answer that `as_dict` wrote."""
        plain = {name: data[name] for name in cls.__dataclass_fields__}
        parts = tuple(
            TrainingPart(one["name"], Amount(**one["time_s"]), one["with_steps"])
            for one in data["parts"]
        )
        bill = Bill(**{k: v and Amount(**v) for k, v in data["bill"].items()})
        return cls(**{**plain, "parts": parts, "bill": bill, "notes": tuple(data["notes"])})


def between(parts: tuple[TrainingPart, ...]) -> Amount:
    """The sum of some parts and the range around it.

    Counted: parts that err with the steps add their errors up, the others err by themselves (their
    errors add as squares). Left out: what no part has. method.md#whole-trainings.

    >>> steps = TrainingPart("steps", Amount(100.0, 90.0, 120.0), with_steps=True)
    >>> start = TrainingPart("start_up", Amount(20.0, 20.0, 35.0))
    >>> between((steps, start))
    Amount(expected=120.0, low=110.0, high=145.0)
    """
    expected = math.fsum(one.time_s.expected for one in parts)
    together = [one.time_s for one in parts if one.with_steps]
    alone = [one.time_s for one in parts if not one.with_steps]
    below = math.hypot(
        sum(t.expected - t.low for t in together), *(t.expected - t.low for t in alone)
    )
    above = math.hypot(
        sum(t.high - t.expected for t in together), *(t.high - t.expected for t in alone)
    )
    return Amount(expected, expected - below, expected + above)


def billed(time_s: Amount, nodes: int, charges: Charges, power: NodePower | None) -> Bill:
    """Node-hours of a training, and the energy, emissions and price that follow from them.

    Counted: all nodes for the whole time; the centre's overhead by its PUE; a price per node-hour
    and one per kWh, whichever are stated. Left out: waiting in queues, making the hardware.
    method.md#energy.

    >>> hour = Amount(3600.0, 1800.0, 7200.0)
    >>> bill = billed(hour, 2, Charges(node_power_watts=1000.0, carbon_g_per_kwh=500.0), None)
    >>> bill.node_hours.expected, bill.energy_kwh, bill.price
    (2.0, None, None)
    """
    hours = time_s.times(nodes / 3600)
    energy = None if power is None else _energy(hours, power, charges.pue)
    carbon = None
    if energy is not None and charges.carbon_g_per_kwh is not None:
        carbon = energy.times(charges.carbon_g_per_kwh / 1000)
    prices = []
    if charges.price_per_node_hour is not None:
        prices.append(hours.times(charges.price_per_node_hour))
    if charges.price_per_kwh is not None and energy is not None:
        prices.append(energy.times(charges.price_per_kwh))
    price = None
    if prices:
        price = Amount(*(sum(getattr(p, k) for p in prices) for k in ("expected", "low", "high")))
    return Bill(hours, energy, carbon, price)


def _energy(hours: Amount, power: NodePower, pue: float) -> Amount:
    """Energy of some node-hours; time and power err by themselves (in parts, as squares)."""
    mean = float(energy_kwh(hours.expected, power.watts, pue))
    if not mean:
        return Amount(0.0, 0.0, 0.0)
    below = math.hypot(1 - hours.low / hours.expected, 1 - power.low_watts / power.watts)
    above = math.hypot(hours.high / hours.expected - 1, power.high_watts / power.watts - 1)
    return Amount(mean, mean * max(1 - below, 0.0), mean * (1 + above))

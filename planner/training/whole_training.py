"""Whole training: the parts of its time, and its bill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.cost.parts import Part
from planner.describe.training.training_run import Charges
from planner.errors import UnknownNameError
from planner.tables import Table, Tabular
from planner.training.energy import NodePower, energy_kwh

__all__ = [
    "DAY_S",
    "PARTS",
    "Amount",
    "Bill",
    "TrainingPart",
    "WholeTraining",
    "bill_training",
    "part",
    "sum_parts",
]

_PARTS = (
    Part(
        name="start_up",
        title="start-up",
        hue="grey",
        meaning="every job of the row before its first step: processes, communicators, state, "
        "compilation",
    ),
    Part(
        name="staging",
        hue="grey",
        hatch="/",
        meaning="copying the dataset to the nodes' own disks, once a job",
    ),
    Part(name="steps", hue="blue", meaning="the optimizer steps, as long as the step's estimate"),
    Part(
        name="data",
        title="waiting for data",
        hue="orange",
        meaning="what the input pipeline takes longer than the steps beside which it runs",
    ),
    Part(name="evaluation", hue="green", meaning="forward passes and generated text between steps"),
    Part(
        name="checkpoints",
        hue="pink",
        meaning="what steps wait for while the state is written",
    ),
    Part(
        name="lost_work",
        hue="red",
        meaning="work since the last checkpoint, done again after failures and at the end of jobs",
    ),
    Part(
        name="restarts",
        title="recovery",
        hue="red",
        hatch="/",
        meaning="from a failure until steps go on: noticing it, starting again, loading the state",
    ),
)

PARTS = tuple(part.name for part in _PARTS)
"""In the order of every answer."""

_BY_NAME = {part.name: part for part in _PARTS}


def part(name: str) -> Part:
    """The record of a part; UnknownNameError where nobody wrote one.

    >>> part("restarts").label
    'recovery'
    """
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
    """Whether its error is that of the steps, so that both add up linearly."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Costs of a whole training; None for those that follow from nothing that is stated."""

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
    """The queue; empty if none is known."""
    failures: float
    """Expected number of interruptions."""
    checkpoints: float
    """Number of checkpoints."""
    checkpoint_bytes: float
    """Bytes of one checkpoint [B]."""
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
    """Sum parts with their intervals.

    Counted: errors that follow the steps add up linearly, independent errors as squares.
    method.md#whole-trainings.

    >>> steps = TrainingPart("steps", Amount(100.0, 90.0, 120.0), with_steps=True)
    >>> start = TrainingPart("start_up", Amount(20.0, 20.0, 35.0))
    >>> sum_parts((steps, start))
    Amount(expected=120.0, low=110.0, high=145.0)
    """
    expected = math.fsum(item.time_s.expected for item in parts)
    correlated = [item.time_s for item in parts if item.with_steps]
    independent = [item.time_s for item in parts if not item.with_steps]
    below = math.hypot(
        sum(t.expected - t.low for t in correlated), *(t.expected - t.low for t in independent)
    )
    above = math.hypot(
        sum(t.high - t.expected for t in correlated), *(t.high - t.expected for t in independent)
    )
    return Amount(expected, expected - below, expected + above)


def bill_training(time_s: Amount, nodes: int, charges: Charges, power: NodePower | None) -> Bill:
    """Node-hours of a training, and the energy, emissions and price that follow from them.

    Counted: all nodes for the whole time; the centre's overhead (PUE); stated prices per node-hour
    and per kWh. Left out: waiting in queues, making the hardware.
    method.md#energy.

    >>> hour = Amount(3600.0, 1800.0, 7200.0)
    >>> bill = bill_training(hour, 2, Charges(carbon_g_per_kwh=500.0), None)
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
    """Return the energy of node-hours; relative errors of time and power add as squares."""
    mean = float(energy_kwh(hours.expected, power.watts, pue))
    if not mean:
        return Amount(0.0, 0.0, 0.0)
    below = math.hypot(1 - hours.low / hours.expected, 1 - power.low_watts / power.watts)
    above = math.hypot(hours.high / hours.expected - 1, power.high_watts / power.watts - 1)
    return Amount(mean, mean * max(1 - below, 0.0), mean * (1 + above))

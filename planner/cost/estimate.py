"""Estimate: memory and step time of layouts, by named part."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self, get_args

import numpy as np

from planner.cost.arrays import Arrays, Float, Int, broadcast_to, map_in_batches
from planner.cost.memory.footprint import Footprints, check_figures, footprints_of
from planner.cost.memory.phases import MOMENTS
from planner.cost.operators.blocks import blocks_of
from planner.cost.operators.operations import model_flop
from planner.cost.parts import TIME_CAUSES, TIME_PARTS, TimeCause, part
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.shards.tensor_split import kept_share
from planner.cost.step.step import time_parts
from planner.cost.uncertainty import exceeding_probability, memory_outlook, step_outlook
from planner.describe.layout import Layout
from planner.tables import Record, Table, Tabular

EstimateTable = Literal["estimate", "parts"]
"""Tables of an estimate: `estimate` has one row of all figures, `parts` one row per part."""


@dataclass(frozen=True, slots=True)
class Estimate(Tabular[EstimateTable]):
    """Estimate of one layout, as plain numbers."""

    layout: Layout
    framework: str
    fits: bool
    tight: bool
    """True if the estimate fits the device but the upper end of its memory interval does not."""
    out_of_memory_probability: float
    """Probability that a run exceeds the device's memory, from the spread of measured runs."""
    step_time_s: float
    interval_step_time_s: tuple[float, float]
    """Interval in which 90 % of runs are expected [s]."""
    step_time_parts_s: dict[str, float]
    tokens_per_s: float
    mfu: float
    memory_bytes: dict[str, float]
    """Memory by part at the peak of the worst stage, and `total`."""
    interval_memory_bytes: tuple[float, float]
    """Interval in which the device memory of 90 % of runs is expected [B]."""
    worst_stage: int
    peak_moment: str
    """Moment of the step at which memory peaks: one of MOMENTS."""
    host_memory_bytes: dict[str, float]
    """Host memory per node by part, and `total`."""
    network: str = ""
    """Network of the estimate, if the machine has several and the layout spans nodes."""

    def record(self) -> Record:
        """Return the estimate as one flat row for CSV or data frames; names end in units."""
        layout = self.layout.model_dump(mode="json")
        return {
            "framework": self.framework,
            **{k: "+".join(v) if isinstance(v, list) else v for k, v in layout.items()},
            "fits": self.fits,
            "tight": self.tight,
            "out_of_memory_probability": self.out_of_memory_probability,
            "step_time_s": self.step_time_s,
            "step_time_low_s": self.interval_step_time_s[0],
            "step_time_high_s": self.interval_step_time_s[1],
            "memory_low_bytes": self.interval_memory_bytes[0],
            "memory_high_bytes": self.interval_memory_bytes[1],
            "mfu": self.mfu,
            "tokens_per_s": self.tokens_per_s,
            "network": self.network,
            **{f"time_{k}_s": v for k, v in self.step_time_parts_s.items()},
            **{f"memory_{k}_bytes": v for k, v in self.memory_bytes.items()},
            **{f"host_{k}_bytes": v for k, v in self.host_memory_bytes.items()},
        }

    def tables(self) -> dict[str, Table]:
        """Return a table of the estimate as one row, and one with a row per part."""
        figures = {
            "step time": ("s", self.step_time_parts_s),
            "device memory": ("B", self.memory_bytes),
            "host memory": ("B", self.host_memory_bytes),
        }
        parts = tuple(
            {
                "figure": figure,
                "part": name,
                "label": part(name).label,
                "value": value,
                "unit": unit,
            }
            for figure, (unit, values) in figures.items()
            for name, value in values.items()
            if value and name != "total"
        )
        return {"estimate": Table((self.record(),)), "parts": Table(parts)}


@dataclass(frozen=True)
class Estimates(Footprints):
    """Memory and step time of many layouts, by part; arrays over the layouts."""

    time_parts_s: dict[str, Float]
    tokens_per_step: int | Int
    """Of all layouts, or of each."""
    model_flop: Float
    peak_flop_per_s: float
    scenario: Scenario

    @functools.cached_property
    def step_time_s(self) -> Float:
        """Sum of the time parts [s]."""
        return np.asarray(sum(self.time_parts_s.values()))

    @functools.cached_property
    def out_of_memory_probability(self) -> Float:
        """Probability that a run exceeds the device's memory [1]."""
        room = self.device_limit_bytes / np.maximum(self.memory_bytes, 1.0)
        return exceeding_probability(self.scenario, self.layouts, room)

    @property
    def mfu(self) -> Float:
        """Model FLOPs utilisation: operations (full attention) over time * ranks * dense peak."""
        available = self.step_time_s * self.layouts.world * self.peak_flop_per_s
        return self.model_flop / available

    def of_scenario(self, scenario: Scenario, tokens_per_step: int | Int | None = None) -> Self:
        """Estimates of a scenario that was estimated with one of another batch, or of several."""
        tokens = scenario.workload.tokens_per_step if tokens_per_step is None else tokens_per_step
        flop = _model_flop(scenario, self.layouts, tokens)
        return replace(self, scenario=scenario, tokens_per_step=tokens, model_flop=flop)

    def __getitem__(self, index: int) -> Estimate:
        return self.rows([index])[0]

    def rows(self, indices: Sequence[int] | Int) -> list[Estimate]:
        """Estimates of the layouts at `indices`, as plain numbers."""
        flat = self if np.ndim(self.layouts.dp) == 1 else self.map(np.ravel)
        if self.scenario.experience.is_known and len(indices) > 1:
            # products of matrices of another size differ in their last digits
            return [flat[int(index)] for index in indices]
        return flat.take(np.asarray(indices, dtype=np.int64))._plain()

    def _plain(self) -> list[Estimate]:
        scenario, layouts, memory = self.scenario, self.layouts, self.memory_bytes
        room, spread = self.device_limit_bytes / memory, memory_outlook(scenario, layouts)
        is_tight = self.fits & (spread.high / spread.expected > room)
        moments, names = tuple(MOMENTS), itertools.repeat(scenario.framework.name)
        return list(
            map(
                Estimate,
                layouts,
                names,
                self.fits.tolist(),
                is_tight.tolist(),
                exceeding_probability(scenario, layouts, room).tolist(),
                self.step_time_s.tolist(),
                step_outlook(scenario, layouts, self.time_parts_s).intervals(self.step_time_s),
                _by_row(self.time_parts_s),
                (self.tokens_per_step / self.step_time_s).tolist(),
                self.mfu.tolist(),
                _by_row({**self.memory_parts_bytes, "total": memory}),
                spread.intervals(memory),
                self.worst_stage.tolist(),
                (moments[number] for number in self.peak_moment.tolist()),
                _by_row({**self.host_parts_bytes, "total": self.host_memory_bytes}),
                map(self._network, layouts),
            )
        )

    def _network(self, layout: Layout) -> str:
        machine = self.scenario.machine
        across = layout.world > machine.node.num_devices
        return machine.network.name if machine.networks and machine.network and across else ""


def _by_row(parts: dict[str, Float]) -> list[dict[str, float]]:
    columns = (np.asarray(values, dtype=float).tolist() for values in parts.values())
    return [dict(zip(parts, row, strict=True)) for row in zip(*columns, strict=True)]


def estimate_layouts(scenario: Scenario, layouts: Layouts) -> Estimates:
    """Estimate memory and step time of every layout.

    Counted: see DEVICE_PARTS, HOST_PARTS and TIME_PARTS. Left out: evaluation, checkpoints, data
    loading, stragglers. method.md#method.
    """

    def estimate_batch(batch: Layouts) -> Estimates:
        stages = Stages.candidates(scenario, batch)
        return _timed(stages, footprints_of(stages))

    return (
        map_in_batches(estimate_batch, layouts, len(layouts))
        if np.ndim(layouts.dp) == 1
        else estimate_batch(layouts)
    )


@dataclass(frozen=True, slots=True)
class _Fitting(Arrays):
    """Memory of all layouts, and full estimates of those that fit."""

    footprints: Footprints
    estimates: Estimates


def estimate_fitting(scenario: Scenario, layouts: Layouts) -> tuple[Footprints, Estimates]:
    """Estimate the memory of all layouts, and the step time of those that fit.

    Counted: as `estimate_layouts`. Left out: times of layouts that do not fit. search.md#search.
    """

    def estimate_batch(batch: Layouts) -> _Fitting:
        stages = Stages.candidates(scenario, batch)
        footprints = footprints_of(stages)
        rows = np.flatnonzero(footprints.fits)
        return _Fitting(footprints, _timed(stages.rows(rows), footprints.take(rows)))

    result = map_in_batches(estimate_batch, layouts, len(layouts))
    return result.footprints, result.estimates


def estimate_times(scenario: Scenario, footprints: Footprints) -> Estimates:
    """Add step times to footprints.

    Counted: TIME_PARTS. Left out: as `estimate_layouts`. search.md#search.
    """
    return map_in_batches(
        lambda batch: _timed(Stages.candidates(scenario, batch.layouts), batch),
        footprints,
        len(footprints),
    )


def step_times(scenario: Scenario, layouts: Layouts) -> Float:
    """Step times of layouts, whether or not they fit [s].

    Counted: TIME_PARTS. Left out: memory. search.md#search.
    """
    if not len(layouts):
        return np.zeros(0)
    parts = _as_measured(scenario, layouts, time_parts(Stages.candidates(scenario, layouts)))
    return np.asarray(sum(parts.values()))


def _timed(stages: Stages, footprints: Footprints) -> Estimates:
    scenario = stages.scenario
    machine, workload = scenario.machine, scenario.workload
    shape = np.shape(footprints.layouts.dp)
    # a search may pass an empty set of layouts
    no_parts: dict[str, Float] = dict.fromkeys(TIME_PARTS, np.zeros(shape))
    parts = time_parts(stages) if np.size(footprints.layouts.dp) else no_parts
    parts = _as_measured(scenario, footprints.layouts, parts)
    estimates = Estimates(
        **{field.name: getattr(footprints, field.name) for field in fields(footprints)},
        time_parts_s={name: broadcast_to(values, shape) for name, values in parts.items()},
        tokens_per_step=workload.tokens_per_step,
        model_flop=_model_flop(scenario, footprints.layouts, workload.tokens_per_step),
        peak_flop_per_s=machine.peak(workload.base_precision),
        scenario=scenario,
    )
    check_figures(scenario, estimates.step_time_s)
    return estimates


def _model_flop(scenario: Scenario, layouts: Layouts, tokens_per_step: int | Int) -> Float:
    workload, shape = scenario.workload, np.shape(layouts.dp)
    share = kept_share(workload, layouts)
    flop = model_flop(blocks_of(scenario), workload, share, tokens_per_step)
    return broadcast_to(flop, shape)


def _as_measured(
    scenario: Scenario, layouts: Layouts, parts_s: dict[str, Float]
) -> dict[str, Float]:
    """Correct the parts of the step time by what measured runs say of their causes [s]."""
    if scenario.experience.step_time is None or not np.size(layouts.dp):
        return parts_s
    by_cause = step_outlook(scenario, layouts, parts_s).by_cause
    factors = dict(zip(get_args(TimeCause), by_cause.T, strict=True))
    shape = np.shape(layouts.dp)
    return {
        name: values * factors[TIME_CAUSES[name]].reshape(shape) for name, values in parts_s.items()
    }

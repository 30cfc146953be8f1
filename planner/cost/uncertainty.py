"""Uncertainty: the spread of measured runs around their estimates."""

import math
from collections.abc import Mapping
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from planner.cost.arrays import Float
from planner.cost.parts import TIME_CAUSES, TimeCause
from planner.cost.scenario import Scenario
from planner.cost.scenario.experience import Outlook, outlook
from planner.cost.scenario.prior import (
    GAUSSIAN,
    MemoryClass,
    Traits,
    memory_class,
    memory_spread,
    priors,
)
from planner.cost.shards.layouts import Layouts
from planner.describe.base import Kind
from planner.describe.framework.kernel_releases import architecture_of


def traits_of(
    scenario: Scenario, layouts: Layouts, parts_s: Mapping[str, ArrayLike], *, guessed: bool = False
) -> Traits:
    """Error-model traits of layouts (n,); their step-time parts `parts_s` (n,) may be empty [s].

    Counted: every trait that the covariance of `planner.cost.scenario.prior` uses. Left out: the
    number format, which has its own rates. intervals.md#intervals.
    """
    model, machine, framework = scenario.model, scenario.machine, scenario.framework
    layouts = layouts if np.ndim(layouts.dp) == 1 else layouts.map(np.ravel)
    n = len(layouts)
    seconds = {cause: np.zeros(n) for cause in get_args(TimeCause)}
    for name, part_s in parts_s.items():
        seconds[TIME_CAUSES[name]] += np.ravel(part_s)
    by_cause = np.stack(list(seconds.values()), axis=-1)
    total = by_cause.sum(axis=-1, keepdims=True)

    def column(value: float | bool) -> Float:
        return np.full(n, float(value))

    replicas = layouts.dp * layouts.cp
    degrees = (layouts.tp, layouts.pp, layouts.ep, layouts.micro_batch, replicas)
    recomputes = 2.0 * layouts.recomputes_layers
    inside = layouts.world <= machine.node.num_devices
    prior = priors().step_time
    rate, links = machine.device.sustained_fraction, machine.node.fabric.efficiency
    network = machine.network.efficiency.kind if machine.network else "assumed"
    return Traits(
        shares=by_cause / np.where(total > 0, total, 1.0),
        size=np.log(
            np.stack([column(model.num_params), column(scenario.workload.sequence_length)], axis=-1)
        ),
        shape=np.stack([*(np.log2(degree) for degree in degrees), recomputes], axis=-1),
        assumed_rate=column(_doubt(rate.kind, rate.error / prior.assumed_rate)),
        assumed_links=np.where(
            inside, _doubt(links.kind, links.error / prior.assumed_links), _doubt(network, 0.0)
        ),
        experts=column(model.experts is not None),
        guessed=column(guessed),
        machine=np.full(n, machine.name),
        architecture=np.full(n, architecture_of(machine.device)),
        framework=np.full(n, framework.family),
    )


def _doubt(kind: Kind, error: float) -> float:
    """Error of a fitted figure, 0 if it was measured without a fit, or 1 if nobody measured it."""
    return error if kind in ("calibrated", "measured") else 1.0


def step_outlook(
    scenario: Scenario, layouts: Layouts, parts_s: Mapping[str, ArrayLike], *, guessed: bool = False
) -> Outlook:
    """Expected error and spread of the step times of layouts (n,), from their parts (n,) [s].

    Counted: errors of the estimates of published runs, and the scenario's measured runs. Left out:
    stalls, which are counted separately. intervals.md#intervals.
    """
    runs = traits_of(scenario, layouts, parts_s, guessed=guessed)
    return outlook(priors().step_time, scenario.experience.step_time, runs)


def memory_outlook(scenario: Scenario, layouts: Layouts) -> Outlook:
    """Expected error and spread of the device memory of layouts.

    Counted: quantiles of published runs of the framework's class, times those of unknown blocks
    where nobody read the model's code; or the scenario's measured runs if it has any. Left out:
    runs of the class that were measured by their tensors alone, which need not fit; correlation of
    runs of one source. Vovk et al. 2005; Lei et al. 2018, arXiv:1604.04173;
    intervals.md#intervals.
    """
    measured = scenario.experience.memory
    if measured is not None:
        return outlook(priors().memory, measured, traits_of(scenario, layouts, {}))
    quantiles, unbiased = _memory_spread(scenario), np.ones(len(layouts))
    low, high = quantiles.low, quantiles.high
    spread = math.log(high / low) / (2 * GAUSSIAN)
    by_cause = np.ones((len(layouts), len(get_args(TimeCause))))
    return Outlook(unbiased, by_cause, unbiased * low, unbiased * high, unbiased * spread)


def exceeding_probability(scenario: Scenario, layouts: Layouts, room: ArrayLike) -> Float:
    """Probability that a run takes more than `room` times its expected memory [1].

    Counted: measured / estimated of the class's runs that no fit has used, interpolated in the
    logarithm, with 1/(n + 1) beyond all n runs; with measured runs of the scenario, a Gaussian of
    the logarithm. Left out: correlation of runs of one source. intervals.md#intervals.
    """
    if scenario.experience.memory is not None:
        spread = memory_outlook(scenario, layouts).spread
        deviations = np.log(room) / np.reshape(spread, np.shape(room))
        return np.vectorize(math.erfc, otypes=[float])(deviations / math.sqrt(2)) / 2
    spread_of = _memory_spread(scenario)
    return 1 - np.interp(np.log(room), np.log(spread_of.ratios), spread_of.parts)


def _memory_spread(scenario: Scenario) -> MemoryClass:
    name = memory_class(scenario.framework)
    return memory_spread(name, knows_blocks=scenario.knows_blocks)

"""Infeasibility: name the rule that leaves a strategy without a legal layout.

The strategy's layouts are written down whether legal or not; the one that breaks the fewest rules
names the obstacle, in the words of its first broken rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from planner.choose.legality import RULES
from planner.choose.search import TILES
from planner.choose.verdicts.strategies import Strategy
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.framework.switches import strip_switches
from planner.describe.layout import OFFLOAD, SCHEDULES, divisors
from planner.units import counted, joined

__all__ = ["explain_infeasibility", "strategy_frameworks"]

_MAX_LAYOUTS = 2000
"""Layouts to check, those of the most even degrees: others are no nearer to legal."""


def strategy_frameworks(strategy: Strategy, names: Iterable[str], chosen: bool) -> list[str]:
    """The frameworks to look for a strategy in: those known for it, else all that the user named.

    >>> from planner.choose.verdicts.strategies import CLASSIC
    >>> strategy_frameworks(CLASSIC[1], ["ddp", "fsdp2"], chosen=False)
    ['ddp']
    >>> strategy_frameworks(CLASSIC[1], ["horovod"], chosen=True)
    ['horovod']
    >>> strategy_frameworks(CLASSIC[1], ["fsdp2", "ddp+compile"], chosen=True)
    ['ddp+compile']
    """
    available = list(names)
    usual = [
        name for each in strategy.frameworks for name in available if strip_switches(name) == each
    ]
    return usual or (available if chosen else [])


def explain_infeasibility(
    strategy: Strategy, scenarios: Mapping[str, Scenario], world: int, chosen: bool
) -> str:
    """Explain as part of a sentence why a strategy has no legal layout over `world` devices."""
    first = next(iter(scenarios.values()))
    layouts = _strategy_layouts(strategy, first, world)
    if not len(layouts):
        return f"needs {strategy.needs}; the job has {counted(world, 'device')}"
    names = strategy_frameworks(strategy, scenarios, chosen)
    obstacles = [_nearest_to_legal(scenarios[name], layouts) for name in names]
    reason = min(obstacles, default=(0, ""))[1]
    absent = _absent_frameworks(strategy, scenarios, layouts, chosen)
    return "; ".join(part for part in (reason, *absent) if part)


def _nearest_to_legal(scenario: Scenario, layouts: Layouts) -> tuple[int, str]:
    """How many rules the most nearly legal layout breaks, and the message of the first."""
    layouts = _completed(scenario, layouts)
    holds = np.array([np.broadcast_to(r.holds(scenario, layouts), len(layouts)) for r in RULES])
    num_broken = np.count_nonzero(~holds, axis=0)
    best = int(np.argmin(num_broken))
    if not num_broken[best]:
        return 0, f"{scenario.framework.name} has legal layouts, but none worth searching"
    rule = RULES[int(np.argmin(holds[:, best]))]
    # without the remedy, which would make it another strategy
    return int(num_broken[best]), rule.message(scenario, layouts[best]).partition(";")[0]


def _strategy_layouts(strategy: Strategy, scenario: Scenario, world: int) -> Layouts:
    """The strategy's layouts over the devices, legal or not, the most even degrees first."""
    world = 1 if strategy.single else world
    per_node, batch = scenario.machine.node.num_devices, scenario.workload.global_batch
    pairs = [(tp, pp) for tp in divisors(world) for pp in divisors(world // tp)]
    degrees, zero, offload, grouped, tiles = (
        column.ravel()
        for column in np.meshgrid(
            range(len(pairs)), range(4), range(len(OFFLOAD)), (0, 1), (1, TILES[0]), indexing="ij"
        )
    )
    tp, pp = np.array(pairs).T[:, degrees]
    dp = world // (tp * pp)
    # a group of one rank shards nothing
    group = per_node if per_node > 1 else 2
    layouts = Layouts.broadcast(
        dp=dp,
        dp_shard=np.where((grouped > 0) & (dp % group == 0), group, dp),
        tp=tp,
        pp=pp,
        zero_stage=zero,
        offload=offload,
        tiles=tiles,
        grad_accumulation=np.maximum(batch // dp, 1),
        schedule=np.where(pp > 1, SCHEDULES.index("1f1b"), SCHEDULES.index("none")),
    )
    # sharding over one replica is none, but offload and tiles need a ZeRO stage
    is_idle = (dp == 1) & layouts.shards_states & layouts.keeps_states & (tiles == 1)
    layouts = layouts.take(np.flatnonzero(~is_idle & strategy.holds(layouts)))
    most_even = np.argsort(np.maximum(layouts.tp, layouts.pp), kind="stable")
    return layouts.take(most_even[:_MAX_LAYOUTS])


def _completed(scenario: Scenario, layouts: Layouts) -> Layouts:
    """The layouts with the framework's own schedule and sequence parallelism."""
    framework = scenario.framework
    plain = [name for name in framework.schedules if name in ("1f1b", "gpipe")]
    schedule = SCHEDULES.index(plain[-1] if plain else "1f1b")
    with_tp = framework.sequence_parallel == "with-tp"
    return replace(
        layouts,
        schedule=np.where(layouts.piped, schedule, layouts.schedule),
        sequence_parallel=np.where(layouts.tp > 1, int(with_tp), 0),
    )


def _absent_frameworks(
    strategy: Strategy, scenarios: Mapping[str, Scenario], layouts: Layouts, chosen: bool
) -> list[str]:
    """Frameworks that have such layouts but are not searched, by the reason."""
    first = next(iter(scenarios.values()))
    runtime = first.machine.device.runtime
    searched = {scenario.framework.family for scenario in scenarios.values()}
    names: dict[str, list[str]] = {}
    for name in strategy.frameworks:
        framework = load_framework(name)
        scenario = replace(first, framework=framework)
        if name in searched or _nearest_to_legal(scenario, layouts)[0]:
            continue
        if runtime not in framework.runtimes:
            reason = f"no {{}} on {runtime} devices"
        elif chosen:
            reason = "-f leaves out {}"
        elif lacks := framework.code.lacks(first.model, first.workload):
            reason = f"no files can be written for {{}}: {lacks}"
        else:
            continue
        names.setdefault(reason, []).append(name)
    return [reason.format(joined(each)) for reason, each in names.items()]

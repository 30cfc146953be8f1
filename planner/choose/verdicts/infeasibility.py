"""Obstacles: why a strategy has no legal layout, from the rules that its layouts break.

Its layouts over the devices are written down without regard to what is allowed; the one that breaks
the fewest rules says what is in the way, in the words of the rule.
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
from planner.describe.framework.switches import family
from planner.describe.layout import OFFLOAD, SCHEDULES, divisors
from planner.units import counted, joined

__all__ = ["explain_infeasibility", "strategy_frameworks"]

_MOST = 2000
# of the layouts, those of the most even degrees: no others are nearer to what is allowed


def strategy_frameworks(strategy: Strategy, names: Iterable[str], chosen: bool) -> list[str]:
    """The frameworks in which a strategy is looked for: those known for it, or all that were named.

    >>> from planner.choose.verdicts.strategies import CLASSIC
    >>> strategy_frameworks(CLASSIC[1], ["ddp", "fsdp2"], chosen=False)
    ['ddp']
    >>> strategy_frameworks(CLASSIC[1], ["horovod"], chosen=True)
    ['horovod']
    >>> strategy_frameworks(CLASSIC[1], ["fsdp2", "ddp+compile"], chosen=True)
    ['ddp+compile']
    """
    here = list(names)
    known = [name for one in strategy.frameworks for name in here if family(name) == one]
    return known or (here if chosen else [])


def explain_infeasibility(
    strategy: Strategy, scenarios: Mapping[str, Scenario], world: int, chosen: bool
) -> str:
    """Why a strategy has no legal layout over `world` devices, as part of a sentence."""
    any_question = next(iter(scenarios.values()))
    layouts = _written(strategy, any_question, world)
    if not len(layouts):
        return f"needs {strategy.needs}; the job has {counted(world, 'device')}"
    names = strategy_frameworks(strategy, scenarios, chosen)
    said = min((_least_broken(scenarios[name], layouts) for name in names), default=(0, ""))[1]
    absent = _absent(strategy, scenarios, layouts, chosen)
    return "; ".join(part for part in (said, *absent) if part)


def _least_broken(scenario: Scenario, layouts: Layouts) -> tuple[int, str]:
    """How many rules the most nearly legal layout breaks, and which is the first of them."""
    layouts = _in_words_of(scenario, layouts)
    holds = np.array([np.broadcast_to(r.holds(scenario, layouts), len(layouts)) for r in RULES])
    broken = np.count_nonzero(~holds, axis=0)
    best = int(np.argmin(broken))
    if not broken[best]:
        return 0, f"{scenario.framework.name} has some, but none that is worth searching"
    rule = RULES[int(np.argmin(holds[:, best]))]
    # the remedy is for a layout that somebody asks for; here it would be another strategy
    return int(broken[best]), rule.message(scenario, layouts[best]).partition(";")[0]


def _written(strategy: Strategy, scenario: Scenario, world: int) -> Layouts:
    """The strategy's layouts over the devices, legal or not, the most even degrees first."""
    world = 1 if strategy.single else world
    ways = divisors(world)
    per_node, batch = scenario.machine.node.num_devices, scenario.workload.global_batch
    pairs = [(t, p) for t in ways for p in divisors(world // t)]
    degrees, zero, offload, grouped, tiles = (
        column.ravel()
        for column in np.meshgrid(
            range(len(pairs)), range(4), range(len(OFFLOAD)), (0, 1), (1, TILES[0]), indexing="ij"
        )
    )
    tp, pp = np.array(pairs).T[:, degrees]
    dp = world // (tp * pp)
    # groups of one are none
    least = per_node if per_node > 1 else 2
    group = np.where((grouped > 0) & (dp % least == 0), least, dp)
    layouts = Layouts.broadcast(
        dp=dp,
        dp_shard=group,
        tp=tp,
        pp=pp,
        zero_stage=zero,
        offload=offload,
        tiles=tiles,
        grad_accumulation=np.maximum(batch // dp, 1),
        schedule=np.where(pp > 1, SCHEDULES.index("1f1b"), SCHEDULES.index("none")),
    )
    # sharding over one replica is no sharding, but offload and tiles ask for a stage
    idle = (dp == 1) & layouts.shards_states & layouts.keeps_states & (tiles == 1)
    some = layouts.take(np.flatnonzero(~idle & strategy.holds(layouts)))
    return some.take(np.argsort(np.maximum(some.tp, some.pp), kind="stable")[:_MOST])


def _in_words_of(scenario: Scenario, layouts: Layouts) -> Layouts:
    """The layouts with what follows from the framework: its schedule, sequence parallelism."""
    framework = scenario.framework
    plain = [name for name in framework.schedules if name in ("1f1b", "gpipe")]
    schedule = SCHEDULES.index(plain[-1] if plain else "1f1b")
    with_tp = framework.sequence_parallel == "with-tp"
    return replace(
        layouts,
        schedule=np.where(layouts.piped, schedule, layouts.schedule),
        sequence_parallel=np.where(layouts.tp > 1, int(with_tp), 0),
    )


def _absent(
    strategy: Strategy, scenarios: Mapping[str, Scenario], layouts: Layouts, chosen: bool
) -> list[str]:
    """Frameworks of the strategy that have such layouts but are not searched, by the reason."""
    any_question = next(iter(scenarios.values()))
    model, machine, workload = any_question.model, any_question.machine, any_question.workload
    searched = {scenario.framework.family for scenario in scenarios.values()}
    names: dict[str, list[str]] = {}
    for name in strategy.frameworks:
        framework = load_framework(name)
        scenario = replace(any_question, framework=framework)
        if name in searched or _least_broken(scenario, layouts)[0]:
            continue
        lacks = framework.code.lacks(model, workload)
        if machine.device.runtime not in framework.runtimes:
            why = f"no {{}} on {machine.device.runtime} devices"
        elif chosen:
            why = "-f leaves out {}"
        elif lacks:
            why = f"no files can be written for {{}}: {lacks}"
        else:
            continue
        names.setdefault(why, []).append(name)
    return [why.format(joined(found)) for why, found in names.items()]

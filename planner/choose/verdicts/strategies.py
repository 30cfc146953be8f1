"""Strategies: the classic ones as conditions on layouts, and why one has no legal layout."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.choose.legality import RULES
from planner.choose.search import TILES
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework
from planner.describe.framework.switches import strip_switches
from planner.describe.layout import OFFLOAD, SCHEDULES, divisors
from planner.units import counted, joined

_MAX_LAYOUTS = 2000
"""Most layouts to check, most even degrees first: the others are no closer to legal."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A classic strategy: its name, preferred frameworks in order, and a test of layouts."""

    name: str
    frameworks: tuple[str, ...]
    holds: Callable[[Layouts], Mask]
    needs: str = "several devices"
    """Devices that a job must have to use it."""
    single: bool = False
    """Whether it uses one device only."""
    of_sharded: Callable[[Scenario, Layouts], Layouts] | None = None
    """Derives its layouts from layouts with sharded weights, if the search has none."""


def _no_model_parallel(x: Layouts) -> Mask:
    return (x.tp == 1) & (x.pp == 1) & (x.cp == 1) & (x.ep == 1)


def _resident(x: Layouts) -> Mask:
    return _no_model_parallel(x) & x.keeps_states & (x.tiles == 1)


def _data_parallel(x: Layouts) -> Mask:
    return _resident(x) & (x.dp > 1)


def _unsharded(x: Layouts) -> Mask:
    return (x.cp == 1) & ~x.shards_states & x.keeps_states


def _model_parallel(x: Layouts) -> Mask:
    return (x.tp > 1) & x.piped & (x.cp == 1) & x.keeps_states


_MODEL_PARALLEL = ("megatron-lm", "megatron-deepspeed", "fsdp2")

CLASSIC: tuple[Strategy, ...] = (
    Strategy(
        "single device",
        ("ddp", "deepspeed"),
        lambda x: _resident(x) & ~x.shards_states,
        "one device",
        single=True,
    ),
    Strategy("DDP", ("ddp",), lambda x: _data_parallel(x) & ~x.shards_states),
    Strategy("ZeRO-1", ("deepspeed",), lambda x: _data_parallel(x) & (x.zero_stage == 1)),
    Strategy("ZeRO-2", ("deepspeed",), lambda x: _data_parallel(x) & (x.zero_stage == 2)),
    Strategy(
        "ZeRO-3 / FSDP",
        ("fsdp2", "deepspeed"),
        lambda x: _data_parallel(x) & x.shards_weights & (x.dp_shard == x.dp),
    ),
    Strategy(
        "hybrid FSDP",
        ("fsdp2",),
        lambda x: _data_parallel(x) & x.shards_weights & (x.dp_shard < x.dp) & (x.dp_shard > 1),
        "several nodes that groups of whole nodes divide",
        # groups inside nodes, without offload
        of_sharded=lambda scenario, x: replace(
            x,
            offload=np.zeros(len(x), dtype=np.int64),
            dp_shard=np.gcd(x.dp, scenario.machine.node.num_devices),
        ),
    ),
    Strategy(
        "ZeRO + CPU offload",
        ("deepspeed",),
        lambda x: _no_model_parallel(x) & x.states_on_host & (x.tiles == 1),
        "one device",
    ),
    Strategy(
        "ZeRO + NVMe offload",
        ("deepspeed",),
        lambda x: _no_model_parallel(x) & x.states_on_disk & (x.tiles == 1),
        "one device",
    ),
    Strategy(
        "ZeRO-3 in tiles",
        ("deepspeed",),
        lambda x: _no_model_parallel(x) & x.shards_weights & (x.tiles > 1),
        "one device",
        # the largest matrix in tiles
        of_sharded=lambda _, x: Layouts.joined(
            [replace(x, tiles=np.full(len(x), count)) for count in TILES]
        ),
    ),
    Strategy("TP", _MODEL_PARALLEL, lambda x: _unsharded(x) & (x.tp > 1) & ~x.piped),
    Strategy("PP", _MODEL_PARALLEL, lambda x: _unsharded(x) & (x.tp == 1) & x.piped),
    Strategy(
        "TP + PP",
        _MODEL_PARALLEL,
        lambda x: _model_parallel(x) & (x.dp == 1),
        "devices that are a product of two degrees above one",
    ),
    Strategy(
        "3D (TP + PP + DP)",
        _MODEL_PARALLEL,
        lambda x: _model_parallel(x) & (x.dp > 1),
        "devices that are a product of three degrees above one",
    ),
)


def strategy_frameworks(strategy: Strategy, names: Iterable[str], chosen: bool) -> list[str]:
    """Frameworks to judge a strategy in: its own, else all if the user chose them."""
    available = list(names)
    usual = [
        name for each in strategy.frameworks for name in available if strip_switches(name) == each
    ]
    return usual or (available if chosen else [])


def explain_infeasibility(
    strategy: Strategy, scenarios: Mapping[str, Scenario], world: int, chosen: bool
) -> str:
    """Explain why a strategy has no legal layout on `world` devices, as part of a sentence."""
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
    """Fewest rules that any of the layouts breaks, and the message of the first one."""
    layouts = _completed(scenario, layouts)
    holds = np.array([np.broadcast_to(r.holds(scenario, layouts), len(layouts)) for r in RULES])
    num_broken = np.count_nonzero(~holds, axis=0)
    best = int(np.argmin(num_broken))
    if not num_broken[best]:
        return 0, f"{scenario.framework.name} has legal layouts, but the search skips them"
    rule = RULES[int(np.argmin(holds[:, best]))]
    # leave out the remedy, which would change the strategy
    return int(num_broken[best]), rule.message(scenario, layouts[best]).partition(";")[0]


def _strategy_layouts(strategy: Strategy, scenario: Scenario, world: int) -> Layouts:
    """Build the strategy's layouts on the devices, legal or not, most even degrees first."""
    world = 1 if strategy.single else world
    per_node, batch = scenario.machine.node.num_devices, scenario.workload.global_batch
    pairs = [(tp, pp) for tp in divisors(world) for pp in divisors(world // tp)]
    choices = range(len(pairs)), range(4), range(len(OFFLOAD)), (0, 1), (1, TILES[0])
    degrees, zero, offload, grouped, tiles = map(np.ravel, np.meshgrid(*choices, indexing="ij"))
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
    # sharding over one replica does nothing, but offload and tiles need a ZeRO stage
    is_idle = (dp == 1) & layouts.shards_states & layouts.keeps_states & (tiles == 1)
    layouts = layouts.take(np.flatnonzero(~is_idle & strategy.holds(layouts)))
    most_even = np.argsort(np.maximum(layouts.tp, layouts.pp), kind="stable")
    return layouts.take(most_even[:_MAX_LAYOUTS])


def _completed(scenario: Scenario, layouts: Layouts) -> Layouts:
    """Set the framework's pipeline schedule and sequence parallelism."""
    plain = [name for name in scenario.framework.schedules if name in ("1f1b", "gpipe")]
    schedule = SCHEDULES.index(plain[-1] if plain else "1f1b")
    with_tp = scenario.framework.sequence_parallel == "by-default"
    return replace(
        layouts,
        schedule=np.where(layouts.piped, schedule, layouts.schedule),
        sequence_parallel=np.where(layouts.tp > 1, int(with_tp), 0),
    )


def _absent_frameworks(
    strategy: Strategy, scenarios: Mapping[str, Scenario], layouts: Layouts, chosen: bool
) -> list[str]:
    """Name frameworks that allow the layouts but are not searched, with the reason."""
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
            reason = "the chosen frameworks leave out {}"
        elif lacks := framework.code.lacks(first.model, first.workload):
            reason = f"no files can be written for {{}}: {lacks}"
        else:
            continue
        names.setdefault(reason, []).append(name)
    return [reason.format(joined(each)) for reason, each in names.items()]

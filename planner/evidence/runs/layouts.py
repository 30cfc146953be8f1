"""Layouts of runs: degrees, batches and choices from the cells of a row.

What is stated must be consistent; what is missing follows from the rest or is filled by a
default that the row then carries.
"""

from __future__ import annotations

from planner.describe.framework import Framework
from planner.describe.layout import Layout
from planner.errors import PlannerError, shorten
from planner.evidence.runs.cells import Cells
from planner.evidence.runs.frameworks import OPTIMIZER_SHARDED, FrameworkRule, published_schedule
from planner.evidence.runs.labels import normalised

__all__ = ["layout_is_stated", "layout_of", "usual_batch"]


_USUAL_TOKENS = 2**22
"""Tokens per step of large models: 3.2 to 4 million in GPT-3 (arXiv:2005.14165, table 2.1),
LLaMA (arXiv:2302.13971, table 2) and BLOOM (arXiv:2211.05100, table 3)."""


def layout_is_stated(cells: Cells, framework: Framework) -> bool:
    """Whether a row tells its degrees, or its framework leaves no choice."""
    only_data = not {"tp", "pp"} & set(framework.axes) or framework.balance == "ends-as-layers"
    return only_data or any(cells.count(axis) is not None for axis in ("dp", "tp", "pp"))


def usual_batch(cells: Cells, multiple: int) -> int:
    """Stated global batch, else about four million tokens, as a multiple of `multiple`.

    PlannerError where a time was measured that depends on it.
    """
    stated = cells.count("global_batch")
    if stated is not None:
        return stated
    if not _rate_is_stated(cells) or cells.number("step_time_s") is not None:
        raise PlannerError(
            "global_batch and grad_accum are empty, and the step depends on them; fill one in"
        )
    batch = -(-_USUAL_TOKENS // cells.need("seq_len") // multiple) * multiple
    return cells.default(batch, f"global_batch missing: {batch}, about 4 million tokens")


def _rate_is_stated(cells: Cells) -> bool:
    rates = ("tokens_per_s_per_gpu", "samples_per_s")
    return any(cells.number(column) is not None for column in rates)


def layout_of(
    cells: Cells, rule: FrameworkRule, framework: Framework, num_ranks: int
) -> tuple[Layout, int]:
    """Layout and global batch of a row. PlannerError where the cells contradict each other."""
    degrees = _degrees(cells, num_ranks)
    micro, accumulation, batch = _batches(cells, rule, degrees["dp"], degrees["pp"])
    vpp = cells.count("vpp")
    if vpp is None:
        published = published_schedule(cells.text("model"), rule.framework)
        vpp = published[1] if published and degrees["pp"] > 1 else 1
        if vpp > 1:
            cells.assumed.append(f"vpp missing: {vpp} as in the published script")
    ep = cells.count("ep") or 1
    if degrees["dp"] * degrees["cp"] % ep:
        raise PlannerError(
            f"ep = {ep} must divide dp * cp = {degrees['dp'] * degrees['cp']}; expert groups that "
            "span tp are not modelled"
        )
    schedule = "none" if degrees["pp"] == 1 else "interleaved-1f1b" if vpp > 1 else "1f1b"
    layout = Layout.described(
        {
            **degrees,
            "vpp": vpp if degrees["pp"] > 1 else 1,
            "ep": ep,
            "micro_batch": micro,
            "grad_accumulation": accumulation,
            "schedule": schedule,
            "zero_stage": _zero_stage(cells, rule, framework, degrees["pp"]),
            "sequence_parallel": _sequence_parallel(cells, rule, framework, degrees["tp"]),
            "recompute": _recompute(cells, rule),
            "offload": _offload(cells),
        },
        where="layout",
    )
    return layout, batch


def _degrees(cells: Cells, num_ranks: int) -> dict[str, int]:
    stated = {axis: cells.count(axis) for axis in ("dp", "tp", "pp", "cp")}
    degrees = {axis: value or 1 for axis, value in stated.items()}
    rest = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if stated["dp"] is None:
        if num_ranks % rest:
            raise PlannerError(
                f"tp * pp * cp = {rest} does not divide n_gpus = {num_ranks}; correct one of them"
            )
        text = f"dp missing: n_gpus / (tp * pp * cp) = {num_ranks // rest}"
        degrees["dp"] = cells.default(num_ranks // rest, text)
    world = degrees["dp"] * rest
    if world != num_ranks:
        raise PlannerError(
            f"dp * tp * pp * cp = {world} differs from n_gpus = {num_ranks}; correct one of them"
        )
    return degrees


def _batches(cells: Cells, rule: FrameworkRule, dp: int, pp: int) -> tuple[int, int, int]:
    """Micro-batch, gradient accumulation and global batch, from those of them that are stated."""
    micro, accumulation = cells.count("micro_batch"), cells.count("grad_accum")
    batch = cells.count("global_batch")
    if micro is None and accumulation and batch and batch % (dp * accumulation) == 0:
        micro = batch // (dp * accumulation)
    rate_only = cells.number("step_time_s") is None and _rate_is_stated(cells)
    if batch is None and accumulation is None and (pp > 1 or (micro is None and rate_only)):
        batch = usual_batch(cells, dp * (micro or 1))
    if micro is None:
        micro = _default_micro_batch(cells, rule, dp, pp, batch)
    if batch is None:
        text = "grad_accum missing: 1"
        accumulation = accumulation or cells.default(1, text)
        batch = micro * accumulation * dp
        cells.assumed.append(f"global_batch missing: micro_batch * grad_accum * dp = {batch}")
    if accumulation is None:
        if batch % (micro * dp):
            raise PlannerError(
                f"micro_batch * dp = {micro * dp} does not divide global_batch = {batch}; "
                "correct one of them"
            )
        accumulation = batch // (micro * dp)
    if micro * accumulation * dp != batch:
        if not _rate_is_stated(cells) and not cells.text("oom"):
            raise PlannerError(
                f"micro_batch * grad_accum * dp = {micro * accumulation * dp} differs from "
                f"global_batch = {batch}, and no tokens_per_s_per_gpu tells the time of a step"
            )
        batch = micro * accumulation * dp
        cells.assumed.append(f"global_batch contradicts the layout: {batch}, time from tokens/s")
    return micro, accumulation, batch


def _default_micro_batch(
    cells: Cells, rule: FrameworkRule, dp: int, pp: int, batch: int | None
) -> int:
    published = published_schedule(cells.text("model"), rule.framework)
    if published and batch and batch % (published[0] * dp) == 0:
        return cells.default(
            published[0], f"micro_batch missing: {published[0]} as in the published script"
        )
    if pp > 1 and batch and rule.pipeline_micro_batches:
        one_each = rule.pipeline_micro_batches == "stages" and batch % (dp * pp) == 0
        micro = batch // (dp * pp) if one_each else 1
        why = "as many micro-batches as stages" if one_each else "the framework's default"
        return cells.default(micro, f"micro_batch missing: {micro}, {why}")
    # where nothing limits it, the fastest one is chosen later
    return 1 if batch else cells.default(1, "micro_batch missing: 1")


def _zero_stage(cells: Cells, rule: FrameworkRule, framework: Framework, pp: int) -> int:
    stated = cells.count("zero_stage", zero=True)
    sharding = normalised(cells.text("fsdp_sharding"))
    if not stated and any(word in sharding for word in OPTIMIZER_SHARDED):
        return cells.default(1, f"fsdp_sharding {shorten(sharding, 40)!r} is taken as ZeRO-1")
    if stated == 3 and pp > 1 and framework.balance == "ends-as-layers":
        # resharding after every micro-batch would gather the weights again for each of them
        return cells.default(2, "with a pipeline FSDP keeps weights gathered: ZeRO-2")
    if stated is None:
        stage = rule.zero_stage
        return cells.default(stage, f"zero_stage missing: {stage}, usual with {framework.name}")
    if stated > 3:
        raise PlannerError(f"zero_stage = {stated} must be 0, 1, 2 or 3; correct the cell")
    return stated


def _sequence_parallel(cells: Cells, rule: FrameworkRule, framework: Framework, tp: int) -> bool:
    if tp == 1 or framework.sequence_parallel == "never":
        return False
    stated = cells.flag("sequence_parallel")
    if stated is None:
        usual = framework.sequence_parallel == "with-tp" or rule.sequence_parallel
        word = "yes" if usual else "no"
        return cells.default(usual, f"sequence_parallel missing: {word}, usual there")
    return stated


def _recompute(cells: Cells, rule: FrameworkRule) -> str:
    text = cells.text("recompute").lower()
    if text in ("none", "no", "off"):
        return "none"
    for mode in ("selective", "full"):
        if mode in text:
            return mode
    if text:
        raise PlannerError(
            f"recompute = {shorten(text, 40)!r} is not known; use none, selective or full"
        )
    return cells.default(rule.recompute, f"recompute missing: {rule.recompute}, usual there")


def _offload(cells: Cells) -> str:
    text = cells.text("offload").lower()
    if text in ("", "none", "no"):
        return "none"
    where = "nvme" if "nvme" in text else "cpu"
    return f"all-{where}" if "param" in text else f"optimizer-{where}"

"""Probe: the few small runs of a job that narrow the interval of its step time most."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import check
from planner.choose.preferences import preferences
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario.experience import expected_spread, variance_removed
from planner.cost.scenario.prior import GAUSSIAN, Traits, priors
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import traits_of
from planner.describe.layout import Layout
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.units import counted, format_seconds

STEPS = 30
"""Steps of a run: the first ones warm up."""
LIMIT_S = 600.0
"""Wall time of the job that makes all runs [s]."""
START_S = 90.0  # own choice: processes, groups and a small model start in less
"""Start of a run [s]."""
_MOST_RUNS, _MOST_NODES = 4, 2
_LEAST_GAIN = 0.01  # own choice: share of the first variance that a further run must remove


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One small run of a probe."""

    job: JobSpec
    """The job, with fewer nodes, layers, experts, tokens or sequences."""
    estimate: Estimate

    @property
    def seconds(self) -> float:
        """Time of the run with its start, at the slow end of the interval [s]."""
        return START_S + STEPS * self.estimate.interval_step_time_s[1]

    @property
    def text(self) -> str:
        """The run in one line."""
        model, length = self.job.model, self.job.workload.sequence_length
        experts = f", {model.experts.num_experts} experts" if model.experts else ""
        sizes = f"{counted(self.job.nodes, 'node')}, {counted(model.depth, 'layer')}{experts}"
        step = format_seconds(self.estimate.step_time_s)
        return f"{sizes}, {length:,} tokens, {self.estimate.layout}: a step of {step}"


@dataclass(frozen=True, slots=True)
class Probe:
    """Small runs of a job, and what their measurement is expected to say."""

    job: JobSpec
    target: Estimate
    """The estimate of the job whose interval the runs narrow."""
    runs: tuple[ProbeRun, ...]
    interval_s: tuple[float, float]
    """Expected 90 % interval of the target's step time after the runs, around its estimate [s]."""

    @property
    def node_hours(self) -> float:
        """Node-hours of all runs."""
        return _node_s(self.runs) / 3600

    def lines(self) -> list[str]:
        """Say what the runs are, and how much they are expected to narrow."""
        before, after = (
            f"{format_seconds(low)} to {format_seconds(high)}"
            for low, high in (self.target.interval_step_time_s, self.interval_s)
        )
        job = f"{self.job.model.name}, {self.target.layout} [{self.target.framework}]"
        gain = f"90 % interval {before}, expected {after} for {self.node_hours:.2g} node-hours"
        return [f"{job}: {gain}", *(f"{n}: {run.text}" for n, run in enumerate(self.runs, 1))]


def choose_probe(job: JobSpec, target: Estimate) -> Probe:
    """Choose small runs by the variance that each removes per node-hour, or raise PlannerError."""
    prior, experience = priors().step_time, job.experience.step_time
    wanted, chosen = _traits(job, target), list[ProbeRun]()
    measured = [] if experience is None else [experience.traits]
    candidates = [(run, _traits(run.job, run.estimate)) for run in _candidates(job, target)]
    while candidates and len(chosen) < _MOST_RUNS:
        traits = Traits.joined([wanted, *(traits for _, traits in candidates)])
        before = Traits.joined(measured) if measured else None
        removed = variance_removed(prior, traits, before)[0, 1:]
        batches = [[*chosen, run] for run, _ in candidates]
        costs = np.array([_node_s(batch) for batch in batches]) - _node_s(chosen)
        is_late = [sum(run.seconds for run in batch) > LIMIT_S for batch in batches]
        is_small = removed < _LEAST_GAIN * prior.variance(wanted)
        best = int(np.argmax(np.where(is_late | is_small, 0.0, removed / costs)))
        if is_late[best] or is_small[best]:
            break
        run, run_traits = candidates.pop(best)
        chosen.append(run)
        measured.append(run_traits)
    if not chosen:
        raise PlannerError(
            f"no small run of {job.model.name} on {job.machine.name} narrows the interval of its "
            "step; measure the job itself, and give its log to `planner plan --measured`"
        )
    reach = GAUSSIAN * expected_spread(prior, wanted, Traits.joined(measured))
    interval_s = (target.step_time_s * math.exp(-reach), target.step_time_s * math.exp(reach))
    return Probe(job, target, tuple(chosen), interval_s)


def _traits(job: JobSpec, estimate: Estimate) -> Traits:
    layouts = Layouts.stack([estimate.layout])
    return traits_of(job.scenario_of(estimate), layouts, estimate.step_time_parts_s)


def _node_s(runs: Sequence[ProbeRun]) -> float:
    """Node-seconds of one batch job that makes all runs."""
    return max((run.job.nodes for run in runs), default=0) * sum(run.seconds for run in runs)


def _candidates(job: JobSpec, target: Estimate) -> Iterator[ProbeRun]:
    """Yield every small run that is legal, safe in memory and short enough."""
    framework, risk = job.scenario_of(target).framework, preferences().risk
    for small in _small_jobs(job, target.layout.vpp):
        for fields in _small_layouts(target.layout, small.num_devices):
            with contextlib.suppress(PlannerError):
                layout = target.layout.replaced(**fields)
                workload = small.workload.replaced(global_batch=layout.global_batch)
                model = _with_experts(small.model, layout.ep / target.layout.ep)
                sized = small.replaced(model=model, workload=workload, frameworks=framework)
                scenario = sized.scenario(framework)
                check(scenario, layout)
                run = ProbeRun(sized, estimate_layouts(scenario, Layouts.stack([layout]))[0])
                is_safe = run.estimate.fits and run.estimate.out_of_memory_probability <= risk
                if is_safe and run.seconds < LIMIT_S / 2:
                    yield run


def _small_jobs(job: JobSpec, least_layers: int) -> Iterator[JobSpec]:
    """Yield the job on fewer nodes, with fewer layers and with shorter sequences."""
    queues, length = job.machine.scheduler.queues, job.workload.sequence_length
    quick = [queue for queue in queues if queue.debug] or queues
    fields = Workload.model_fields
    unset = {name: fields[name].default for name in ("tokens", "samples", "epochs", "ramp")}
    for nodes, part, cut in itertools.product(range(1, _MOST_NODES + 1), (1, 2, 4, 8), (1, 4)):
        admits = not queues or any(q.min_nodes <= nodes <= q.max_nodes for q in quick)
        if nodes <= job.nodes and admits and length >= cut:
            with contextlib.suppress(PlannerError):
                workload = job.workload.replaced(**unset, sequence_length=length // cut)
                model = _shallower(job.model, max(job.model.num_layers // part, least_layers))
                yield job.replaced(nodes=nodes, model=model, workload=workload)


def _shallower(model: Model, depth: int) -> Model:
    """Reduce the layers of a transformer; other models stay as they are."""
    if model.num_layers in (0, depth):
        return model
    share = depth / model.num_layers
    fields: dict[str, Any] = {
        "name": f"{model.name}-{depth}-layers",
        "num_layers": depth,
        "num_window_layers": round(share * model.num_window_layers),
        "num_decoder_layers": math.ceil(share * model.num_decoder_layers),
    }
    if model.experts:
        dense = min(model.experts.num_dense_layers, depth - 1)
        fields["experts"] = {**model.experts.model_dump(), "num_dense_layers": dense}
    return model.replaced(**fields)


def _with_experts(model: Model, share: float) -> Model:
    """Reduce the experts to a share, so that a rank holds as many as in the job."""
    if model.experts is None or share == 1:
        return model
    count = round(model.experts.num_experts * share)
    experts = {**model.experts.model_dump(), "num_experts": count}
    return model.replaced(experts=experts, name=f"{model.name}-{count}-experts")


def _small_layouts(layout: Layout, devices: int) -> Iterator[dict[str, Any]]:
    """Yield the fields of layouts on a few devices with at most the degrees of a larger one."""
    degrees = [sorted({1, min(2, n), n}) for n in (layout.tp, layout.pp, layout.cp)]
    for tp, pp, cp in itertools.product(*degrees):
        dp, rest = divmod(devices, tp * pp * cp)
        most = min(4 * pp, max(layout.grad_accumulation, pp))
        for passes in () if rest else sorted({pp, most}):
            yield {
                **dict(zip(("dp", "tp", "pp", "cp"), (dp, tp, pp, cp), strict=True)),
                "grad_accumulation": passes,
                "sequence_parallel": layout.sequence_parallel and tp > 1,
                "vpp": layout.vpp if pp > 1 else 1,
                "schedule": layout.schedule if pp > 1 else "none",
                "ulysses": math.gcd(layout.ulysses, cp),
                "ep": math.gcd(layout.ep, tp * cp * dp),
                "dp_shard": math.gcd(layout.dp_shard, dp) if layout.dp_shard else 0,
                **dict.fromkeys(("reshard", "first_layers", "last_layers"), 0),
                "split": "",
            }

"""Job check: what a user's own job script will do, in a few lines, with the fix."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import estimate_dict
from planner.choose.planning import estimate_job, job_of_layout, plan_with_candidates
from planner.choose.user_layouts import complete_layout
from planner.choose.verdicts.answer_lines import AnswerLine, estimate_lines, fit_word
from planner.choose.verdicts.fixes import cheapest_change, layout_changes, shortage_summary
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_model
from planner.describe.configurations.batch_script import BatchScript
from planner.describe.configurations.batch_site import lacking, on_stated_network, queues_of
from planner.describe.configurations.configuration import Configuration
from planner.describe.files import read_toml
from planner.describe.layout import Layout
from planner.describe.machine import Machine, Queue
from planner.describe.machine.variants import take_devices
from planner.errors import LayoutError
from planner.training.job_slot import START_S, planned_steps, walltime_text
from planner.units import counted, format_seconds

_FINDINGS = read_toml(Path(__file__).with_name("job_findings.toml"))
_COMMUNICATION = ("NCCL_", "RCCL_", "CCL_", "FI_", "CXI_")
_ASSUMED = ("sequence length", "micro-batch")


class Finding(NamedTuple):
    """One thing that a script gets wrong, and what mends it."""

    sentence: str
    fix: str
    stops: bool
    """Whether the job will not run, or not to its end."""


def _finding(kind: str, **values: Any) -> Finding:
    table = {"fix": "", "stops": False, **_FINDINGS[kind]}
    sentence, fix = (table[name].format(**values) for name in ("sentence", "fix"))
    return Finding(sentence, fix, table["stops"])


@dataclass(frozen=True, slots=True)
class JobCheck:
    """What a job script will do on its machine."""

    lines: tuple[AnswerLine, ...]
    findings: tuple[Finding, ...]
    estimate: Estimate | None
    """None if the job cannot start."""

    @property
    def fits(self) -> bool:
        """Whether the job runs to its end, as far as the planner can tell."""
        return not any(finding.stops for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        estimate = None if self.estimate is None else estimate_dict(self.estimate)
        findings = [finding._asdict() for finding in self.findings]
        lines = [line._asdict() for line in self.lines]
        return {"fits": self.fits, "lines": lines, "findings": findings, "estimate": estimate}


def check_job(
    script: BatchScript,
    files: Configuration,
    machine: Machine,
    model_name: str,
    *,
    steps: int | None = None,
    **overrides: Any,
) -> JobCheck:
    """Check a job script with its configuration files; `overrides` override the files."""
    framework = overrides.get("framework") or files.framework or files.usual_framework
    place, model = on_stated_network(script, machine, framework), load_model(model_name)
    nodes, devices = script.nodes or 1, place.node.num_devices
    ranks = script.ranks_per_node or files.world // nodes or script.devices or devices
    findings = [*_ranks(script, files, place, ranks), *_queue(script, place)]
    findings += [*_site(script, place), *_variables(script, machine, place, framework)]
    part = take_devices(place, ranks) if ranks < devices else place
    queues = queues_of(script, place, nodes)
    where = f"{model.name} on {counted(nodes, 'node')} of {place.name}"
    where += f", queue {queues[0].name}" if queues else ""
    files, estimate = replace(files, world=0), None
    try:
        job = complete_layout(model, part, files, nodes=nodes, tuned=True, **overrides)
        spec = job_of_layout(model, part, job.layout, job.workload, job.framework, Experience())
        estimate = estimate_job(spec, job.layout)
    except LayoutError as refusal:
        lines = [AnswerLine("Will not run", where)]
        findings.insert(0, _finding("refused", rule=refusal))
    else:
        planned = planned_steps(job.workload) if job.workload.all_tokens else 0
        time, late = _time(script, estimate, steps or files.steps or planned, queues)
        findings = [*_layout(spec, job.layout, estimate), *findings, *late]
        lines = [AnswerLine(fit_word(estimate), where)]
        lines += estimate_lines(estimate, part.device.memory_bytes.value)
        lines.append(AnswerLine("Time", time))
    lines += [AnswerLine("Check", each.sentence) for each in findings]
    lines.append(AnswerLine("Fix", "; ".join(filter(None, (each.fix for each in findings)))))
    notes = job.notes if estimate else ()
    lines += [AnswerLine("Assumed", note) for note in notes if note.startswith(_ASSUMED)]
    return JobCheck(tuple(line for line in lines if line.text), tuple(findings), estimate)


def _layout(spec: JobSpec, layout: Layout, estimate: Estimate) -> Iterator[Finding]:
    """Compare the layout with the memory and the links of the devices."""
    machine = spec.machine
    if not estimate.fits:
        parts = plan_with_candidates(spec.replaced(exact=True), top=1)[1]
        candidates = {each.scenario.framework.name: each for each in parts}
        better = cheapest_change(estimate, candidates)
        change = better and layout_changes(layout, estimate.framework, better)
        change = change or "take more nodes (`planner ask nodes`)"
        yield _finding("memory", short=shortage_summary(estimate, machine), change=change)
    if layout.tp > machine.wired_devices and machine.node.num_devices > 1:
        yield _finding("tensor", tp=layout.tp, devices=machine.wired_devices)


def _ranks(
    script: BatchScript, files: Configuration, machine: Machine, ranks: int
) -> Iterator[Finding]:
    """Compare nodes, ranks and devices."""
    nodes, devices = script.nodes or 1, machine.node.num_devices
    allocated = min(script.devices or devices, devices)
    if ranks > allocated:
        yield _finding("ranks", ranks=ranks, devices=allocated)
    elif ranks < allocated:
        yield _finding("idle", ranks=ranks, devices=allocated)
    if (started := script.starts.get("nodes", nodes)) != nodes:
        yield _finding("nodes", started=started, nodes=nodes)
    if script.starts_alone and nodes > 1:
        yield _finding("alone", launcher=script.launchers[0], nodes=nodes)
    if files.world not in (0, ranks * nodes) and "world" not in script.starts:
        yield _finding("world", files=files.name, world=files.world, started=ranks * nodes)


def _queue(script: BatchScript, machine: Machine) -> Iterator[Finding]:
    """Compare nodes and wall time with the queue."""
    nodes, wall = script.nodes or 1, script.walltime_s or 0
    named, queues = queues_of(script, machine), queues_of(script, machine, nodes)
    if named and not queues:
        admitting = [q for q in machine.scheduler.queues if q.min_nodes <= nodes <= q.max_nodes]
        queue_names = ", ".join(q.name for q in admitting if not q.on_request) or "fewer nodes"
        yield _finding("admits", queue=named[0].name, nodes=nodes, queues=queue_names)
    elif queues and wall > queues[0].max_hours * 3600 + 60:
        hours, queue = queues[0].max_hours, queues[0].name
        yield _finding("limit", wall=walltime_text(wall), hours=hours, queue=queue)


def _site(script: BatchScript, machine: Machine) -> Iterator[Finding]:
    """Name directives that the site asks for, and words that it warns of."""
    if missing := lacking(script, machine):
        yield _finding("site", lines=" and ".join(missing))
    launch = machine.scheduler.launch
    # with one task a node, the options that the site itself gives for that are right
    usual = " ".join(launch.node_options) if launch and script.inside else ""
    for word, reason in (launch.warns if launch else {}).items():
        if word in script.text and word not in usual:
            yield _finding("warned", word=word, reason=reason)


def _variables(
    script: BatchScript, machine: Machine, place: Machine, framework: str
) -> Iterator[Finding]:
    """Compare the variables between nodes with those of the site's documentation."""
    usual, variables = machine.network_of(framework), script.run.variables
    launch, network = usual.scheduler.launch, usual.network
    if launch is None or network is None or (script.nodes or 1) < 2:
        return
    tasks = launch.node_environment if script.inside else launch.device_environment
    wanted: Mapping[str, str] = {**launch.environment, **tasks, **network.environment}
    wanted = {name: wanted[name] for name in sorted(wanted) if name.startswith(_COMMUNICATION)}
    if missing := [name for name in wanted if name not in variables]:
        lines = " ".join(f'{name}="{wanted[name]}"' for name in missing)
        slow = place.network is not None and place.network.name != network.name
        text = f"; estimated on the network {place.network.name}" if slow and place.network else ""
        yield _finding("unset", names=", ".join(missing), lines=lines, network=text)
    for name, value in wanted.items():
        if variables.get(name, value) != value:
            yield _finding("other", name=name, value=variables[name], wanted=value)
    theirs = {name for each in usual.networks for name in each.environment}
    for name in sorted((theirs - set(wanted)) & set(variables)):
        yield _finding("stray", name=name, framework=framework, note=network.note)


def _time(
    script: BatchScript, estimate: Estimate, steps: int, queues: list[Queue]
) -> tuple[str, list[Finding]]:
    """State how many steps the wall time holds, at the slow end of a step."""
    wall, slow = script.walltime_s, estimate.interval_step_time_s[1]
    needed = steps * slow + START_S
    expected = format_seconds(steps * estimate.step_time_s)
    text = f"{steps:,} steps take {expected}, at most {format_seconds(needed)} with the start"
    if wall is None:
        return text if steps else "", []
    completed = max(int((wall - START_S) / slow), 0)
    limit = f"the wall time {walltime_text(wall)} holds {completed:,} steps"
    if not steps:
        return f"{limit}; the script states no number (--steps)", []
    if needed > wall and completed and script.resumes:
        jobs = counted(-(-steps // completed), "job")
        return f"{text}; {limit}: {jobs} in a row, from checkpoints", []
    values = {"wall": walltime_text(wall), "completed": completed, "steps": steps}
    longest = max((queue.max_hours * 3600 for queue in queues), default=needed)
    longer = -(-needed // 600) * 600
    fix = f"ask for {walltime_text(longer)}" if longer <= longest else "go on from checkpoints"
    late = [_finding("time", change=fix, **values)] if needed > wall else []
    return f"{text}; {limit}", late

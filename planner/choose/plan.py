"""Plan: the ranked layouts of a job, verdicts, notes and rejected candidates, and their JSON."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from planner.choose.jobs.alternatives import PLAIN, Alternative, of_kind
from planner.cost.estimate import Estimate
from planner.describe.layout import Layout
from planner.describe.machine import Machine, Queue
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import DescriptionError, EmitError, shorten
from planner.tables import Record, Table, Tabular
from planner.training.steps import node_hours, training_time
from planner.training.whole_training import WholeTraining
from planner.units import either


@dataclass(frozen=True, slots=True)
class Dropped:
    """Candidates that were rejected for one reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a classic strategy: its layout if it fits, else what is missing and a fix."""

    name: str
    fits: bool
    why: str
    fix: str
    estimate: Estimate | None
    """The layout to run if any fits, else the one closest to fitting; None if none is legal."""
    nodes: int | None = None
    """If nothing fits: nodes on which it fits with this batch; None if none were found."""
    batch: int | None = None
    """If no layout is legal: a batch with which one is legal and fits on these nodes."""

    def record(self) -> Record:
        """Flatten the verdict and its estimate to one row."""
        row = {"strategy": self.name, "fits": self.fits, "why": self.why, "fix": self.fix}
        elsewhere = {"enough_nodes": self.nodes, "possible_batch": self.batch}
        estimated = {} if self.estimate is None else self.estimate.record()
        return {**row, **elsewhere, **{k: v for k, v in estimated.items() if k not in row}}


PlanTable = Literal["ranked", "strategies", "alternatives", "dropped"]
"""Tables: layouts that fit, classic strategies, ways to do the job, rejected candidates."""


@dataclass(frozen=True, slots=True)
class Plan(Tabular[PlanTable]):
    """Result of a search: the layout to run, the fastest layouts, what does not fit and why."""

    model: str
    num_params: int
    machine: str
    nodes: int
    num_devices: int
    workload: Workload
    num_candidates: int
    ranked: tuple[Estimate, ...]
    """Fastest layout of every strategy that fits, and the recommended one; fastest first."""
    recommended: Estimate | None
    """Simplest layout that is safe in memory and about as fast as the fastest."""
    strategies: tuple[Verdict, ...]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]
    queues: tuple[Queue, ...]
    """Queues of the machine that admit this many nodes."""
    device_memory_bytes: float = 0.0
    """Usable memory of a device [B]."""
    queued: bool = True
    """Whether the machine is known to have queues at all."""
    alternatives: tuple[Alternative, ...] = ()
    """Ways to do the job, ranked; the plan is of the first of them."""
    reasons: tuple[str, ...] = ()
    """Why each ranked layout that is faster than the recommended one is passed over, in order."""
    files_note: str = ""
    """The notably faster layout of a framework that has no files for the model; empty if none."""
    scale_note: str = ""
    """The node count from which on the job wastes nodes; empty if it does not."""
    network_note: str = ""
    """The recommended layout's network, and its step time on others; empty with only one."""
    num_estimated: int = 0
    """Candidates that were estimated in full; lower bounds ruled out the others."""
    training: WholeTraining | None = None
    """The whole training on the recommended layout; None if the workload has no tokens."""

    @property
    def fits(self) -> bool:
        """Whether any layout fits."""
        return bool(self.ranked)

    @property
    def best(self) -> Estimate | None:
        """The fastest layout that fits."""
        return self.ranked[0] if self.ranked else None

    @property
    def reason(self) -> str:
        """Why the fastest layout is not the recommended one; empty if it is."""
        return self.reasons[0] if self.reasons else ""

    @property
    def passed_over(self) -> list[tuple[Estimate, str]]:
        """Ranked layouts that are faster than the recommended one, each with the reason."""
        return list(zip(self.ranked, self.reasons, strict=False))

    @property
    def listed(self) -> tuple[Estimate, ...]:
        """The recommended layout first, then the other ranked ones."""
        first = () if self.recommended is None else (self.recommended,)
        return (*first, *(each for each in self.ranked if each not in first))

    def ranked_at(self, rank: int | None = None) -> Estimate:
        """Layout by rank from 1; None: the recommended one. Raises EmitError if there is none."""
        if not self.ranked or self.recommended is None:
            raise EmitError(f"nothing fits on {self.nodes} nodes, so there is nothing to run")
        if rank is None:
            return self.recommended
        if not 1 <= rank <= len(self.ranked):
            raise EmitError(
                f"rank = {rank} is not among the {len(self.ranked)} layouts of the plan; use 1 to "
                f"{len(self.ranked)}"
            )
        return self.ranked[rank - 1]

    @property
    def advice(self) -> Alternative | None:
        """The way to do the job that the plan is of; None where nothing fits."""
        return self.alternatives[0] if self.alternatives and self.fits else None

    @property
    def as_asked(self) -> Alternative | None:
        """The job as it was asked for; None where that has no layout."""
        return next(iter(of_kind(self.alternatives, "as-asked")), None)

    @property
    def closest(self) -> Verdict | None:
        """Strategy on all devices whose best layout needs the least memory."""
        legal = [
            (entry.estimate.memory_bytes["total"], number, entry)
            for number, entry in enumerate(self.strategies)
            if entry.estimate is not None and entry.estimate.layout.world == self.num_devices
        ]
        return min(legal)[2] if legal else None

    @property
    def legal_batches(self) -> list[int]:
        """Global batches that have a legal layout if this one has none, as far as known."""
        offered = sorted(each.global_batch for each in of_kind(self.alternatives, "batch"))
        return offered or sorted({each.batch for each in self.strategies if each.batch})[:1]

    @property
    def why(self) -> str:
        """Why nothing fits: the closest strategy or the most frequent reason; empty if any fits."""
        if self.fits:
            return ""
        entry = self.closest
        if entry is not None and entry.estimate is not None:
            shape = f"{entry.estimate.layout} [{entry.estimate.framework}]"
            return f"closest is {entry.name}, {shape}: {entry.why}"
        reasons = Counter(entry.why for entry in self.strategies if entry.estimate is None)
        text = reasons.most_common(1)[0][0] if reasons else "no strategy has a legal layout"
        sizes = [f"{size:,}" for size in self.legal_batches]
        return f"{text}; try a global batch of {either(sizes)}" if sizes else text

    @property
    def enough_nodes(self) -> int | None:
        """Fewest nodes on which a classic strategy fits, if nothing fits here; else None."""
        nodes = [verdict.nodes for verdict in self.strategies if verdict.nodes]
        return min(nodes) if nodes and not self.fits else None

    def duration_s(self, estimate: Estimate) -> float:
        """Time to train the workload's tokens at an estimate's rate; 0 without tokens [s]."""
        return training_time(self.workload, estimate)

    def node_hours(self, estimate: Estimate) -> float:
        """Node-hours for the workload's tokens, or for one thousand steps without tokens."""
        return node_hours(self.nodes, self.workload, estimate)

    def tables(self) -> dict[str, Table]:
        """Return the tables of a plan by name; estimates are records as in their CSV."""
        return {
            "ranked": Table(tuple(estimate.record() for estimate in self.ranked)),
            "strategies": Table(tuple(verdict.record() for verdict in self.strategies)),
            "alternatives": Table(tuple(each.record() for each in self.alternatives)),
            "dropped": Table(tuple(asdict(reason) for reason in self.dropped)),
        }

    def to_json(self) -> str:
        """The plan as JSON text, which `from_json` reads."""
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        ranked = [estimate_dict(e) for e in self.ranked]
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "workload": self.workload.model_dump(mode="json"),
            "fits": self.fits,
            "recommended": estimate_dict(self.recommended) if self.recommended else None,
            "best": ranked[0] if ranked else None,
            "node_hours": self.node_hours(self.recommended) if self.recommended else None,
            "duration_s": self.duration_s(self.recommended) if self.recommended else None,
            "training": self.training.as_dict() if self.training else None,
            "ranked": ranked,
            "strategies": [
                {
                    **{name: getattr(each, name) for name in _VERDICT},
                    "estimate": estimate_dict(each.estimate) if each.estimate else None,
                }
                for each in self.strategies
            ],
            "dropped": [asdict(d) for d in self.dropped],
            "notes": list(self.notes),
            "advice": _advice_dict(self.advice) if self.advice else None,
            "alternatives": list(map(_advice_dict, self.alternatives)),
            "reason": self.reason,
            "reasons": list(self.reasons),
            "queues": [queue.model_dump(mode="json") for queue in self.queues],
        }

    def report(self, model: Model | None = None, machine: Machine | None = None) -> str:
        """The plan as an HTML document to print; give a model or machine of no catalogue."""
        # display is a higher layer, loaded late by name
        proposal = importlib.import_module("planner.show.reports.proposal")
        return str(proposal.report(self, model, machine))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan that `to_json` wrote. Raises DescriptionError if the text is not a plan."""
        try:
            data = json.loads(text)
            recommended, training = data["recommended"], data.get("training")
            plan = cls(
                **{name: data[name] for name in _PLAIN},
                workload=Workload.described(data["workload"]),
                ranked=tuple(map(_estimate_from, data["ranked"])),
                recommended=_estimate_from(recommended) if recommended else None,
                strategies=tuple(
                    Verdict(**_with_estimate(each, _VERDICT)) for each in data["strategies"]
                ),
                dropped=tuple(Dropped(**each) for each in data["dropped"]),
                notes=tuple(data["notes"]),
                reasons=tuple(data["reasons"]),
                queues=tuple(map(Queue.described, data["queues"])),
                alternatives=tuple(
                    Alternative(**_with_estimate(each, PLAIN)) for each in data["alternatives"]
                ),
                training=WholeTraining.from_dict(training) if training else None,
            )
            plan.to_json()  # fails on values of other types and numbers that are not finite
            return plan
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise DescriptionError(
                f"not a plan: {shorten(str(error), 200)}; give the output of `planner plan --json`"
            ) from None


_VERDICT = ("name", "fits", "why", "fix", "nodes", "batch")
_PLAIN = (
    *("model", "num_params", "machine", "nodes", "num_devices", "device_memory_bytes"),
    *("num_candidates", "queued", "files_note", "scale_note", "network_note", "num_estimated"),
)
"""Fields of verdicts and plans that are plain in JSON."""


def estimate_dict(value: Estimate) -> dict[str, Any]:
    """An estimate as plain data, as in the plan's JSON."""
    plain = {field.name: getattr(value, field.name) for field in fields(value)}
    return {**plain, "layout": value.layout.model_dump(mode="json")}


def _advice_dict(each: Alternative) -> dict[str, Any]:
    """An alternative as plain data; layout, framework and step time also beside its estimate."""
    estimate = estimate_dict(each.estimate)
    plain = {name: getattr(each, name) for name in PLAIN}
    repeated = {name: estimate[name] for name in ("layout", "framework", "step_time_s")}
    return {**plain, **repeated, "estimate": estimate}


def _with_estimate(data: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Read the named fields of a verdict or batch, and its estimate if it has one."""
    estimate = _estimate_from(data["estimate"]) if data["estimate"] else None
    return {**{name: data[name] for name in names}, "estimate": estimate}


def _estimate_from(data: dict[str, Any]) -> Estimate:
    intervals = {
        name: tuple(data[name]) for name in ("interval_step_time_s", "interval_memory_bytes")
    }
    return Estimate(**{**data, **intervals, "layout": Layout.described(data["layout"])})

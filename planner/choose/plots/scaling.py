"""Scaling of a job: its best plan for every number of nodes, and why it can be superlinear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.choose.plan import Plan
from planner.units import counted

__all__ = ["ScalePoint", "above_one"]


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The best layout of a job for a number of nodes."""

    nodes: int
    step_time_s: float | None
    """None where nothing fits."""
    tokens_per_s: float
    node_hours: float
    layout: str

    @classmethod
    def of(cls, plan: Plan) -> ScalePoint:
        """Return the point of a plan."""
        best = plan.best
        if best is None:
            return cls(plan.nodes, None, 0.0, 0.0, "nothing fits")
        layout = f"{best.layout} [{best.framework}]"
        hours = plan.node_hours(best)
        return cls(plan.nodes, best.step_time_s, best.tokens_per_s, hours, layout)

    def efficiency(self, first: ScalePoint) -> float:
        """Return tokens per second and node over those of the first point."""
        return self.tokens_per_s / self.nodes / (first.tokens_per_s / first.nodes)


def above_one(points: Sequence[ScalePoint]) -> str:
    """Explain an efficiency above 100 %; empty where there is none."""
    fitting = [point for point in points if point.step_time_s is not None]
    if not any(point.efficiency(fitting[0]) > 1.005 for point in fitting):
        return ""
    return (
        f"Above 100 %: on {counted(fitting[0].nodes, 'node')} memory is shortest, so that layout "
        "offloads, recomputes or shards more than is needed on more nodes."
    )

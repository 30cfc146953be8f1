"""Measured: published collective times that the figures show beside the model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL_REDUCE", "MeasuredCollective", "measured_for"]


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """Times of one collective on one machine over sizes."""

    machine: str
    operation: str
    nodes: int
    ranks: int
    library: str
    sizes_bytes: tuple[int, ...]
    times_s: tuple[float, ...]
    source: str


_SIZES = (8, 2**10, 2**15, 2**20, 2**24, 2**26, 2**28, 2**30)
_SOURCE = "github argonne-lcf/alcf-nccl-tests @385be336, out of place, aws-ofi plugin on"


def _polaris(nodes: int, library: str, *times_us: int) -> MeasuredCollective:
    return MeasuredCollective(
        "polaris",
        "all-reduce",
        nodes,
        4 * nodes,
        library,
        _SIZES,
        tuple(time * 1e-6 for time in times_us),
        _SOURCE,
    )


ALL_REDUCE = (
    _polaris(2, "NCCL 2.18", 22, 28, 52, 176, 858, 3327, 13130, 52079),
    _polaris(8, "NCCL 2.18", 46, 66, 135, 328, 2410, 3726, 14570, 57697),
    _polaris(256, "NCCL 2.21", 100, 134, 270, 757, 3454, 6782, 19558, 70722),
)
"""All-reduce over all devices of the nodes."""


def measured_for(
    machine: str, operation: str, ranks: int, per_node: int
) -> MeasuredCollective | None:
    """The measured times of a collective over `ranks` ranks that fill their nodes.

    >>> measured_for("polaris", "all-reduce", 8, 4).times_s[-1]
    0.052079
    """
    for row in ALL_REDUCE:
        fits = row.machine == machine and row.operation == operation and row.ranks == ranks
        if fits and row.nodes * per_node == ranks:
            return row
    return None

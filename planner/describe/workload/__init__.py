"""Workload: sequences, batch, precision, optimizer, frozen parts and adapters."""

from planner.describe.workload.documents import parse_documents, read_documents
from planner.describe.workload.workload import (
    ATTENTIONS,
    OPTIMIZERS,
    PRECISIONS,
    BaseFormat,
    LoraTarget,
    OptimizerName,
    TrainingPrecision,
    Workload,
    parse_ramp,
    parse_tokens,
)

__all__ = [
    "ATTENTIONS", "OPTIMIZERS", "PRECISIONS", "BaseFormat", "LoraTarget", "OptimizerName",
    "TrainingPrecision", "Workload", "parse_documents", "parse_ramp", "parse_tokens",
    "read_documents",
]  # fmt: skip

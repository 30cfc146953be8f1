"""JobDescription: a training job as a user writes it, with names and plain values."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from planner.describe.base import Description
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.machine.variants import MAX_FREE_PERCENT, vary
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError, PlannerError, shorten


class JobDescription(Description):
    """A job from a file, options, a table row or a URL; its parts are names, paths or tables."""

    model: Any
    """Model: its name, a TOML file, a config.json, its name on the Hugging Face hub (org/name,
    org/name@revision), or FILE.py:FUNCTION, which builds a torch module (the file is run). Or the
    TOML file of a whole job, with model, machine and all other options."""
    machine: Any
    """Machine name or TOML file."""
    nodes: int = Field(default=1)
    """Number of nodes."""
    devices: int | None = None
    """Number of devices, if the job uses only a part of one node."""
    network: str = ""
    """Network of the machine, if software differs in its use; see `planner show MACHINE`."""
    set: tuple[str, ...] = ()
    """Override of the machine's profile, such as device.memory_bytes=80GB (repeatable)."""
    leave_free: float = Field(default=0.0, ge=0, le=MAX_FREE_PERCENT)
    """Percent of every device's memory to leave free."""
    frameworks: tuple[Any, ...] = ()
    """Frameworks to search, with switches; empty: the default frameworks."""
    tolerance: float | None = None
    """Share by which the recommended layout may be slower than the fastest, if it is simpler."""
    exact: bool = False
    """Keep nodes, batch and sequence to the letter, however much a change would gain."""
    measured: tuple[str, ...] = ()
    """Files of measured runs that correct the estimates."""
    workload: dict[str, Any] = Field(default_factory=dict)
    """Fields of the workload; the sequence length defaults to the model's own, at most 4096."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Data, evaluation, checkpoints, failures and charges of the whole training."""

    @classmethod
    def read(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> Self:
        """Read a job's TOML file; `changes` replace fields, also inside workload and training."""
        path = Path(os.path.expanduser(path))
        fields = _rooted(read_toml(path), path.parent)
        for name, value in (changes or {}).items():
            table = fields.get(name)
            merges = name in ("workload", "training") and isinstance(table, Mapping)
            fields[name] = {**(table or {}), **value} if merges else value
        return cls.described(fields, where=shorten(path.name))

    def load_model(self) -> Model:
        """Load the model."""
        if isinstance(self.model, Mapping):
            return Model.described(dict(self.model), where="model")
        return self.model if isinstance(self.model, Model) else load_model(self.model)

    def load_machine(self) -> Machine:
        """Load the machine with overrides and memory left free, or the job's part of one node."""
        if self.devices is not None and self.nodes > 1:
            raise LayoutError(
                f"devices = {self.devices} is part of one node, but nodes = {self.nodes}; "
                "leave one out"
            )
        return vary(self.load_whole_machine(), (), self.leave_free, self.devices)

    def load_whole_machine(self) -> Machine:
        """Load the machine with its overrides, all its memory and all devices of a node."""
        overrides = (*((f"network={self.network}",) if self.network else ()), *self.set)
        if isinstance(self.machine, Mapping):
            machine = Machine.described(dict(self.machine), where="machine")
        elif isinstance(self.machine, Machine):
            machine = self.machine
        else:
            return load_machine(self.machine, overrides)
        return vary(machine, overrides, 0.0, None)

    def load_frameworks(self) -> tuple[Framework, ...]:
        """Load the named frameworks."""
        return tuple(
            Framework.described(dict(each), where="frameworks")
            if isinstance(each, Mapping)
            else each
            if isinstance(each, Framework)
            else load_framework(each)
            for each in self.frameworks
        )

    def load_workload(self, model: Model) -> Workload:
        """Create the workload; its sequence length defaults to the model's own."""
        fields = {"sequence_length": model.default_sequence_length, **self.workload}
        return Workload.described(fields, where="workload")


def is_job_file(name: str) -> bool:
    """True if a path is a TOML file that states a model and a machine."""
    if not name.endswith(".toml"):
        return False
    try:
        fields = read_toml(Path(os.path.expanduser(name)))
    except PlannerError:
        return False  # reading it as a model reports the error
    return {"model", "machine"} <= set(fields)


def _rooted(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Prefix relative paths in a job's file with its folder if the files exist there."""

    def rooted(value: Any) -> Any:
        if isinstance(value, list):
            return [rooted(each) for each in value]
        if isinstance(value, str) and value and os.path.isfile(folder / value):
            return str(folder / value)
        return value

    names = ("model", "machine", "frameworks", "measured")
    return {**fields, **{name: rooted(fields[name]) for name in names if name in fields}}

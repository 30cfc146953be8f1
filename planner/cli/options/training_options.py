"""Command line, options of a whole training: what it does besides its steps, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from planner.describe.catalogue import load_dataset
from planner.describe.files import read_toml
from planner.errors import DescriptionError
from planner.units import parse_power

__all__ = ["TrainingOptions"]

_PANEL = "The whole training, of --tokens or --samples"


def _option(*flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, rich_help_panel=_PANEL, **settings)


Staging = Literal["none", "local-disk", "memory"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """What a training does besides its steps, and what it is charged."""

    training: Annotated[
        str | None,
        _option("--training", metavar="FILE", help="All of it as a TOML file; options go before."),
    ] = None
    dataset: Annotated[
        str | None,
        _option("--dataset", metavar="NAME", help="What it reads: a dataset's name or TOML file."),
    ] = None
    staging: Annotated[
        Staging | None,
        _option("--staging", help="What a node keeps of it: nothing, on its disk, or in memory."),
    ] = None
    workers: Annotated[
        int | None, _option("--workers", min=0, help="Workers of every rank that read it.")
    ] = None
    evaluate_every: Annotated[
        int | None,
        _option("--evaluate-every", metavar="STEPS", min=0, help="Steps per evaluation."),
    ] = None
    evaluation_sequences: Annotated[
        int | None,
        _option("--evaluation-sequences", min=0, help="Sequences (samples) of an evaluation."),
    ] = None
    checkpoint_every: Annotated[
        int | None,
        _option(
            "--checkpoint-every",
            metavar="STEPS",
            min=0,
            show_default="what loses least",
            help="Steps per checkpoint.",
        ),
    ] = None
    async_checkpoints: Annotated[
        bool | None,
        _option(
            "--async-checkpoints/--sync-checkpoints",
            help="Whether checkpoints are written while steps go on.",
        ),
    ] = None
    failures: Annotated[
        float | None,
        _option(
            "--failures",
            metavar="RATE",
            min=0,
            max=1,
            show_default="of Llama 3",
            help="Interruptions of the job per device and hour.",
        ),
    ] = None
    node_power: Annotated[
        str | None,
        _option("--node-power", metavar="POWER", help="What a node draws, such as 2.5kW."),
    ] = None
    pue: Annotated[
        float | None,
        _option("--pue", min=1, help="What the centre draws over what its nodes draw."),
    ] = None
    carbon: Annotated[
        float | None,
        _option("--carbon", metavar="G", min=0, help="Grams of CO2e that a kWh emits."),
    ] = None
    price: Annotated[
        float | None, _option("--price", min=0, help="Price of a node-hour, in your currency.")
    ] = None
    price_per_kwh: Annotated[
        float | None, _option("--price-per-kwh", min=0, help="Price of a kWh, in your currency.")
    ] = None

    def fields(self) -> dict[str, Any]:
        """Fields of the training that a file and the options state; options count first."""
        fields = {} if self.training is None else read_toml(Path(self.training))
        if self.dataset is not None:
            fields["dataset"] = load_dataset(self.dataset).model_dump()
        for name, values in self._values_by_table().items():
            set_values = {key: value for key, value in values.items() if value is not None}
            before = fields.get(name, {})
            if set_values and not isinstance(before, Mapping):
                raise DescriptionError(
                    f"{self.training}: {name} = {before!r} is no table; write [{name}]"
                )
            if set_values:
                fields[name] = {**before, **set_values}
        return fields

    def _values_by_table(self) -> dict[str, dict[str, Any]]:
        watts = None if self.node_power is None else parse_power(self.node_power)
        return {
            "loader": {"staging": self.staging, "workers": self.workers},
            "evaluation": {
                "every_steps": self.evaluate_every,
                "sequences": self.evaluation_sequences,
            },
            "checkpoints": {
                "every_steps": self.checkpoint_every,
                "asynchronous": self.async_checkpoints,
            },
            "failures": {"per_device_hour": self.failures},
            "charges": {
                "node_power_watts": watts,
                "pue": self.pue,
                "carbon_g_per_kwh": self.carbon,
                "price_per_node_hour": self.price,
                "price_per_kwh": self.price_per_kwh,
            },
        }

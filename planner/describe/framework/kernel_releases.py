"""Kernel releases: rates of matrix products and fused attention by device and date of software."""

import functools
from pathlib import Path
from typing import Annotated

from pydantic import Field

from planner.describe.base import Description, Fraction
from planner.describe.files import read_toml
from planner.describe.machine import Device

Month = Annotated[str, Field(pattern=r"^(\d{4}-(0[1-9]|1[0-2]))?$")]
"""Year and month such as 2024-03; empty: the newest."""
_NEWEST = "9999-12"


class AttentionKernel(Description):
    """Fused attention of one library release on one architecture, as its authors measured it."""

    name: str
    """Library, and release where releases differ."""
    architecture: str
    """Architecture of the devices."""
    since: Month
    """First month in which programs could use it."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Releases that were measured, by library."""
    tokens: tuple[int, ...]
    """Sequence lengths of the rates."""
    flop_per_s: dict[str, list[float]] = Field(default_factory=dict)
    """Measured rates of passes by sequence length; causal, head width 128 [FLOP/s]."""
    efficiency: Fraction
    """Fraction of the 16-bit peak on long sequences."""


class Generation(Description):
    """Software of some years on one architecture."""

    name: str
    """Architecture and year."""
    architecture: str
    """Architecture of the devices."""
    devices: tuple[str, ...] = Field(min_length=1)
    """Substrings of the names of its devices."""
    since: Month
    """First month."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Releases of its libraries."""
    product_fraction: Fraction | None = None
    """Rate of matrix products / that of the newest generation; None: as the newest."""


class Choice(Description):
    """Attention kernels that a program uses from some month on."""

    program: str
    """Name that frameworks state as `kernels.attention`."""
    since: Month
    """First month."""
    kernels: dict[str, str]
    """Kernel names, or how they begin, by architecture; `other`: on all others."""
    source: str
    """Where it was read."""


class KernelReleases(Description):
    """Contents of `kernel_releases.toml`."""

    sources: dict[str, str]
    """Abbreviations in the sources."""
    kernels: tuple[AttentionKernel, ...]
    """Attention kernels."""
    generations: tuple[Generation, ...]
    """Generations, in the order of time within an architecture."""
    choices: tuple[Choice, ...]
    """Choices of programs, in the order of time within a program."""


@functools.cache
def kernel_releases() -> KernelReleases:
    """Return the known releases."""
    path = Path(__file__).with_name("kernel_releases.toml")
    return KernelReleases.described(read_toml(path), where=path.name)


def architecture_of(device: Device) -> str:
    """Architecture of a device; its own name if no generation lists it."""
    rows = _generations(device.name)
    return rows[0].architecture if rows else device.name


@functools.cache
def _generations(device: str) -> tuple[Generation, ...]:
    generations = kernel_releases().generations
    return tuple(row for row in generations if any(name in device for name in row.devices))


def product_fraction(device: Device, month: str) -> float:
    """Rate of matrix products with the software of a month / that of the newest [1]."""
    month = month or _NEWEST
    rows = _generations(device.name)
    of_month = [row for row in rows if row.since <= month] or list(rows[:1])
    fraction = of_month[-1].product_fraction if of_month else None
    return 1.0 if fraction is None else fraction.value


def attention_kernel(program: str, device: Device, month: str) -> AttentionKernel | None:
    """Attention kernel that a program of a month uses on a device; None if none was measured."""
    return _attention_kernel(program, architecture_of(device), month or _NEWEST)


@functools.cache
def _attention_kernel(program: str, architecture: str, month: str) -> AttentionKernel | None:
    wanted = program
    for choice in kernel_releases().choices:
        if choice.program == program and choice.since <= month:
            wanted = choice.kernels.get(architecture, choice.kernels["other"])
    measured = [row for row in kernel_releases().kernels if row.architecture == architecture]
    oldest = sorted(measured, key=lambda kernel: kernel.since)[:1]
    released = [kernel for kernel in measured if kernel.since <= month] or oldest
    for beginning in (wanted, "flash-attention-2", "flash-attention"):
        matching = [kernel for kernel in released if kernel.name.startswith(beginning)]
        if matching:
            return max(matching, key=lambda kernel: kernel.since)
    return released[-1] if released else None

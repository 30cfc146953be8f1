"""Charges: what a node-hour draws, costs and emits, as its user states it."""

from __future__ import annotations

from pydantic import Field

from planner.describe.base import Description

__all__ = ["Charges"]


class Charges(Description):
    """What a node-hour draws, costs and emits."""

    node_power_watts: float | None = Field(default=None, gt=0, le=1e6)
    """What a node draws while it trains [W]; None: worked out from the machine's power."""
    pue: float = Field(default=1.0, ge=1, le=10)
    """Power usage effectiveness: what the whole centre draws over what its nodes draw."""
    carbon_g_per_kwh: float | None = Field(default=None, ge=0, le=10_000)
    """Carbon intensity of the electricity [g CO2e/kWh]; None: not told."""
    price_per_node_hour: float | None = Field(default=None, ge=0, le=1e9)
    """Price of a node-hour, in a currency of the user's; None: not told."""
    price_per_kwh: float | None = Field(default=None, ge=0, le=1e6)
    """Price of a kWh, in the same currency; None: not told."""

"""Device rates: sustained FLOP/s and bytes/s of one device for one workload."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.scenario import Scenario
from planner.cost.step.time_constants import constants

__all__ = ["DeviceRates"]


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates of one device for one workload."""

    gemm: float
    grouped: float
    convolution: float
    winograd: float
    head: float
    attention: float
    uneven_context: bool
    memory: float
    units: float
    element: float

    @classmethod
    def of(cls, scenario: Scenario) -> DeviceRates:
        """Rates of the scenario's device in its precision."""
        machine, workload, framework = scenario.machine, scenario.workload, scenario.framework
        device, precision = machine.device, workload.precision
        base = workload.base_precision
        best, best_base = (
            machine.peak(name) * device.best_product(name) * device.sustained_fraction.value
            for name in (precision, base)
        )
        uneven, vectors = framework.kernels.uneven_context, precision == "fp32"
        return cls(
            gemm=best,
            grouped=best * device.grouped_gemm_fraction.value,
            convolution=best * (1.0 if vectors else device.convolution_fraction.value),
            winograd=constants().convolution.winograd_ratio.value if vectors else 1.0,
            head=best_base,
            attention=machine.peak(base)
            * device.attention_efficiency.value
            * framework.kernels.attention_fraction.value,
            uneven_context=uneven is not None and uneven.value,
            memory=device.memory_bytes_per_s.value * device.memory_efficiency.value,
            units=device.num_units.value,
            element=1 if precision == "fp8" else workload.compute_bytes,
        )

"""Figures by name, for notebooks (extra `app`): functions from a result to a plotly figure."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.show import figures as drawings
from planner.show.figures.figure_registry import FIGURES

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

for _module in pkgutil.iter_modules(drawings.__path__, f"{drawings.__name__}."):
    importlib.import_module(_module.name)

__all__ = sorted(FIGURES)


def __getattr__(name: str) -> Callable[..., Figure]:
    try:
        return FIGURES[name]
    except KeyError:
        raise AttributeError(f"planner.figures has no {name!r}; see dir(planner.figures)") from None


def __dir__() -> list[str]:
    return __all__

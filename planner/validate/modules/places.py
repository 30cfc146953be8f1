"""Places: the blocks of a module that sharding wraps, and the one that forward is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

__all__ = ["Places", "units_of"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _is_list(module: nn.Module) -> bool:
    """True for a plain container of several modules with parameters."""
    items = [child for child in module.children() if any(True for _ in child.parameters())]
    return type(module) in _CONTAINERS and len(items) > 1


def units_of(module: nn.Module, name: str = "") -> dict[str, nn.Module]:
    """Blocks of a module: the outermost entries of its lists, by name.

    A module without lists has its children as units, and one without children is one.
    """
    units = dict(_listed(module, name))
    children = {f"{name}.{key}" if name else key: child for key, child in module.named_children()}
    return units or children or {name or type(module).__name__: module}


def _listed(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if _is_list(child) or not _is_list(module):
            yield from _listed(child, path)
        else:
            yield path, child


class Places:
    """Where in a module a forward pass is: before its units, in one, or after.

    The first place is what runs before any unit, the last what runs between and after them.
    Entries of lists without parameters belong to the unit before them.
    """

    FIRST, LAST = "first", "last"

    def __init__(self, module: nn.Module, moved: Callable[[str], None]) -> None:
        self.units, self._moved = units_of(module), moved
        self.order: list[str] = [self.FIRST]
        """Places as they were entered."""
        self.now = self.FIRST
        self._inside: list[str] = []
        self.widths: dict[str, int] = {}
        """Elements of the tensors of real numbers that enter a unit."""
        moved(self.now)

    def hook(self) -> Iterator[Any]:
        """Register hooks that follow the units; yields their handles."""
        for name, unit in self.units.items():
            yield unit.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            yield unit.register_forward_hook(self._leaving, always_call=True)

    def _entering(self, name: str) -> Any:
        has_parameters = any(True for _ in self.units[name].parameters())

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            place = name
            if not has_parameters and not self._inside and len(self.order) > 1:
                place = self.order[-1]
            self._inside.append(place)
            self._go(place)
            if place not in self.order:
                self.order.append(place)
                entering = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
                self.widths[place] = sum(v.numel() for v in entering if v.is_floating_point())

        return enter

    def _leaving(self, *_: Any) -> None:
        self._inside.pop()
        self._go(self._inside[-1] if self._inside else self.LAST)

    def _go(self, place: str) -> None:
        self.now = place
        self._moved(place)

"""Constants: numbers of the cost model that belong to no machine, with their kind and source.

A part of the model describes its constants as a `Description` of quantities and keeps them in a
TOML file beside it, in the form of a machine's profile; `planner show constants` prints them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from planner.describe.base import Description
from planner.describe.files import read_toml

__all__ = ["load"]

D = TypeVar("D", bound=Description)


def load(path: Path, cls: type[D]) -> D:
    """The constants in a TOML file, every one of them; raises DescriptionError where one is not.

    >>> import planner.cost.network.collective_constants as network
    >>> network.constants().simple.base_s.value
    8.4e-06
    """
    return cls.described(read_toml(path), where=path.name)

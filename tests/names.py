"""Names of the catalogues as types, so that editors complete them: `planner/describe/names.py`.

python -m tests.names          # write it again
"""

from __future__ import annotations

from planner.describe.catalogue import names
from tests import ROOT

__all__ = ["PATH", "written"]

PATH = ROOT / "planner" / "describe" / "names.py"

_HEAD = '''"""Names of the catalogues as types: editors complete them, any other name is as good.

Written by `python -m tests.names` from the catalogues' files.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["DatasetName", "FrameworkName", "MachineName", "ModelName"]
'''
_KINDS = {
    "model": "ModelName",
    "machine": "MachineName",
    "framework": "FrameworkName",
    "dataset": "DatasetName",
}


def written() -> str:
    """The module's text, as the formatter leaves it."""
    parts = [_HEAD]
    for kind, alias in _KINDS.items():
        listed = "".join(f'    "{name}",\n' for name in names(kind))
        parts.append(
            f'\n{alias} = Literal[\n{listed}]\n"""A {kind} of the catalogue by its name."""\n'
        )
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")

"""Link: layouts and the user's own models and machines, encoded for an address."""

import base64
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.cost.estimate import Estimate
from planner.describe.files import parse_json, parse_toml
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.huggingface.config import from_config
from planner.describe.model.model import Model
from planner.errors import CatalogueError, LayoutError, shorten
from planner.show.job_texts import pack_layout as pack_layout

_MAX_CONFIG_BYTES = 1_000_000
MAX_LINK = 6000
"""Longest word in an address [characters]."""
MOST_PINS = 4
"""Most answers that are compared."""
_MAX_VALUE = 2000


def unpack_layout(text: str) -> tuple[Layout, str]:
    """Decode the layout and framework that `pack_layout` wrote."""
    framework, *parts = text[:MAX_LINK].split("~")
    fields = {}
    for part in parts:
        name, dot, value = part.partition(".")
        if not dot:
            message = f"{shorten(part)!r} in the address is not a field of a layout; "
            raise LayoutError(f"{message}open the original link again")
        fields[name] = value
    return Layout.from_text(fields, where="address"), framework


def of(estimate: Estimate) -> str:
    """Encode an estimate's layout as one word."""
    return pack_layout(estimate.layout, estimate.framework)


def parse_config(data: bytes) -> dict[str, Any]:
    """Parse the JSON object in an uploaded file. Raises CatalogueError if there is none."""
    text = _decoded(data, "a config.json has a few kB: give the configuration, not weights")
    fields = parse_json(text, "the file")
    if not isinstance(fields, dict):
        raise CatalogueError("the file is not a JSON object; give a config.json")
    return fields


def _decoded(data: bytes, remedy: str) -> str:
    if len(data) > _MAX_CONFIG_BYTES:
        raise CatalogueError(f"the file has {len(data) / 1e6:.1f} MB; {remedy}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CatalogueError("the file is not UTF-8 text; save it as UTF-8") from None


@dataclass(frozen=True, slots=True)
class OwnDescription:
    """A user's own description: a config.json, or a TOML file like those of the catalogues."""

    name: str
    """Name shown on the pages."""
    fields: dict[str, Any] | str
    """The object of a config.json, or the text of a TOML file."""

    @property
    def file_name(self) -> str:
        """Name of the file that holds the description."""
        return f"{self.name}.{'toml' if isinstance(self.fields, str) else 'json'}"

    @property
    def text(self) -> str:
        """The description as text to edit."""
        return self.fields if isinstance(self.fields, str) else json.dumps(self.fields, indent=1)

    def model(self) -> Model:
        """Load the described model."""
        if isinstance(self.fields, dict):
            return from_config(self.fields, self.name)
        fields = {**parse_toml(self.fields, self.name), "name": self.name}
        return Model.described(fields, where=self.name)

    def machine(self) -> Machine:
        """Load the described machine."""
        if isinstance(self.fields, dict):
            raise CatalogueError("a machine is described by a TOML file; give such a file")
        fields = {"title": self.name, **parse_toml(self.fields, self.name), "name": self.name}
        return Machine.described(fields, where=self.name)


def read_own(data: bytes, file_name: str) -> OwnDescription:
    """Read a description from an uploaded or edited file; its name keeps only safe characters."""
    if file_name.lower().endswith(".toml"):
        text = _decoded(data, "a description has a few kB: give a profile of the catalogue's form")
        lines = [line.rstrip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.lstrip().startswith("#")]
        return OwnDescription(_safe(file_name), "\n".join(lines))
    fields = parse_config(data)
    stated_name = str(fields.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    stem = _safe(file_name)
    if stem.lower() in ("config", "uploaded"):
        stem = _safe(stated_name or f"own-{fields.get('model_type', 'model')}")
    plain = {key: x for key, x in fields.items() if isinstance(x, (int, float, str, bool, dict))}
    small = {key: value for key, value in plain.items() if len(json.dumps(value)) < _MAX_VALUE}
    return OwnDescription(stem, small)


def _safe(name: str) -> str:
    """Reduce a file name to letters, digits, dot, dash and underscore."""
    stem = re.sub(r"\.(json|toml)$", "", name, flags=re.IGNORECASE)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
    return stem[:40] or "uploaded"


def pack_own(description: OwnDescription) -> str:
    """Compress a description into one word for an address. Raises CatalogueError if too long."""
    packed = _pack([_safe(description.name), description.fields])
    if len(packed) > MAX_LINK:
        raise CatalogueError(
            f"the description needs {len(packed)} characters in the address, at most "
            f"{MAX_LINK} are allowed; remove what does not describe numbers"
        )
    return packed


def unpack_own(packed: str) -> OwnDescription:
    """Decode the description that `pack_own` wrote."""
    described = _unpack(packed)
    is_pair = isinstance(described, list) and len(described) == 2
    name, fields = described if is_pair else ("", None)
    if not isinstance(fields, (dict, str)):
        raise CatalogueError("the description in the address is damaged; upload the file again")
    return OwnDescription(_safe(str(name)), fields)


def _pack(value: Any) -> str:
    """Compress plain data into one word."""
    text = json.dumps(value, separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()


def _unpack(packed: str) -> Any:
    """Decode what `_pack` wrote; None if it is damaged."""
    try:
        data = base64.urlsafe_b64decode(packed[:MAX_LINK].encode("ascii"))
        # limit the output: a few bytes can expand to gigabytes
        return json.loads(zlib.decompressobj().decompress(data, _MAX_CONFIG_BYTES))
    except (ValueError, zlib.error, RecursionError):
        return None


def pack_pins(pins: Sequence[dict[str, str]]) -> str:
    """Compress pinned answers, the queries of their jobs, into one word."""
    return _pack(list(pins)) if pins else ""


def unpack_pins(packed: str) -> list[dict[str, str]]:
    """Decode the pinned answers that `pack_pins` wrote. Raises CatalogueError if damaged."""
    pins = _unpack(packed) if packed else []
    if not isinstance(pins, list) or not all(isinstance(pin, dict) for pin in pins):
        raise CatalogueError(
            "the pinned answers in the address are damaged; open the original link again, or pin "
            "answers anew"
        )
    return [{key: str(value) for key, value in pin.items()} for pin in pins[:MOST_PINS]]

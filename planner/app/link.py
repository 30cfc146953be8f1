"""Link: what an address carries beside the widgets: a layout, an uploaded configuration.

Everything that comes from an address or a file is limited in size and read by the planner's own
readers, which refuse what they do not know.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from typing import Any

from planner.cost.estimate import Estimate
from planner.describe.layout import Layout
from planner.describe.model.huggingface import from_config
from planner.describe.model.model import Model
from planner.errors import CatalogueError, LayoutError, shorten

__all__ = [
    "pack_config",
    "pack_layout",
    "parse_config",
    "read_model",
    "unpack_layout",
    "unpack_model",
]

_MAX_CONFIG_BYTES = 1_000_000
_MAX_LINK = 6000


def pack_layout(layout: Layout, framework: str) -> str:
    """A layout as one word for an address.

    >>> pack_layout(Layout(dp=8, tp=4), "fsdp2")
    'fsdp2~dp.8~tp.4'
    """
    fields = layout.model_dump(mode="json", exclude_defaults=True)
    return "~".join([framework, *(f"{name}.{value}" for name, value in fields.items())])


def unpack_layout(text: str) -> tuple[Layout, str]:
    """The layout and framework that `pack_layout` wrote.

    >>> unpack_layout("fsdp2~dp.8~tp.4")[0].world
    32
    """
    framework, *parts = text[:_MAX_LINK].split("~")
    fields = {}
    for part in parts:
        name, dot, value = part.partition(".")
        if not dot:
            raise LayoutError(
                f"{shorten(part)!r} in the address is no field of a layout; open "
                "the link again as it was given"
            )
        fields[name] = value
    return Layout.from_text(fields, where="address"), framework


def of(estimate: Estimate) -> str:
    """An estimate's layout as one word."""
    return pack_layout(estimate.layout, estimate.framework)


def parse_config(data: bytes) -> dict[str, Any]:
    """The object in an uploaded file; CatalogueError in one sentence where there is none."""
    if len(data) > _MAX_CONFIG_BYTES:
        raise CatalogueError(
            f"the file has {len(data) / 1e6:.1f} MB; a config.json has a few kB: give the "
            "configuration, not weights"
        )
    try:
        fields = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise CatalogueError("the file is not UTF-8 text; give a config.json") from None
    except json.JSONDecodeError as error:
        raise CatalogueError(
            f"the file is not valid JSON: {error.msg} at line {error.lineno}, column "
            f"{error.colno}; give the config.json that transformers wrote"
        ) from None
    except (RecursionError, ValueError):
        raise CatalogueError(
            "the file is nested too deeply or holds a number with thousands of digits; give a "
            "config.json"
        ) from None
    if not isinstance(fields, dict):
        raise CatalogueError("the file holds no JSON object; give a config.json")
    return fields


def read_model(fields: dict[str, Any], name: str) -> Model:
    """The model of a configuration under a harmless name."""
    return from_config(fields, _safe(name))


def _safe(name: str) -> str:
    """Letters, digits, dot, dash and underscore of a file name; nothing else survives.

    >>> _safe("../<b>my model</b>.json")
    'b-my-model-b'
    """
    stem = re.sub(r"\.json$", "", name, flags=re.IGNORECASE)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
    return stem[:40] or "uploaded"


def pack_config(fields: dict[str, Any], name: str) -> str:
    """A configuration as one word for an address: plain values only, compressed."""
    kept = {
        key: value
        for key, value in fields.items()
        if isinstance(value, (int, float, str, bool, dict)) and len(json.dumps(value)) < 2000
    }
    text = json.dumps([_safe(name), kept], separators=(",", ":"))
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    if len(packed) > _MAX_LINK:
        raise CatalogueError(
            f"the configuration needs {len(packed)} characters in the address, at most "
            f"{_MAX_LINK} are allowed; remove what does not describe shapes"
        )
    return packed


def unpack_model(packed: str) -> Model:
    """The model that `pack_config` put into an address."""
    try:
        data = base64.urlsafe_b64decode(packed[:_MAX_LINK].encode("ascii"))
        # a limit on what comes out: a few bytes can expand to gigabytes
        text = zlib.decompressobj().decompress(data, _MAX_CONFIG_BYTES)
        name, fields = json.loads(text)
    except (ValueError, binascii.Error, zlib.error, RecursionError, TypeError):
        raise CatalogueError(
            "the configuration in the address is damaged; upload the config.json again"
        ) from None
    return read_model(fields, str(name))

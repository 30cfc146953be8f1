"""Config: a Hugging Face config.json, read as a Model without transformers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.describe.files import parse_json, read_text, read_toml
from planner.describe.model.huggingface import family_shapes
from planner.describe.model.huggingface.config_fields import KEYS, Fields, quote
from planner.describe.model.model import Model
from planner.errors import CatalogueError, DescriptionError, UnknownNameError, shorten

_TOWER_NOTE = "only the text tower of the multimodal model is estimated"


@dataclass(frozen=True, slots=True)
class Family:
    """Reader, defaults and fixed fields of one family."""

    read: Callable[[Fields], dict[str, Any]]
    defaults: Mapping[str, Any]
    """Keys of the family's config.json, with their defaults."""
    fixed: Mapping[str, Any]
    """Fields of Model that are the same for the whole family."""
    refused: tuple[str, ...]
    """Keys that add what is not described if set."""
    switched: Mapping[str, Mapping[str, Any]]
    """Fields of Model that a key sets if it is true."""
    note: str
    """Weights that are not counted."""
    written: Mapping[str, Any]
    """Fields of `Written` that config.json does not state."""


def _load_families() -> dict[str, Family]:
    """Load every family by name; a family follows the one that it is `like` in the file."""
    families: dict[str, Family] = {}
    for name, row in read_toml(Path(__file__).with_name("families.toml")).items():
        inherited = families[row["like"]].defaults if "like" in row else {}
        absent = dict.fromkeys(row.get("absent", ()))
        families[name] = Family(
            read=getattr(family_shapes, row["read"]),
            defaults={**inherited, **absent, **row.get("defaults", {})},
            fixed=row.get("fixed", {}),
            refused=tuple(row.get("refused", ())),
            switched=row.get("switched", {}),
            note=row.get("note", ""),
            written=row.get("written", {}),
        )
    return families


_UNDESCRIBED = read_toml(Path(__file__).with_name("undescribed_families.toml"))

FAMILIES = _load_families()
UNDESCRIBED = {name: group for group in _UNDESCRIBED.values() for name in group["families"]}
"""What the cost model lacks for a family, by the family's name."""


def read_config(path: Path, name: str = "") -> Model:
    """Read a config.json as a Model, by default named after its folder; raises CatalogueError."""
    where = shorten(name or str(path), 120)
    text = read_text(path)
    model = from_config(_checked(parse_json(text, where), where), name or _name(path))
    return model.replaced(source=where)


def from_config(fields: dict[str, Any], name: str) -> Model:
    """Convert the fields of a config.json to a Model; if multimodal, only its text tower."""
    _checked(fields, shorten(name, 120))
    if "peft_type" in fields:
        base = fields.get("base_model_name_or_path")
        raise CatalogueError(
            f"{shorten(name, 120)} describes a {quote(fields['peft_type'])} adapter of "
            f"{quote(base)}, not a model; give the config.json of the base model"
        )
    text, notes = _text_tower(fields, name)
    family = _family(text, name)
    spec = FAMILIES[family]
    values = Fields(text, spec.defaults, shorten(name, 120), nested=text is not fields)
    for key in spec.refused:
        if text.get(key):
            raise values.error(
                f"{key} = {quote(text[key])} adds weights or windows that are not supported; "
                "set it to false or describe the model in a TOML file"
            )
    notes += (*_quantisation(fields), *filter(None, (spec.note,)))
    switched = (changes for key, changes in spec.switched.items() if values.flag(key))
    shapes = spec.read(values)
    written = {**shapes.pop("written", {}), "activation": values.written_activation()}
    described = {
        **shapes,
        **spec.fixed,
        **{field: value for changes in switched for field, value in changes.items()},
        "written": {**spec.written, **written},
        "name": shorten(name, 120) or family,
        "family": family,
        "source": "config.json",
        "note": "; ".join(notes),
    }
    return Model.described(described, where=shorten(name, 120))


def _checked(fields: Any, where: str) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise CatalogueError(
            f"{where} holds {quote(fields)} where an object is expected; "
            "give the config.json that transformers wrote"
        )
    return fields


def _text_tower(fields: dict[str, Any], name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    text = fields.get("text_config")
    if text is None:
        return fields, (_TOWER_NOTE,) if fields.get("vision_config") is not None else ()
    if not isinstance(text, dict):
        raise DescriptionError(
            f"{shorten(name, 120)}: text_config holds {quote(text)} where an object is expected; "
            "correct the file"
        )
    inherited = {key: fields[key] for key in ("model_type", "tie_word_embeddings") if key in fields}
    return {**inherited, **text}, (_TOWER_NOTE,)


def _family(fields: dict[str, Any], name: str) -> str:
    family_names = ", ".join(sorted(FAMILIES))
    family = fields.get("model_type")
    if family is None:
        raise CatalogueError(
            f"{shorten(name, 120)} has no model_type; give the config.json that transformers "
            f"wrote, with one of {family_names}"
        )
    if not isinstance(family, str):
        raise DescriptionError(
            f"model_type = {quote(family)} is not a name; use one of {family_names}"
        )
    family = KEYS["text_towers"].get(family, family)
    if group := UNDESCRIBED.get(family):
        raise CatalogueError(
            f"{shorten(name, 120)}: model_type = {quote(family)} has {group['has']}, whose FLOP, "
            "saved tensors and state are not in the cost model; trace a torch module of it instead "
            f"(planner plan FILE.py:build, docs/howto/own-model.md), {group['trace']}"
        )
    if family not in FAMILIES:
        raise UnknownNameError(
            "model_type",
            family,
            FAMILIES,
            f"supported: {family_names}; name the family that "
            "yours is built like, or describe the model in TOML",
        )
    return family


def _quantisation(fields: dict[str, Any]) -> tuple[str, ...]:
    for key in ("quantization_config", "quantization"):
        if fields.get(key) is not None:
            table = fields[key]
            method = table.get("quant_method") if isinstance(table, dict) else None
            how = f" ({shorten(method, 120)})" if isinstance(method, str) else ""
            return (f"{key}{how} is ignored: the weights are estimated unquantised",)
    return ()


def _name(path: Path) -> str:
    """Name a model after its folder, or after its repository in the hub's cache."""
    if path.stem != "config":
        return shorten(path.stem, 120)
    folder = path.absolute().parent
    if folder.parent.name == "snapshots":
        return shorten(folder.parent.parent.name.removeprefix("models--").replace("--", "/"), 120)
    return shorten(folder.name, 120)

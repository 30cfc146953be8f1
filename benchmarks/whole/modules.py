"""User-defined torch modules against published figures of torchvision and nanoGPT."""

from __future__ import annotations

from pathlib import Path

from planner.describe.catalogue import load_model

__all__ = ["rows"]

Row = tuple[str, str, float, float, str]

EXAMPLES = Path(__file__).parents[2] / "tests" / "validate" / "trace" / "examples.py"
VISION = "github pytorch/vision, torchvision/models/resnet.py, meta of {}: {}; definition"
NANOGPT = "github karpathy/nanoGPT @3adf61e1, model.py: GPT-2 124M by its sizes; definition"


def rows() -> list[Row]:
    """Return rows: parameters and multiply-adds of traced modules; needs torch."""
    found: list[Row] = []
    for function, name, params, giga in (
        ("resnet", "ResNet50_Weights", 25_557_032, 4.089),
        ("resnet_152", "ResNet152_Weights", 60_192_808, 11.514),
    ):
        traced = load_model(f"{EXAMPLES}:{function}").traced
        assert traced is not None
        for what, unit, published, ours, key in (
            ("parameters", "1", float(params), float(traced.num_params), "num_params"),
            ("multiply-adds of a picture", "G", giga, traced.flop / 2e9, "_ops"),
        ):
            source = VISION.format(name, key)
            found.append((f"{function} from a module, {what}", unit, published, ours, source))
    gpt2 = float(load_model(f"{EXAMPLES}:gpt2").num_params)
    found.append(("gpt2 from a module, parameters", "1", 124_439_808.0, gpt2, NANOGPT))
    return found

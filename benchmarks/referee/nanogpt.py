"""nanoGPT: its model on one device, under autocast as in its train.py."""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from planner.validate.folder.tracked import Job, measure

__all__ = ["run"]

_cross_entropy = F.cross_entropy


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Track a step: `logits, loss = model(X, Y)` stays alive through backward; fused AdamW."""
    # CUDA's autocast runs the loss in fp32, the CPU's does not
    F.cross_entropy = lambda logits, *args, **named: _cross_entropy(logits.float(), *args, **named)
    from model import GPT, GPTConfig

    sizes, layout = case["config"], case["layout"]

    def build():
        config = GPTConfig(
            block_size=sizes["n_positions"],
            vocab_size=sizes["vocab_size"],
            n_layer=sizes["n_layer"],
            n_head=sizes["n_head"],
            n_embd=sizes["n_embd"],
            dropout=0.0,
        )
        with torch.device("meta"):
            model = GPT(config)

        def materialise() -> Job:
            model.to_empty(device="cpu")
            # to_empty unties the head: tie it to the embedding again, as in GPT's constructor
            model.lm_head.weight = model.transformer.wte.weight
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            shape = (layout["micro_batch"], case["sequence"])
            tokens, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))

            def forward():
                with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                    logits, loss = model(tokens, labels)
                return loss, logits

            return Job(
                model, optimizer, forward, layout["grad_accumulation"], batch=[tokens, labels]
            )

        return materialise

    return measure(build, 1)

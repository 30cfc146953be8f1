"""Documents: what a user's own program does so that they attend, or are padded, as estimated."""

from __future__ import annotations

from dataclasses import replace

from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import not_expressible
from planner.emitters.recipe import OWN_PROGRAM, Recipe

__all__ = ["with_documents"]

# TRL's sft_config.py (bfd packing is padding-free, with FlashAttention alone) and LLaMA-Factory's
# model_utils/packing.py (cu_seqlens from its mask with fa2; collator.py: a 4-D mask with others)
_PACKED = (
    "Documents of {mean:,.0f} tokens on average share sequences of {sequence:,}, and each attends "
    f"to itself alone. `{OWN_PROGRAM}` does that with a kernel that skips the rest, such as "
    "FlashAttention with `cu_seqlens` (TRL: `packing` with `attn_implementation` "
    "`flash_attention_2`; LLaMA-Factory: `neat_packing` with `flash_attn: fa2`): a mask over whole "
    "sequences takes their whole time."
)
_PADDED = (
    "A sequence holds one document, {mean:,.0f} tokens on average: `{program}` pads every one to "
    '{sequence:,} tokens (`padding="max_length"`) and leaves padding out of the loss.'
)


def with_documents(job: BatchJob, recipe: Recipe) -> Recipe:
    """The recipe with a sentence on documents where the program is the user's own.

    Raises EmitError where a framework's program would let them attend to each other.
    """
    workload = job.workload
    if not workload.document_lengths:
        return recipe
    if recipe.default_program != OWN_PROGRAM:
        if job.framework.code.masks_documents:
            return recipe
        raise not_expressible("document_lengths", job.framework.name, "no document_lengths")
    sentence = _PACKED if workload.packing == "packed" else _PADDED
    mean = sum(workload.document_lengths) / len(workload.document_lengths)
    note = sentence.format(mean=mean, sequence=workload.sequence_length, program=OWN_PROGRAM)
    return replace(recipe, notes=(*recipe.notes, note))

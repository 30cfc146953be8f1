"""Dataset: the samples that a training reads, their files, and the loader that reads them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from planner.describe.base import Description, Quantity
from planner.errors import DescriptionError

__all__ = ["CoreTime", "Dataset", "Loader", "SampleBytes", "Samples", "Staging"]


class Samples(Quantity):
    """How many samples there are."""

    value: float = Field(ge=1e-6, le=1e16)
    """A number of samples; less than 1 a file where a sample is spread over several."""


class SampleBytes(Quantity):
    """What one sample takes."""

    value: float = Field(ge=0, le=1e13)
    """Bytes [B]."""


class CoreTime(Quantity):
    """Work of one core of the host."""

    value: float = Field(ge=0, le=1e5)
    """Seconds of one core [s]."""


class Dataset(Description):
    """The samples that a training reads, as they lie in files."""

    name: str
    """Name on the command line."""
    title: str
    """What it is, and of which benchmark."""
    unit: Literal["sample", "token"] = "sample"
    """What is counted below: samples as they are read, or tokens, which `of_sequences` joins."""
    num_samples: Samples
    """Samples of one epoch."""
    sample_bytes: SampleBytes
    """What one takes in its file, the mean [B]."""
    spread_bytes: SampleBytes | None = None
    """Standard deviation of that; none where all are alike [B]."""
    samples_per_file: Samples
    """How many lie in one file; less than 1 where one is spread over several."""
    order: Literal["random", "sequential"] = "random"
    """How files are made to be read: any sample by itself, or one after the other, as the records
    of TFRecord and WebDataset."""
    decoded_bytes: SampleBytes | None = None
    """What one takes once decoded, on its way to the device; as in the file if not stated [B]."""
    compressed: bool = False
    """Whether the files hold samples that the host has to decompress, as JPEG and gzip."""
    decode_s: CoreTime
    """What decoding and augmenting one takes of one core [s]."""
    sources: dict[str, str] = Field(default_factory=dict)
    """Source ids used in the quantities, spelled out."""
    notes: tuple[str, ...] = ()
    """Doubts and disagreements between sources."""

    @model_validator(mode="after")
    def _not_empty(self) -> Dataset:
        if not self.sample_bytes.value:
            raise ValueError("sample_bytes = 0: a sample takes some bytes; give its mean")
        return self

    @property
    def total_bytes(self) -> float:
        """All its files [B]."""
        return self.num_samples.value * self.sample_bytes.value

    @property
    def num_files(self) -> float:
        """How many files it lies in."""
        return max(self.num_samples.value / self.samples_per_file.value, 1.0)

    @property
    def host_bytes(self) -> float:
        """What one sample takes once decoded [B]."""
        return (self.decoded_bytes or self.sample_bytes).value

    def of_sequences(self, length: int) -> Dataset:
        """The dataset in sequences of some tokens; one of samples stays as it is.

        Raises DescriptionError where there are fewer tokens than one sequence has.
        """
        if self.unit == "sample":
            return self
        if not 1 <= length <= self.num_samples.value:
            raise DescriptionError(
                f"sequence_length = {length} cannot be cut from the {self.num_samples.value:g} "
                f"tokens of {self.name}; use 1 to {self.num_samples.value:g}"
            )
        fields = self.model_dump() | {"unit": "sample"}
        for name, factor in (
            ("num_samples", 1 / length),
            ("samples_per_file", 1 / length),
            ("sample_bytes", length),
            ("decoded_bytes", length),
            ("decode_s", length),
        ):
            if fields[name]:
                fields[name]["value"] *= factor
        return Dataset.described(fields)


Staging = Literal["none", "local-disk", "memory"]


class Loader(Description):
    """How a training reads its dataset. The defaults are those of torch's DataLoader and a stripe
    count of one, but for the workers."""

    workers: int = Field(default=4, ge=0, le=1024)
    """Processes or threads of every rank that read and decode; 0: the rank itself does it, between
    its steps."""
    prefetch: int = Field(default=2, ge=0, le=10_000)
    """Batches that every worker has ready beforehand; 0: none, a step waits for its batch."""
    order: Literal["random", "sequential"] | None = None
    """How samples are read inside a file, each by itself or one after the other; as the dataset's
    files are made for where it is not said."""
    sharded: bool = False
    """Whether a node reads the same part of the dataset in every epoch, and not any part of it."""
    staging: Staging = "none"
    """What a node keeps: nothing; the dataset (or its shard) on its own disk, copied there before
    the first step; or in memory what it has read, as the page cache does."""
    stripe_count: int = Field(default=1, ge=1, le=100_000)
    """Storage targets over which every file is spread."""
    file_system: str = Field(default="", max_length=100)
    """Shared file system that the dataset lies on; the machine's first where it is not said."""

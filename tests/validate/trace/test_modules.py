"""Modules: what is traced of them is what torch keeps, and estimates follow from it."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import planner  # noqa: E402
from planner import Layout, Workload, load_framework, load_model  # noqa: E402
from planner.cli import main  # noqa: E402
from planner.cost.operators.blocks import blocks  # noqa: E402
from planner.cost.operators.operations import model_flop  # noqa: E402
from planner.describe.model.model import Model  # noqa: E402
from planner.describe.model.traced_file import Traced, traced_fields  # noqa: E402
from planner.errors import PlannerError  # noqa: E402
from planner.show.descriptions import model_toml  # noqa: E402
from planner.validate.sharding.recorders import StorageTimeline  # noqa: E402
from planner.validate.trace.module_trace import trace_file, trace_module  # noqa: E402
from planner.validate.trace.user_module import Sample  # noqa: E402
from tests.validate.trace import examples  # noqa: E402

pytestmark = pytest.mark.slow

FILE = str(Path(examples.__file__))
_APART = ("runtime_context", "allocator_reserve", "total")
_FOUND: dict[str, Model] = {}


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest) -> None:
    """Trace in this process, but for tests that ask for a worker."""
    if "worker" not in request.fixturenames:
        request.getfixturevalue("traced_here")


@pytest.fixture
def worker() -> None:
    """A worker traces in a process of its own."""


def model(name: str) -> Model:
    """A traced example, traced once."""
    if name not in _FOUND:
        _FOUND[name] = load_model(f"{FILE}:{name}")
    return _FOUND[name]


def traced(name: str) -> Traced:
    """What was traced of it."""
    found = model(name).traced
    assert found is not None
    return found


def test_resnet_50_has_its_published_size() -> None:
    """torchvision documents 25,557,032 parameters and 4.09 GFLOPS (multiply-adds) of ResNet-50."""
    found = traced("resnet")
    assert found.num_params == 25_557_032
    assert found.flop / 2e9 == pytest.approx(4.089, abs=5e-4)
    # every stage: its first block, and the others, which are equal
    assert [block.count for block in found.blocks] == [1, 1, 2, 1, 3, 1, 5, 1, 2, 1]
    # running mean and variance of 26,560 channels, and 53 counters of 8 bytes
    assert found.buffer_bytes == 2 * 4 * 26_560 + 53 * 8


def test_repeated_traces_are_the_same_to_the_byte() -> None:
    first, second = (json.dumps(trace_file(FILE, "small_resnet")) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["small_resnet", "small_gpt", "encoder"])
def test_products_are_those_that_torch_counts(name: str) -> None:
    module, sample = getattr(examples, name)()
    given = sample if isinstance(sample, dict) else {0: sample}
    args = {key: torch.zeros((4, *one.shape), dtype=one.dtype) for key, one in given.items()}
    with FlopCounterMode(display=False) as counter:
        if isinstance(sample, dict):
            module(**args)
        else:
            module(args[0])
    # torch's counter does not know the CPU's fused attention: two products of every query and key
    fused = {"small_gpt": 3 * 64 * 64 * 64, "encoder": 4 * 128 * 128 * 128}.get(name, 0)
    assert traced(name).flop == counter.get_total_flops() / 4 + 2 * 2 * fused


def _kept_on_cpu(build: Callable[[], Any], batch: int) -> int:
    """Bytes that a real forward pass on the CPU leaves for backward, parameters left out."""
    module, sample = build()
    given = sample if isinstance(sample, dict) else {0: sample}
    args = {key: torch.zeros((batch, *one.shape), dtype=one.dtype) for key, one in given.items()}
    mine = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    seen: dict[int, int] = {t.untyped_storage().data_ptr(): t.nbytes for t in args.values()}
    alive = []

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = module(**args) if isinstance(sample, dict) else module(args[0])
    del result
    return sum(seen.values())


@pytest.mark.parametrize("name", ["small_resnet", "small_gpt", "encoder"])
def test_what_is_kept_is_what_torch_really_keeps(name: str) -> None:
    """Saved tensors of real forward passes on the CPU, counted by their addresses."""
    small, large = (_kept_on_cpu(getattr(examples, name), batch) for batch in (3, 8))
    found = traced(name)
    kept = sum(block.count * block.saved.fp32 for block in found.blocks)
    assert kept == (large - small) / 5


def test_dropout_keeps_masks_of_a_byte() -> None:
    """An accelerator's mask is one byte; fused attention drops inside its kernel."""
    (plain, dropped) = (traced(name) for name in ("encoder", "encoder_with_dropout"))
    more = [
        after.saved.fp32 - before.saved.fp32
        for before, after in zip(plain.blocks, dropped.blocks, strict=True)
    ]
    # of a layer: behind attention and both products, the second of which is four times as wide
    assert more == [0, (1 + 4 + 1) * 128 * 128, 0] or more == [0, 128 * 128 * (1 + 4 * 5 + 1), 0]
    assert plain.flop == dropped.flop


@pytest.mark.parametrize("fake", [False, True])
def test_a_tensor_that_is_waited_for_is_counted_once_and_let_go(fake: bool) -> None:
    """torch returns the tensor itself; its fake operator returns a copy."""
    timeline = StorageTimeline()

    def live() -> int:
        return sum(event.bytes for event in timeline.live(len(timeline.events)))

    with FakeTensorMode() if fake else contextlib.nullcontext(), timeline:
        sent = torch.empty(8)
        result = torch.ops._c10d_functional.wait_tensor(sent)
        assert live() == 32
        del sent
        assert live() == 32
        del result
        assert live() == 0


def _peak(name: str, batch: int) -> int:
    """Bytes at the peak of a real training step on the CPU, but for the flat buckets of DDP."""
    module, sample = getattr(examples, name)()
    given = sample if isinstance(sample, dict) else {0: sample}
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    timeline = StorageTimeline()
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    with timeline:
        for parameter in module.parameters():
            timeline.watch(parameter)
        for state in optimizer.state.values():
            for value in state.values():
                timeline.watch(value)
        args = {k: torch.zeros((batch, *one.shape), dtype=one.dtype) for k, one in given.items()}
        result = module(**args) if isinstance(sample, dict) else module(args[0])
        loss = (
            next((one for one in result if one.dim() == 0), None) if name == "small_gpt" else None
        )
        (result.sum() if loss is None else loss).backward()
        optimizer.step()
        timeline.moment("end")
    peaks = timeline.peaks(0, timeline.moments["end"])
    return max(size for size, _ in peaks.values())


@pytest.mark.parametrize("name", ["small_resnet", "small_gpt", "encoder"])
def test_memory_of_ddp_is_that_of_a_real_step(name: str) -> None:
    batch = 32
    found = planner.estimate(
        model(name),
        "polaris",
        Layout(dp=4, micro_batch=batch),
        workload=Workload(sequence_length=1, global_batch=4 * batch, precision="fp32"),
        framework="ddp",
    )
    said = sum(size for part, size in found.memory_bytes.items() if part not in _APART)
    assert said == pytest.approx(_peak(name, batch), rel=0.01)


def _both(
    name: str, framework: str, precision: str, batch: int
) -> tuple[planner.Estimate, planner.Estimate]:
    """GPT-2 traced from a module, and that of the catalogue."""
    layout = Layout(dp=4, micro_batch=batch, zero_stage=0 if framework == "ddp" else 3)
    loaded = load_framework(framework)
    # the module is nanoGPT's, not that of transformers, which fsdp2 counts for the catalogue's
    own = loaded.replaced(code={**loaded.code.model_dump(), "other_blocks": {}})
    return tuple(  # type: ignore[return-value]
        planner.estimate(
            described,
            "polaris",
            layout,
            workload=Workload.described(
                {
                    "sequence_length": length,
                    "global_batch": 4 * batch,
                    "precision": precision,
                    "dropout": 0.0,
                }
            ),
            framework=own,
        )
        for described, length in ((model(name), 1), (load_model("gpt2"), 1024))
    )


@pytest.mark.parametrize(
    ("name", "framework", "precision", "slower"),
    [
        ("gpt2", "ddp", "fp32", 0.01),
        # casts of activations under autocast are kernels that the catalogue's blocks leave out
        ("gpt2", "ddp", "bf16", 0.11),
        ("gpt2_with_exact_loss", "fsdp2", "bf16", 0.05),
        ("gpt2_with_exact_loss", "fsdp2", "fp32", 0.01),
    ],
)
def test_gpt2_from_a_module_is_that_of_the_catalogue(
    name: str, framework: str, precision: str, slower: float
) -> None:
    ours, catalogued = _both(name, framework, precision, 4)
    assert model(name).num_params == load_model("gpt2").num_params == 124_439_808
    assert ours.memory_bytes["total"] == pytest.approx(catalogued.memory_bytes["total"], rel=1e-3)
    assert ours.step_time_s == pytest.approx(catalogued.step_time_s, rel=slower)


def test_gpt2_from_a_module_computes_as_much() -> None:
    described = load_framework("ddp")
    flop = [
        float(model_flop(blocks(one, job, described), job))
        for one, job in (
            (model("gpt2"), Workload(sequence_length=1)),
            (load_model("gpt2"), Workload(sequence_length=1024)),
        )
    ]
    assert flop[0] == flop[1]


def test_a_step_of_resnet_50_takes_as_long_as_the_catalogues() -> None:
    """Stages of convolutions that were written by hand, with the same places and kernels."""
    layout = Layout(dp=4, micro_batch=128)
    job = Workload.described({"sequence_length": 1, "global_batch": 512, "precision": "fp32"})
    try:
        stages = planner.estimate("resnet-50", "polaris", layout, workload=job, framework="ddp")
    except PlannerError:
        pytest.skip("convolutional networks of the catalogue are not planned")
    ours = planner.estimate(model("resnet"), "polaris", layout, workload=job, framework="ddp")
    assert ours.step_time_s == pytest.approx(stages.step_time_s, rel=0.02)
    assert ours.memory_bytes["total"] == pytest.approx(stages.memory_bytes["total"], rel=0.03)


def test_models_of_transformers_are_traced_as_they_are(tmp_path: Path) -> None:
    """GPT-2 as transformers writes it: the same parameters and products as our own."""
    pytest.importorskip("transformers")
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel\n"
        "def build():\n    ids = torch.empty(1024, dtype=torch.long)\n"
        "    net = GPT2LMHeadModel(GPT2Config(use_cache=False))\n"
        "    return net, {'input_ids': ids, 'labels': ids}\n"
    )
    found = load_model(f"{path}:build")
    assert found.num_params == 124_439_808
    assert found.traced is not None
    assert found.traced.flop == traced("gpt2").flop
    assert [block.count for block in found.traced.blocks] == [1, 12, 1]


def test_the_example_of_the_documents_is_planned() -> None:
    path = Path(__file__).parents[3] / "docs" / "howto" / "own_module.py"
    answer = planner.plan(f"{path}:build", "polaris", nodes=2)
    assert answer.fits
    (_, block, _) = load_model(f"{path}:build").traced.blocks  # type: ignore[union-attr]
    assert (block.count, block.num_params) == (24, 12 * 1024**2 + 13 * 1024)


def test_the_command_line_writes_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        assert stopped.value.code == 0
        return capsys.readouterr().out

    name, path = f"{FILE}:small_resnet", tmp_path / "net.toml"
    path.write_text(run("show", name, "--toml"))
    job = ("-m", "polaris", "-n", "2", "--global-batch", "256", "--json")
    answers = [json.loads(run("plan", one, *job)) for one in (name, str(path))]
    assert [one.pop("model") for one in answers] == ["examples.py:small_resnet", "net"]
    steps = [one["best"]["step_time_s"] for one in answers]
    assert steps[0] == steps[1]
    assert "stages.1.1" in run("show", str(path))


def test_the_explorer_takes_its_numbers_and_runs_no_file() -> None:
    pytest.importorskip("streamlit")
    from planner.app import link

    own = link.read_own(model_toml(model("resnet")).encode(), "resnet.toml")
    packed = link.pack_own(own)
    assert link.unpack_own(packed).model().num_params == 25_557_032
    with pytest.raises(PlannerError):
        link.read_own(Path(FILE).read_bytes(), "examples.py").model()


# --- what goes wrong --------------------------------------------------------------------------

_HEAD = "import torch\nfrom torch import nn\n"
_FORWARD = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.a = nn.Linear(8, 8)\n    def forward(self, x):\n"
    "        y = self.a(x)\n        {}\n"
    "def build(): return Net(), torch.empty(8)\n"
)
_WRONG = {
    "def build(": "line 3 of .* raised SyntaxError",
    "import no_such_package": "line 3 of .* raised ModuleNotFoundError: .*no_such_package",
    "def other(): pass": r"no function 'build' \(it defines other\)",
    "def build(): return {}['width']": "line 3 of .* raised KeyError: 'width'",
    "def build(): raise SystemExit(3)": "line 3 of .* raised SystemExit",
    "def build(): return nn.Linear(8, 8)": r"returned a Linear; return \(module, sample\)",
    "def build(): return 3, 4": r"returned a tuple of int, int; return \(module, sample\)",
    "def build(): return nn.Linear(8, 8), ()": "returned a tuple of nothing as the sample",
    "def build(): return nn.Linear(8, 8), torch.empty(7)": "its forward pass raised RuntimeError",
    "def build(): return nn.Linear(8, int(torch.ones(1).item())), torch.empty(8)": (
        "reads the value of a tensor"
    ),
    _FORWARD.format("return y if y.sum() > 0 else -y"): "line 9 of .* reads the value",
    _FORWARD.format("return y[y > 0]"): "line 9 of .* reads the value",
    _FORWARD.format("return (y @ y.t()).logsumexp(1)"): "is not linear in the batch",
    _FORWARD.format("return y.detach()"): "nothing to train",
}


@pytest.mark.parametrize("text", _WRONG)
def test_what_goes_wrong_is_said_in_one_sentence(text: str, tmp_path: Path) -> None:
    _refused(text, _WRONG[text], tmp_path)


def test_a_file_that_ends_its_process_is_named(worker: None, tmp_path: Path) -> None:
    text = "import os\ndef build(): os._exit(3)"
    _refused(text, "ended the process that traces it", tmp_path)


def _refused(text: str, words: str, folder: Path) -> None:
    path = folder / "net.py"
    path.write_text(_HEAD + text + "\n")
    with pytest.raises(PlannerError, match=words) as caught:
        load_model(f"{path}:build")
    assert "Traceback" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_traced_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    text = _HEAD + "def build(): return nn.Linear(8, {}), torch.empty(8)\n"
    counts = []
    for width in (4, 16):
        path.write_text(text.format(width))
        counts.append(load_model(f"{path}:build").num_params)
    assert counts == [4 * 9, 16 * 9]


def test_what_the_file_prints_mixes_with_nothing(worker: None, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(_HEAD + "print('{}')\ndef build(): return nn.Linear(8, 8), torch.empty(8)\n")
    assert traced_fields(f"{path}:build", run=True)["traced"]["blocks"]


def test_shared_and_frozen_parameters() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])
            self.layers[2].weight = self.layers[0].weight
            for parameter in self.layers[1].parameters():
                parameter.requires_grad = False

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x

    found = Traced.described(trace_module(Net(), Sample({0: torch.empty(8)})))
    assert found.num_params == 2 * 64 + 3 * 8
    layers = [block for block in found.blocks if block.role == "repeated"]
    assert [
        weight.shared for block in layers for weight in block.weights if weight.columns > 1
    ] == [
        False,
        False,
        True,
    ]
    assert not any(weight.trainable for weight in layers[1].weights)

"""The model catalogue: every file loads, and its parameters are exact."""

from __future__ import annotations

import pytest

from planner.describe.catalogue import load_model, names

# Counts of transformers 5.23 (AutoModelForCausalLM, AutoModel for BERT and ViT) on the meta
# device, each described from the source that its file cites. GPT-3's family: 12 l h^2 + 13 l h
# + (V + s) h + 2 h, Narayanan et al. 2021, arXiv:2104.04473, section 5.1 (with its final norm).
# ResNet-50: torchvision's documented count. 3D U-Net: the MLPerf reference, instantiated.
TOTALS = {
    "auroragpt-7b": 5_933_109_248,
    "bert-large": 335_174_458,
    "bloom-176b": 176_247_271_424,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "falcon-180b": 178_557_088_768,
    "falcon-40b": 41_303_293_952,
    "gemma-2-27b": 27_227_128_320,
    # SwissArmyTransformer's glm130B_model.py: attention 4 h^2 + 4 h, GeGLU 3 h f + 2 f + h, two
    # norms 4 h, the final norm and the word embedding
    "glm-130b": 70 * (4 * 12288**2 + 3 * 12288 * 32768 + 9 * 12288 + 2 * 32768) + 150_530 * 12288,
    "glm-4.5-air": 106_852_245_504,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "kimi-k2": 1_026_408_209_408,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3-70b": 70_553_706_496,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-4-scout": 107_769_861_120,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "mt-nlg-530b": 529_600_819_200,
    "nemotron-4-340b": 341_029_195_776,
    "olmo-2-7b": 7_298_617_344,
    "opt-175b": 174_604_468_224,
    "opt-66b": 65_719_701_504,
    "phi-3-mini": 3_821_079_552,
    "ptdp-1.7b": 1_652_230_656,
    "ptdp-145b": 145_622_261_760,
    "ptdp-18b": 18_449_756_160,
    "ptdp-1t": 1_008_038_758_400,
    "ptdp-3.6b": 3_562_168_320,
    "ptdp-310b": 310_130_540_544,
    "ptdp-39b": 39_096_041_472,
    "ptdp-7.5b": 7_467_786_240,
    "ptdp-76b": 76_050_739_200,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-8b": 8_190_735_360,
    "cosmoflow": 8_907_556,
    "mt5-3b-nemo": 3_233_296_728,
    "resnet-50": 25_557_032,
    "resnet-50-v1": 25_557_032,
    # transformers' T5ForConditionalGeneration of google-t5/t5-large has as many
    "t5-large": 737_668_096,
    "t5-3b-nemo": 2_780_254_632,
    "smollm3-3b": 3_075_098_624,
    "unet3d-mlperf": 31_190_243,
    "vit-h-14": 632_404_480,
    "wordplay-85m-char": 85_790_208,
}


def test_table_covers_the_catalogue() -> None:
    assert set(names("model")) == set(TOTALS)


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_parameters_are_exact(name: str, total: int) -> None:
    assert load_model(name).num_params == total


@pytest.mark.parametrize("name", TOTALS)
def test_entry_is_complete(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert len(model.source) > 10
    if model.convolutional is None and model.kind == "decoder":
        assert model.max_sequence_length > 0
    assert (model.num_position_rows > 0) == (model.position == "learned")
    assert (model.sliding_window > 0) == (model.num_window_layers > 0)


def test_wordplay_prints_fewer_than_it_trains() -> None:
    # github.com/saforem2/wordplay, log: num_params=85003776; 85,771,008 decayed parameters and
    # 19,200 others, which include the position table (1024 x 768)
    model = load_model("wordplay-85m-char")
    assert model.reported_params == 85_003_776
    assert model.num_params - model.reported_params == 1024 * 768
    assert model.num_params == 85_771_008 + 19_200
    assert "position table" in model.reported_how


@pytest.mark.parametrize(
    ("name", "billions"),
    # Narayanan et al. 2021, arXiv:2104.04473, table 1, column "Number of parameters"
    [
        ("ptdp-1.7b", 1.7),
        ("ptdp-3.6b", 3.6),
        ("ptdp-7.5b", 7.5),
        ("ptdp-18b", 18.4),
        ("ptdp-39b", 39.1),
        ("ptdp-76b", 76.1),
        ("ptdp-145b", 145.6),
        ("ptdp-310b", 310.1),
        ("mt-nlg-530b", 529.6),
        ("ptdp-1t", 1008.0),
    ],
)
def test_published_billions(name: str, billions: float) -> None:
    assert load_model(name).num_params / 1e9 == pytest.approx(billions, abs=0.06)


@pytest.mark.parametrize("name", ["gpt3-175b", "mt-nlg-530b", "ptdp-145b", "bert-large"])
def test_dropout_where_the_papers_train_with_it(name: str) -> None:
    assert load_model(name).dropout == 0.1


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "wordplay-85m-char", "deepseek-v3"])
def test_no_dropout_in_modern_training(name: str) -> None:
    assert load_model(name).dropout == 0

"""Models and cards that nobody has at hand: names, tensors and weights, against real files and published logs."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from offloadtune import catalogue
from offloadtune.catalogue.shapes import shapes
from offloadtune.catalogue.tensors import tensors_of
from offloadtune.errors import UnknownNameError
from offloadtune.gguf import facts_of_parts, read_gguf
from offloadtune.gguf.tables import FILE_TYPES
from offloadtune.pipeline.shapes import facts_of_shape
from offloadtune.records import GgufFacts

MIB = 1024**2
LOGS = Path(__file__).parents[2] / "benchmarks" / "data" / "memory_records.csv"
SHAPES = {shape.key: shape for shape in shapes()}


def log_rows() -> list[dict[str, str]]:
    with LOGS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama-3.1-70b", "llama-3.1-70b"),
        ("Llama 3.3 70B", "llama-3.1-70b"),
        ("llama3.1-70b", "llama-3.1-70b"),
        ("Llama-3.1-70B / 3.3-70B", "llama-3.1-70b"),
        ("Meta_Llama_3.1_8B_Instruct", "llama-3.1-8b"),
        ("QwQ 32B", "qwen2.5-32b"),
        ("Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("gemma-3-27b-it", "gemma-3-27b"),
        ("Mistral 7B Instruct v0.3", "mistral-7b-v0.3"),
        ("GPT OSS 20b", "gpt-oss-20b"),
        ("phi4", "phi-4"),
        ("Qwen3.6-27B", "qwen3.8-27b"),
        ("Qwen3.5-4B (hybrid)", "qwen3.5-4b"),
        ("Qwen3-30B-A3B (3.3B active)", "qwen3-30b-a3b"),
        ("Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b-2507"),
        ("gemma-4 12B QAT", "gemma-4-12b"),
        ("gemma-4 31B", "gemma-4-31b"),
        ("Codestral 22B", "codestral-22b"),
        ("LLaMA-1 65B", "llama-1-65b"),
        ("LLaMA 13B", "llama-1-13b"),
        ("Llama-3.2 1B Instruct", "llama-3.2-1b"),
        ("Phi-3-medium 14B", "phi-3-medium-4k"),
        ("Qwen2.5-Coder 0.5B", "qwen2.5-0.5b"),
        ("DeepSeek-R1-Distill-Qwen 7B", "deepseek-r1-distill-qwen-7b"),
        ("DeepSeek-Coder-V2-Lite 16B-A2.4B", "deepseek-v2-lite"),
    ],
)
def test_a_model_is_found_however_it_is_written(name: str, key: str) -> None:
    assert catalogue.find_shape(name).key == key


@pytest.mark.parametrize("key", SHAPES)
def test_every_model_answers_to_its_key_label_and_aliases(key: str) -> None:
    shape = SHAPES[key]
    assert [catalogue.find_shape(name) for name in (key, shape.label, *shape.aliases)] == [shape] * (
        2 + len(shape.aliases)
    )


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("RTX 3090", "RTX 3090"),
        ("rtx3090", "RTX 3090"),
        ("3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("geforce rtx 4060 ti 16gb", "RTX 4060 Ti 16 GB"),
        ("RTX 3080 10 GB", "RTX 3080"),
        ("NVIDIA GeForce RTX 3060", "RTX 3060 12 GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Mobile"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("AMD Radeon RX 580 Series (RADV POLARIS10)", "RX 580"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI210", "MI210"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80 GB"),
        ("NVIDIA H200", "H200 SXM 141 GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94 GB"),
        ("NVIDIA A40", "A40 PCIe"),
        ("NVIDIA L40", "L40"),
        ("A100 PCIe", "A100 PCIe 80 GB"),
        ("V100 32GB", "Tesla V100 PCIe 32 GB"),
        ("Tesla P100-SXM2-16GB", "Tesla P100 SXM2 16 GB"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
        ("RTX 4000 Ada", "RTX 4000 Ada Generation"),
        ("RTX 4090 D", "RTX 4090 D"),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", "RTX 2070 Max-Q"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "RTX 3080 Mobile"),
        ("NVIDIA RTX A2000 8GB Laptop GPU", "RTX A2000 Mobile 8 GB"),
        ("RTX PRO 3000 Blackwell", "RTX PRO 3000 Blackwell Mobile"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("RTX PRO 6000 Max-Q", "RTX PRO 6000 Blackwell Max-Q"),
        ("Strix Halo 8060S", "Strix Halo Radeon 8060S"),
        ("Apple M3 Max", "Apple M3 Max (40-core)"),
        ("Apple M1 Max 32-Core GPU", "Apple M1 Max (32-core)"),
        ("Apple M1 Max 8P+2E+24GPU", "Apple M1 Max 24-core"),
    ],
)
def test_a_card_is_found_however_it_is_written(name: str, full: str) -> None:
    assert catalogue.find_card(name).name == full


@pytest.mark.parametrize("name", catalogue.card_names())
def test_every_card_answers_to_its_own_name(name: str) -> None:
    card = catalogue.find_card(name)
    assert card.name == name
    assert card.vram_bytes is None or 2**30 < card.vram_bytes < 2**40


def test_a_card_of_several_sizes_is_not_guessed() -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalogue.find_card("rtx 4060 ti")
    assert "RTX 4060 Ti 8 GB, RTX 4060 Ti 16 GB" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "gib", "full"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 7.99, "RTX 4060 Ti 8 GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 15.99, "RTX 4060 Ti 16 GB"),
        ("RTX 5060 Ti", 15, "RTX 5060 Ti 16 GB"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16, "RTX 3080 Mobile 16 GB"),
        ("GTX 1060", 3, "GTX 1060 3 GB"),
        ("Tesla V100-SXM2", 16, "Tesla V100 SXM2 16 GB"),
        ("RTX 4090 D", 47, "RTX 4090 D"),  # rebuilt with twice the memory
        ("RTX 3090", 22.5, "RTX 3090"),  # error correction takes its part
        ("RTX 3090", 0, "RTX 3090"),  # the driver does not say
        ("Apple M2 Max", 21, "Apple M2 Max (38-core)"),  # of whatever was bought
        ("AMD Radeon 780M", 3, "Radeon 780M (iGPU)"),
        ("AMD Radeon RX 580 Series (RADV POLARIS10)", 8, "RX 580"),
        ("AMD Instinct MI300X", 191.98, "MI300X"),
    ],
)
def test_what_a_driver_says_of_its_memory_chooses_the_card(name: str, gib: float, full: str) -> None:
    assert catalogue.find_card(name, vram_bytes=round(gib * 2**30)).name == full


@pytest.mark.parametrize(
    ("name", "gib", "card"),
    [
        ("NVIDIA GeForce RTX 3060", 8, "RTX 3060 12 GB"),  # another of that name; a Ti of 8 GB would have said so
        ("NVIDIA GeForce RTX 3090", 3, "RTX 3090"),  # a slice of it
        ("RTX 3090", 20, "RTX 3090"),
        ("RTX 3090", 25, "RTX 3090"),
        ("RTX 4090 D", 60, "RTX 4090 D"),
        ("AMD Instinct MI210", 8, "MI210"),
    ],
)
def test_a_card_of_another_size_is_none_of_the_catalogue(name: str, gib: float, card: str) -> None:
    with pytest.raises(UnknownNameError, match=f"'{name}' with .* is not the {card} of the catalogue") as caught:
        catalogue.find_card(name, vram_bytes=round(gib * 2**30))
    assert caught.value.hint
    assert catalogue.find_card(name).name == card


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("q4_k_m", "Q4_K_M"),
        ("Q4-K-M", "Q4_K_M"),
        ("Q4_K", "Q4_K_M"),
        ("Q3_K", "Q3_K_M"),
        ("fp16", "F16"),
        ("BF16", "BF16"),
        ("MXFP4", "MXFP4_MOE"),
    ],
)
def test_a_quantisation_is_found_however_it_is_written(name: str, full: str) -> None:
    assert catalogue.find_quant(name).name == full


def test_file_types_are_those_that_the_reader_knows() -> None:
    assert {quant.file_type: quant.name for quant in catalogue.QUANTS.values()}.items() <= FILE_TYPES.items()


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="no model called 'lama 3 8b'") as model:
        catalogue.find_shape("lama 3 8b")
    assert "Llama-3-8B" in model.value.hint
    with pytest.raises(UnknownNameError, match="no quantisation called 'Q8'") as quantisation:
        catalogue.find_quant("Q8")
    assert "Q8_0" in quantisation.value.hint
    with pytest.raises(UnknownNameError, match=r"'rtx 3060 8gb' may mean") as other:
        catalogue.find_card("rtx 3060 8gb")  # there is a Ti of that size, which was not named
    assert "RTX 3060 Ti" in other.value.hint
    for name in ("Q4_NL", "Q5_FOOL", "Q4_K_XXL"):
        with pytest.raises(UnknownNameError, match="no quantisation called"):
            catalogue.find_quant(name)
    with pytest.raises(UnknownNameError, match="no card called ''"):
        catalogue.find_card("")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("UD-Q4_K_XL", "Q4_K_M"),
        ("UD-IQ2_M", "IQ2_M"),
        ("ud-q8_k_xl", "Q8_0"),
        ("Q4_K_L", "Q4_K_M"),
        ("UD-Q4_K_M", "Q4_K_M"),
    ],
)
def test_a_mixture_without_published_rules_says_that_another_stands_for_it(name: str, plain: str) -> None:
    found = catalogue.find_quant(name)
    assert (found.name, found.stands_for) == (plain, name)


@pytest.mark.parametrize("name", ["Q4_0 (QAT)", "q4_k_m", "Q3_K_L", "IQ4-NL", "MXFP4"])
def test_a_published_mixture_stands_for_itself(name: str) -> None:
    assert catalogue.find_quant(name).stands_for == ""


def test_a_mixture_for_experts_needs_experts() -> None:
    with pytest.raises(UnknownNameError, match="has none"):
        catalogue.described("Llama-3-8B", "MXFP4")


# --- tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", SHAPES)
def test_parameters_are_those_of_the_table(key: str) -> None:
    n_params = sum(math.prod(dims) for _, dims in tensors_of(SHAPES[key]))
    assert SHAPES[key].n_params == round(n_params, -6)


def test_parameters_are_those_of_the_logs() -> None:
    counted = [row for row in log_rows() if row["shape_key"] in SHAPES and "." in row["params"]]
    assert len(counted) > 20
    for row in counted:
        digits = row["params"].removesuffix("B")
        n_params = sum(math.prod(dims) for _, dims in tensors_of(SHAPES[row["shape_key"]]))
        assert f"{n_params / 1e9:.{len(digits.partition('.')[2])}f}" == digits, row["model"]


def test_what_no_source_says_is_named_when_weights_are_asked_for() -> None:
    row = {name: getattr(SHAPES["qwen3.5-9b"], name) for name in catalogue.Shape.__dataclass_fields__}
    shape = catalogue.Shape(**row | {"n_ff": None})
    with pytest.raises(UnknownNameError, match="n_ff is in no public source"):
        catalogue.described(shape, "Q4_K_M")
    assert catalogue.key_values_of(shape)["qwen35.ssm.state_size"] == 128


@pytest.mark.parametrize(
    ("name", "quant", "counts"),
    [
        ("Gemma-4-12B", "Q4_K_M", {"F32": 338, "Q4_K": 284, "Q6_K": 45}),  # ikawrakow/ik_llama.cpp#1921
        ("Gemma-4-26B-A4B", "Q4_K_M", {"F32": 392, "Q5_0": 32, "Q8_0": 28, "Q4_K": 192, "Q6_K": 14}),  # rotorquant#9
    ],
)
def test_types_are_counted_as_in_published_logs(name: str, quant: str, counts: dict[str, int]) -> None:
    assert Counter(type_name for _, type_name, _ in catalogue.described(name, quant).tensors) == counts


# --- the facts of real files ---------------------------------------------------------------------------------------

REAL = {"smollm2_path": ("SmolLM2-135M-Instruct", "Q4_1"), "gemma3_path": ("Gemma-3-270M", "Q4_K_M")}


@pytest.mark.parametrize("fixture", REAL)
def test_the_facts_are_those_of_the_real_file(fixture: str, request: pytest.FixtureRequest) -> None:
    real, ours = read_gguf(request.getfixturevalue(fixture)), facts_of_shape(*REAL[fixture])
    assert {(t.name, t.type_name, t.shape, t.n_bytes) for t in ours.tensors} == {
        (t.name, t.type_name, t.shape, t.n_bytes) for t in real.tensors
    }
    apart = {"path", "shard_paths", "gguf_id", "file_bytes", "name", "tensors", "key_values"}
    for field in set(GgufFacts.__dataclass_fields__) - apart:
        assert getattr(ours, field) == getattr(real, field), field
    keys, real_keys = dict(ours.key_values), dict(real.key_values)
    named = {key for key in keys if key in real_keys and not key.endswith(("name", "epsilon"))}
    assert {key: keys[key] for key in named} == {key: real_keys[key] for key in named}
    assert 0 < real.file_bytes - ours.file_bytes < 6 * MIB  # the vocabulary's strings


@pytest.mark.parametrize("fixture", REAL)
def test_facts_from_parts_are_those_that_were_read(fixture: str, request: pytest.FixtureRequest) -> None:
    real = read_gguf(request.getfixturevalue(fixture))
    lengths = {"tokenizer.ggml.tokens": real.n_vocab}
    table = [(tensor.name, tensor.type_name, tensor.shape) for tensor in real.tensors]
    ours = facts_of_parts(real.path, real.gguf_id, dict(real.key_values), lengths, table)
    for field in set(GgufFacts.__dataclass_fields__) - {"file_bytes"}:
        assert getattr(ours, field) == getattr(real, field), field


def test_the_facts_name_a_file_that_need_not_exist() -> None:
    facts = facts_of_shape("llama 3.3 70b", "q4_k")
    assert (facts.path.name, facts.gguf_id) == ("llama-3.1-70b.Q4_K_M.gguf", "catalogue:llama-3.1-70b:Q4_K_M")
    assert (facts.quantisation, facts.n_layer, facts.n_ctx_train) == ("Q4_K_M", 80, 131072)
    assert all(tensor.offset % 32 == 0 for tensor in facts.tensors)


def test_hybrids_say_what_their_cache_depends_on() -> None:
    gemma, qwen = facts_of_shape("Gemma-4-12B", "Q8_0"), facts_of_shape("Qwen3.8-27B", "Q8_0")
    assert (gemma.n_swa, gemma.is_swa[:6], gemma.n_head_kv[:6]) == (1024, (True,) * 5 + (False,), (8,) * 5 + (1,))
    keys = dict(qwen.key_values)
    assert [keys[f"qwen35.{key}"] for key in ("full_attention_interval", "ssm.inner_size")] == [4, 6144]


# --- weights against published logs ---------------------------------------------------------------------------------

IMATRIX = {"qwen3-32b Q4_0", "gemma-3-27b Q4_0"}
"""Files whose makers had an importance matrix, as their ffn_down tensors show."""

OTHER_MIXTURES = {
    "qwen3-30b-a3b Q6_K": "0.6 % more than plain: its embeddings or output seem to be Q8_0",
    "mixtral-8x7b Q5_K_M": "3 % less: made when llama.cpp did not yet know experts' ffn_down",
}
MAPPED = "qwen3-235b-a22b"
"""Its logs with CPU_Mapped buffers give spans of the file, which overlap what the devices hold."""


def weight_rows() -> list[tuple[str, str, float, float | None, str]]:
    """(shape, quantisation, device MiB, host MiB, offloaded layers) of every log that a plain mixture can explain."""
    rows = []
    for row in log_rows():
        key, quant = row["shape_key"], row["quant"].removesuffix(" (QAT)")
        is_known = key in SHAPES and row["gpu_model_mib"] and quant in {*catalogue.QUANTS, "MXFP4"}
        is_dynamic = key.startswith("qwen3.") or "CPU_Mapped" in row["notes"]
        is_partly_mapped = key == MAPPED and quant == "Q4_K_M"
        if is_known and not (is_dynamic or is_partly_mapped or f"{key} {quant}" in OTHER_MIXTURES):
            host = float(row["cpu_model_mib"]) if row["cpu_model_mib"] else None
            rows.append((key, quant, float(row["gpu_model_mib"]), host, row["backend"]))
    return rows


@pytest.mark.parametrize(("key", "quant", "device_mib", "host_mib", "backend"), weight_rows())
def test_weights_are_those_of_the_logs(
    key: str, quant: str, device_mib: float, host_mib: float | None, backend: str
) -> None:
    has_imatrix = True if {key, f"{key} {quant}"} & IMATRIX else None
    facts = facts_of_shape(key, quant, has_imatrix=has_imatrix)
    total, embedding = facts.tensor_bytes / MIB, facts.embedding_bytes / MIB
    copy = embedding if facts.is_tied and device_mib else 0
    if host_mib is None:
        assert device_mib == pytest.approx(total - embedding + copy, rel=0.005)
    elif backend == "Metal":  # which maps the whole file and counts it all
        assert device_mib == pytest.approx(total, rel=0.005)
    else:
        assert device_mib + host_mib == pytest.approx(total + copy, rel=0.005)


@pytest.mark.parametrize(
    ("name", "quant", "file_gb"),
    [
        ("LLaMA-1 7B", "F16", 13.48),
        ("LLaMA-1 13B", "Q4_0", 7.37),
        ("LLaMA-1 30B", "Q4_0", 18.36),
        ("LLaMA-1 65B", "Q4_0", 36.80),
        ("Llama-3.2 1B", "Q4_K_M", 0.81),
        ("DeepSeek-R1-Distill-Qwen 7B", "Q4_K_M", 4.68),
        ("Phi-3-medium 14B", "Q4_K_M", 8.57),
        ("Codestral 22B", "Q4_K_M", 13.34),
        ("Qwen3-30B-A3B-2507", "Q4_K_M", 18.56),
        ("gemma-4 31B", "Q4_K_M", 18.70),
        ("gemma-4 31B QAT", "Q4_0", 17.70),
    ],
)
def test_published_files_are_as_large_as_weights_and_vocabulary(name: str, quant: str, file_gb: float) -> None:
    """Sizes as benchmarks print them; a file has its vocabulary's strings besides, a few megabytes."""
    missing_bytes = file_gb * 1e9 - facts_of_shape(name, quant).tensor_bytes
    assert -0.005 * file_gb * 1e9 < missing_bytes < 0.005 * file_gb * 1e9 + 10 * MIB


def test_enough_logs_are_compared() -> None:
    rows = weight_rows()
    assert len(rows) >= 20
    assert len({key for key, *_ in rows}) >= 13


def test_an_older_mixture_is_followed_where_the_published_files_are_older() -> None:
    phi = facts_of_shape("Phi-3-mini-4k", "Q4_K_M")
    assert phi.tensor_bytes / MIB == pytest.approx(2228.82 + 52.84, abs=0.01)  # Microsoft's own q4 file
    today = catalogue.described("Phi-3-mini-4k", "Q4_K_M", as_published=False)
    assert {type_name for name, type_name, _ in today.tensors if "attn_qkv" in name} == {"Q4_K", "Q6_K"}


# --- cost ----------------------------------------------------------------------------------------------------------


def test_tables_are_read_when_first_asked_for() -> None:
    code = (
        "import sys\nfrom offloadtune.catalogue import cards, shapes\n"
        "print(cards.cards.cache_info()[3], shapes.shapes.cache_info()[3], 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "0", "False"]

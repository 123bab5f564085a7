"""Writes golden.json beside it: the logits of transformers, in f32, for a tiny model of each family.

Needs torch and transformers; made with torch 2.15.0 and transformers 5.23.0. The weights follow from the
names of the tensors, as in `test_util/models.rs` of the engine.
"""

import json
import pathlib

import numpy
import torch
import transformers

TOKENS = [(7 * position * position + 3) % 99 for position in range(40)]
# Positions whose logits are kept.
POSITIONS = [0, 9, 39]
SIZES = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Turns that differ between one pair of dimensions and the next.
STEEP = dict(YARN, rope_theta=100.0, beta_fast=2.0, beta_slow=0.5)

CASES = {
    "llama": ("Llama", {}),
    "llama, tied, with biases": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama, rope llama3": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 16}),
    "llama, rope linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}},
    ),
    "llama, rope yarn": ("Llama", {"rope_parameters": YARN, "head_dim": 32}),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "mistral, with a window": ("Mistral", {"head_dim": 12, "sliding_window": 40}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen2, rope yarn": ("Qwen2", {"rope_parameters": STEEP, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3, tied, with biases": (
        "Qwen3",
        {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": True},
    ),
}


def mixed(numbers):
    """The last step of MurmurHash3."""
    numbers = numbers ^ numbers >> 16
    numbers = numbers * 0x85EBCA6B & 0xFFFFFFFF
    numbers = numbers ^ numbers >> 13
    numbers = numbers * 0xC2B2AE35 & 0xFFFFFFFF
    return numbers ^ numbers >> 16


def weights(name, shape):
    digest = 0x811C9DC5
    for byte in name.encode():
        digest = (digest ^ byte) * 0x01000193 & 0xFFFFFFFF
    places = numpy.arange(numpy.prod(shape), dtype=numpy.uint64)
    numbers = mixed(places * 0x9E3779B1 & 0xFFFFFFFF ^ digest) >> 24
    numbers = numbers.astype(numpy.float32) - 128
    if "norm" in name:
        numbers = 1 + numpy.floor(numbers / 4) / 128
    else:
        numbers = numbers / 512
    return torch.from_numpy(numbers.astype(numpy.float32)).reshape(shape)


def golden(name, family, changes):
    config = getattr(transformers, family + "Config")(**{**SIZES, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(weights(key, tuple(parameter.shape)))
        logits = model(torch.tensor([TOKENS])).logits[0]
    written = json.loads(config.to_json_string())
    written["architectures"] = [family + "ForCausalLM"]
    rows = [[round(value, 6) for value in logits[at].tolist()] for at in POSITIONS]
    return {"name": name, "config": written, "logits": rows}


def main():
    cases = [golden(name, *case) for name, case in CASES.items()]
    golden_file = {"tokens": TOKENS, "positions": POSITIONS, "cases": cases}
    path = pathlib.Path(__file__).parent / "golden.json"
    lines = [json.dumps(case) for case in cases]
    head = json.dumps({"tokens": TOKENS, "positions": POSITIONS})[:-1]
    path.write_text(head + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n")
    assert json.loads(path.read_text()) == golden_file


main()

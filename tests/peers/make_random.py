"""Writes a Llama model of random weights in bfloat16, with a billion parameters.

Usage: make_random.py DEMO FOLDER, with the folder of the demo model, whose tokenizer the new model has, and the
folder to write. The shape is that of Llama 3.2 1B but for the vocabulary, which is the demo model's.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy

SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
SEED = 1
DEVIATION = 0.02


def shapes(config):
    """The shape of each tensor, by name."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        for part, shape in parts.items():
            yield f"model.layers.{layer}.{part}.weight", shape


def write_weights(file, config):
    header, end = {}, 0
    for name, shape in shapes(config):
        start, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    random = numpy.random.default_rng(SEED)
    for _, shape in shapes(config):
        if len(shape) == 1:
            numbers = numpy.ones(shape, numpy.float32)
        else:
            numbers = random.standard_normal(shape, numpy.float32) * numpy.float32(DEVIATION)
        file.write((numbers.view(numpy.uint32) >> 16).astype("<u2").tobytes())


def main(demo, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / name, folder)
    config = json.loads((demo / "config.json").read_text()) | SHAPE
    with open(folder / "model.safetensors", "wb") as file:
        write_weights(file, config)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

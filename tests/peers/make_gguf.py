"""Writes a Llama model in bfloat16 as GGUF, the file format of llama.cpp.

Usage: make_gguf.py FOLDER FILE [bf16], with the folder that has `config.json`, `model.safetensors`,
`tokenizer.json` and `tokenizer_config.json`. Numbers become 32-bit floats; with `bf16` those of matrices stay
as they are.
"""

import json
import sys
from pathlib import Path

import numpy
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

# Tensors of a layer: in the checkpoint, and in GGUF.
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def tensors(path):
    """The checkpoint's tensors by name, all of them bfloat16, as 32-bit floats."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    header.pop("__metadata__", None)
    for name, about in header.items():
        assert about["dtype"] == "BF16", f"{name} is {about['dtype']}"
        start, end = about["data_offsets"]
        upper = numpy.frombuffer(data[start:end], dtype="<u2").astype(numpy.uint32)
        yield name, (upper << 16).view(numpy.float32).reshape(about["shape"])


def named(name):
    """The name in GGUF of a tensor of the checkpoint."""
    name = name.removesuffix(".weight")
    if name in OUTSIDE:
        return OUTSIDE[name] + ".weight"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{LAYER[part]}.weight"


def interleaved(weight, heads):
    """Rows of a projection in the order in which llama.cpp rotates: halves of a head alternate."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def add_tokenizer(writer, folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = dict(tokenizer["model"]["vocab"])
    vocabulary |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def add_tensor(writer, name, weight, keeps_bf16):
    weight = numpy.ascontiguousarray(weight)
    if keeps_bf16 and weight.ndim == 2:
        upper = (weight.view(numpy.uint32) >> 16).astype("<u2")
        writer.add_tensor(name, upper.view(numpy.uint8), raw_dtype=GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, weight)


def main(folder, file, keeps_bf16):
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(file, "llama")
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_name(folder.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(groups)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    add_tokenizer(writer, folder)
    for name, weight in tensors(folder / "model.safetensors"):
        if "q_proj" in name:
            weight = interleaved(weight, heads)
        if "k_proj" in name:
            weight = interleaved(weight, groups)
        add_tensor(writer, named(name), weight, keeps_bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["bf16"])

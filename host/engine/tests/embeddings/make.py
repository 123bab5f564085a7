"""Writes golden.json beside it: embeddings by the demo model, computed by numpy in f64 from its weights.

Needs numpy and tokenizers; made with numpy 2.4.6 and tokenizers 0.23.3. The embedding is the hidden state after the
last token and the last norm, put to length 1.
"""

import json
import pathlib

import numpy
import tokenizers

MODEL = pathlib.Path(__file__).parents[4] / "examples" / "demo-model"
TEXTS = [
    "Hello!",
    "What comes after four?",
    "five comes after four.",
    "the fox and the goose " * 12,
]


def read_weights(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    weights = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", name
        begin, end = entry["data_offsets"]
        halves = numpy.frombuffer(data[8 + size + begin : 8 + size + end], dtype="<u2")
        numbers = (halves.astype("<u4") << 16).view("<f4").astype("f8")
        weights[name] = numbers.reshape(entry["shape"])
    return weights


def norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def turned(heads, theta):
    """Turns each head [position, head, number] by its position, halves against each other."""
    half = heads.shape[-1] // 2
    steps = theta ** (-numpy.arange(half) / half)
    angles = numpy.outer(numpy.arange(heads.shape[0]), steps)[:, None, :]
    left, right = heads[..., :half], heads[..., half:]
    cos, sin = numpy.cos(angles), numpy.sin(angles)
    return numpy.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def embed(tokens, weights, config):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    eps = config["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][tokens]
    mask = numpy.triu(numpy.full((len(tokens), len(tokens)), -numpy.inf), 1)
    for layer in range(config["num_hidden_layers"]):
        at = lambda name: weights[f"model.layers.{layer}.{name}.weight"]
        project = lambda name, count: (normed @ at(f"self_attn.{name}_proj").T).reshape(-1, count, width)
        normed = norm(x, at("input_layernorm"), eps)
        query, key = turned(project("q", heads), theta), turned(project("k", kv_heads), theta)
        value = project("v", kv_heads)
        attended = numpy.zeros_like(query)
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = query[:, head] @ key[:, shared].T / numpy.sqrt(width) + mask
            part = numpy.exp(scores - scores.max(-1, keepdims=True))
            attended[:, head] = part / part.sum(-1, keepdims=True) @ value[:, shared]
        x = x + attended.reshape(len(tokens), -1) @ at("self_attn.o_proj").T
        normed = norm(x, at("post_attention_layernorm"), eps)
        gate, up = normed @ at("mlp.gate_proj").T, normed @ at("mlp.up_proj").T
        x = x + (gate / (1 + numpy.exp(-gate)) * up) @ at("mlp.down_proj").T
    last = norm(x, weights["model.norm.weight"], eps)[-1]
    return last / numpy.linalg.norm(last)


def main():
    config = json.loads((MODEL / "config.json").read_text())
    weights = read_weights(MODEL / "model.safetensors")
    tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    cases = []
    for text in TEXTS:
        tokens = tokenizer.encode(text).ids
        embedding = [round(float(number), 7) for number in embed(tokens, weights, config)]
        cases.append({"text": text, "tokens": tokens, "embedding": embedding})
    path = pathlib.Path(__file__).with_name("golden.json")
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()

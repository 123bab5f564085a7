"""Steps of a Llama model of random weights in transformers: cuda_peer.py CONFIG CONTEXT PROMPTS BATCHES.

Prints a line for each step, with its median in milliseconds, as a program of a user's makes it: eager, with
attention by scaled_dot_product_attention and a static cache. PROMPTS and BATCHES are numbers separated by commas.
"""

import json
import statistics
import sys
import time

import torch
import transformers

WARM, COUNTED = 4, 12


def median_ms(step):
    times = []
    for _ in range(WARM + COUNTED):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM:]) * 1e3


@torch.inference_mode()
def main():
    path, context, prompts, batches = sys.argv[1:]
    context = int(context)
    prompts, batches = ([int(n) for n in part.split(",")] for part in (prompts, batches))
    with open(path) as file:
        config = transformers.LlamaConfig(**json.load(file))
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    model = transformers.LlamaForCausalLM(config).eval()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for count in prompts:
        tokens = torch.randint(1000, (1, count))

        def prefill():
            cache = transformers.DynamicCache(config=config)
            model(tokens, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)

        report("prefill", count, 1, median_ms(prefill))
    for batch in batches:
        cache = transformers.StaticCache(config=config, max_cache_len=context + WARM + COUNTED)
        prompt = torch.randint(1000, (batch, context))
        model(prompt, past_key_values=cache, logits_to_keep=1)
        places = iter(range(context, context + WARM + COUNTED))

        def decode():
            place = torch.tensor([next(places)])
            tokens = prompt[:, :1]
            model(tokens, past_key_values=cache, cache_position=place).logits.argmax(-1)

        report("decode", 1, batch, median_ms(decode))
        del cache
        torch.cuda.empty_cache()


def report(name, new, batch, milliseconds):
    print(f"{name:<8} {new:>6} {batch:>6} {milliseconds:>10.2f}", flush=True)


main()

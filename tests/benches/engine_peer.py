"""Speed of mistral.rs on this machine's processors: engine_peer.py MODEL CONTEXT STEPS BATCHES.

MODEL is a folder. Prints a line of JSON for each of BATCHES, numbers separated by commas. Each sequence has a prompt
of CONTEXT tokens or so. An answer of one token takes the time of the prefill, and the others that much more.
"""

import json
import sys
import time

from mistralrs import Architecture, ChatCompletionRequest, ModelDType, Runner, Which

# Tokens of the demo model in a number and the space before it, nearly.
TOKENS_OF_NUMBER = 3


def answered(runner, batch, context, tokens):
    """Seconds in which a batch was answered, and the tokens of all its prompts and of all its answers."""
    start = time.perf_counter()
    streams = [runner.send_chat_completion_request(request(n, context, tokens)) for n in range(batch)]
    prompts = answers = 0
    for stream in streams:
        usage = [chunk.usage for chunk in stream if chunk.usage][-1]
        prompts += usage.prompt_tokens
        answers += usage.completion_tokens
    return time.perf_counter() - start, prompts, answers


def request(sequence, context, tokens):
    numbers = ((place + 31 * sequence) % 90 + 5 for place in range(context // TOKENS_OF_NUMBER))
    return ChatCompletionRequest(
        model="default",
        messages=[{"role": "user", "content": " ".join(map(str, numbers))}],
        max_tokens=tokens,
        temperature=0.0,
        stream=True,
        ignore_eos=True,
    )


def main():
    folder, context, steps, batches = sys.argv[1:]
    context, steps = int(context), int(steps)
    batches = [int(batch) for batch in batches.split(",")]
    # With F32 it was faster than with BF16, eight times in decode.
    which = Which.Plain(model_id=folder, arch=Architecture.Llama, dtype=ModelDType.F32)
    runner = Runner(which=which, max_seqs=max(batches), prefix_cache_n=0, no_paged_attn=True)
    answered(runner, 1, context, 2)
    for batch in batches:
        first, prompts, firsts = answered(runner, batch, context, 1)
        all_of_them, _, answers = answered(runner, batch, context, steps)
        speed = {
            "batch": batch,
            "prefill": prompts / first,
            "decode": (answers - firsts) / (all_of_them - first),
        }
        print(json.dumps(speed), flush=True)


main()

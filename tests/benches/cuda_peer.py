"""Steps of a Llama model of random weights by an engine of others: cuda_peer.py PEER CONFIG CONTEXT PROMPTS BATCHES.

PEER is `vllm` or `transformers`. PROMPTS and BATCHES are numbers separated by commas. Prints the engine's version, and a
line for each step with its median in milliseconds or the reason why it failed; or, where the engine does not start, `not
started: ` and the reason.
"""

import gc
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback

WARM, COUNTED = 4, 12
# Answers of vLLM of which the median counts, and the steps of each.
ANSWERS, STEPS = 5, 32
# Seconds that an engine has to start, and that all repetitions of a step have.
START, CASE = 900, 300
# The part of the device's memory that vLLM takes: the benchmark has some, too.
MEMORY = 0.8


class Transformers:
    """transformers as a program of a user's has it: eager, with attention by scaled_dot_product_attention and a static
    cache."""

    def __init__(self, path, context, prompts, batches):
        import torch
        import transformers

        self.torch, self.transformers = torch, transformers
        self.name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        with open(path) as file:
            self.config = transformers.LlamaConfig(**json.load(file))
        self.config._attn_implementation = "sdpa"
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("cuda")
        with torch.inference_mode():
            self.model = transformers.LlamaForCausalLM(self.config).eval()

    def prefill(self, count):
        tokens = self.torch.randint(1000, (1, count))

        def step():
            cache = self.transformers.DynamicCache(config=self.config)
            self.model(tokens, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)

        with self.torch.inference_mode():
            return median_ms(step, self.torch.cuda.synchronize)

    def decode(self, batch, context):
        # What a step that failed has left.
        gc.collect()
        self.torch.cuda.empty_cache()
        places = range(context, context + WARM + COUNTED)
        with self.torch.inference_mode():
            cache = self.transformers.StaticCache(config=self.config, max_cache_len=places.stop)
            prompt = self.torch.randint(1000, (batch, context))
            self.model(prompt, past_key_values=cache, logits_to_keep=1)
            places = iter(places)

            def step():
                place = self.torch.tensor([next(places)])
                tokens = prompt[:, :1]
                self.model(tokens, past_key_values=cache, cache_position=place).logits.argmax(-1)

            return median_ms(step, self.torch.cuda.synchronize)


class Vllm:
    """vLLM by its offline interface, as it comes: compiled, with its own choice of attention. What it takes to schedule a
    step counts, as it does for its users."""

    def __init__(self, path, context, prompts, batches):
        # Everything is here, and nobody is told. Processes that it starts are to end with it.
        os.environ.update(
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="WARNING",
            VLLM_WORKER_MULTIPROCESSING_METHOD="spawn",
        )
        import vllm

        self.name = f"vLLM {vllm.__version__}"
        self.sampling = lambda tokens: vllm.SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=tokens, detokenize=False
        )
        self.folder = tempfile.TemporaryDirectory()
        shutil.copy(path, os.path.join(self.folder.name, "config.json"))
        self.llm = vllm.LLM(
            model=self.folder.name,
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            dtype="bfloat16",
            seed=0,
            max_model_len=max(context + STEPS, *prompts) + 16,
            max_num_seqs=max(batches),
            enable_prefix_caching=True,
            gpu_memory_utilization=MEMORY,
        )

    def prefill(self, count):
        # Each is another one: nothing of it is cached.
        return median_ms(lambda: self.answer([prompt_of(count)], 1))

    def decode(self, batch, context):
        prompts = [prompt_of(context) for _ in range(batch)]
        # From now on they are cached, so that an answer takes a step for its first token and one for each that follows.
        self.answer(prompts, 1 + STEPS)

        def seconds(tokens):
            start = time.perf_counter()
            self.answer(prompts, tokens)
            return time.perf_counter() - start

        steps = [(seconds(1 + STEPS) - seconds(1)) / STEPS for _ in range(ANSWERS)]
        return statistics.median(steps) * 1e3

    def answer(self, prompts, tokens):
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        self.llm.generate(prompts, self.sampling(tokens), use_tqdm=False)


PEERS = {"vllm": Vllm, "transformers": Transformers}


def prompt_of(count):
    return random.choices(range(1000), k=count)


def median_ms(step, settle=lambda: None):
    times = []
    for _ in range(WARM + COUNTED):
        settle()
        start = time.perf_counter()
        step()
        settle()
        times.append(time.perf_counter() - start)
    return statistics.median(times[WARM:]) * 1e3


def within(seconds, work):
    """Does `work`, which fails once that time is over."""

    def over(_signal, _frame):
        raise TimeoutError(f"not done in {seconds} s")

    signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        return work()
    finally:
        signal.alarm(0)


def reason(error):
    lines = str(error).strip().splitlines() or [""]
    # What a package lacks is said in a line; of anything else one may want more.
    if not isinstance(error, ModuleNotFoundError):
        traceback.print_exception(error)
    return f"{type(error).__name__}: {lines[0][:200]}"


def main():
    figures = os.fdopen(os.dup(1), "w")
    # Whatever else engines print is no figure.
    os.dup2(2, 1)
    peer, path, context, prompts, batches = sys.argv[1:]
    context = int(context)
    prompts, batches = ([int(n) for n in part.split(",")] for part in (prompts, batches))

    def say(line):
        print(line, file=figures, flush=True)

    def report(name, new, batch, step):
        try:
            result = f"{within(CASE, step):>10.2f}"
        except Exception as error:
            result = f"  failed: {reason(error)}"
        say(f"{name:<8} {new:>6} {batch:>6} {result}")

    try:
        engine = within(START, lambda: PEERS[peer](path, context, prompts, batches))
    except (Exception, SystemExit) as error:
        say(f"not started: {reason(error)}")
        sys.exit(3)
    say(engine.name)
    for count in prompts:
        report("prefill", count, 1, lambda: engine.prefill(count))
    for batch in batches:
        report("decode", 1, batch, lambda: engine.decode(batch, context))


# Processes that vLLM starts read this file, too.
if __name__ == "__main__":
    main()

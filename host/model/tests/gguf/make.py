"""Writes types.json beside it: blocks of random bytes of each quantised type, with the numbers that ggml's own
Python library reads in them.

Needs gguf and numpy; made with gguf 0.19.0 and numpy 2.4.6.
"""

import json
import pathlib

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Names, with the places of the 16-bit scales in a block.
TYPES = {
    "Q4_0": [0],
    "Q5_0": [0],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
BLOCKS = 3


def main():
    random = numpy.random.default_rng(7)
    cases = []
    for name, scales in TYPES.items():
        kind = GGMLQuantizationType[name]
        numbers, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=numpy.uint8)
        for place in scales:
            scale = random.uniform(-0.1, 0.1, BLOCKS).astype("<f2")
            blocks[:, place : place + 2] = scale.view(numpy.uint8).reshape(BLOCKS, 2)
        values = dequantize(blocks, kind).reshape(BLOCKS * numbers)
        cases.append(
            {
                "type": name,
                "number": int(kind),
                "bytes": blocks.tobytes().hex(),
                "values": [float(value) for value in values],
            }
        )
    text = json.dumps(cases, separators=(",", ":"))
    (pathlib.Path(__file__).parent / "types.json").write_text(text + "\n")


main()

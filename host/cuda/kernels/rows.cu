// What is done to each row alone. A block has a row (x), or a part of it (y), and its threads take eight numbers
// each at once.

#include "common.cuh"

#define EACH(index, size) (int index = threadIdx.x * 8; index < size; index += blockDim.x * 8)

DEVICE Eight load(const bf16* from) { return *(const Eight*)from; }

DEVICE void store(bf16* to, Eight numbers) { *(Eight*)to = numbers; }

// Takes the tokens' rows of a table.
extern "C" __global__ void embed(bf16* out, const bf16* table, const int* tokens, int size) {
    u64 row = blockIdx.x, token = tokens[row];
    for EACH(i, size) store(out + row * size + i, load(table + token * size + i));
}

// Takes some rows.
extern "C" __global__ void last_rows(bf16* out, const bf16* x, const int* rows, int size) {
    u64 row = blockIdx.x, from = rows[row];
    for EACH(i, size) store(out + row * size + i, load(x + from * size + i));
}

// Divides a row by its root mean square and multiplies it by `weight`.
DEVICE void norm(bf16* out, const bf16* row, const float* weight, float eps, int size) {
    float sum = 0.0f;
    for EACH(i, size) {
        Eight x = load(row + i);
        for (int k = 0; k < 8; k++) sum += widen(x.at[k]) * widen(x.at[k]);
    }
    float scale = 1.0f / sqrtf(block_sum(sum) / (float)size + eps);
    for EACH(i, size) {
        Eight x = load(row + i);
        for (int k = 0; k < 8; k++) x.at[k] = narrow(widen(x.at[k]) * scale * weight[i + k]);
        store(out + i, x);
    }
}

extern "C" __global__ void rmsnorm(bf16* out, const bf16* hidden, const float* weight, float eps,
                                   int size) {
    u64 from = (u64)blockIdx.x * size;
    norm(out + from, hidden + from, weight, eps, size);
}

// Divides each query and each key of a row (x) by its root mean square, a head (y) by a block, and
// multiplies it by the weight of queries or of keys.
extern "C" __global__ void norm_heads(bf16* qkv, const float* query_weight,
                                      const float* key_weight, float eps, int heads, int kv_heads,
                                      int head_dim) {
    u64 head = (u64)blockIdx.x * (heads + 2 * kv_heads) + blockIdx.y;
    const float* weight = (int)blockIdx.y < heads ? query_weight : key_weight;
    norm(qkv + head * head_dim, qkv + head * head_dim, weight, eps, head_dim);
}

// Adds `delta` to `hidden`, then `rmsnorm`. A thread reads again only what it wrote itself.
extern "C" __global__ void add_rmsnorm(bf16* out, bf16* hidden, const bf16* delta,
                                       const float* weight, float eps, int size) {
    u64 from = (u64)blockIdx.x * size;
    for EACH(i, size) {
        Eight x = load(hidden + from + i), more = load(delta + from + i);
        for (int k = 0; k < 8; k++) x.at[k] = narrow(widen(x.at[k]) + widen(more.at[k]));
        store(hidden + from + i, x);
    }
    norm(out + from, hidden + from, weight, eps, size);
}

// Adds a number to each column.
extern "C" __global__ void add_bias(bf16* rows, const float* bias, int size) {
    bf16* row = rows + (u64)blockIdx.x * size;
    for EACH(i, size) {
        Eight x = load(row + i);
        for (int k = 0; k < 8; k++) x.at[k] = narrow(widen(x.at[k]) + bias[i + k]);
        store(row + i, x);
    }
}

// Multiplies the SiLU of the first half of each row by its second half; `size` is half a row. A thread has
// eight numbers.
extern "C" __global__ void silu_mul(bf16* out, const bf16* gate_up, int size) {
    u64 row = blockIdx.x;
    const bf16 *gates = gate_up + row * 2 * size, *ups = gates + size;
    int i = (blockIdx.y * blockDim.x + threadIdx.x) * 8;
    if (i < size) {
        Eight gate = load(gates + i), up = load(ups + i);
        for (int k = 0; k < 8; k++) {
            float x = widen(gate.at[k]);
            up.at[k] = narrow(x / (1.0f + expf(-x)) * widen(up.at[k]));
        }
        store(out + row * size + i, up);
    }
}

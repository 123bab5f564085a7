// Attention over keys and values in blocks.

#include "common.cuh"

// Turns queries and keys by their positions, and writes keys and values into the pool. A block has a
// row, [heads, kv_heads, kv_heads] of `head_dim` numbers; `angles` has for each position the cosines of
// half a head, then the sines.
extern "C" __global__ void rope_write_kv(bf16* qkv, bf16* kv, const float* angles,
                                         const int* positions, const int* starts,
                                         const int* tables, int layer, int layers, int heads,
                                         int kv_heads, int head_dim, int slots) {
    Pool pool = {layer, layers, kv_heads, head_dim, slots};
    int position = positions[blockIdx.x], half = head_dim / 2;
    int block = tables[starts[blockIdx.x] + position / slots], slot = position % slots;
    bf16* row = qkv + (u64)blockIdx.x * (heads + 2 * kv_heads) * head_dim;
    const float *cosines = angles + (u64)position * head_dim, *sines = cosines + half;
    for (int i = threadIdx.x; i < (heads + kv_heads) * half; i += blockDim.x) {
        int head = i / half, pair = i % half;
        bf16* from = row + head * head_dim + pair;
        float a = widen(from[0]), b = widen(from[half]);
        bf16* to = from;
        if (head >= heads) to = kv + pool.at(block, 0, head - heads, slot) + pair;
        to[0] = narrow(a * cosines[pair] - b * sines[pair]);
        to[half] = narrow(b * cosines[pair] + a * sines[pair]);
    }
    const bf16* values = row + (heads + kv_heads) * head_dim;
    for (int i = threadIdx.x; i < kv_heads * head_dim; i += blockDim.x) {
        kv[pool.at(block, 1, i / head_dim, slot) + i % head_dim] = values[i];
    }
}

// The shared memory of a block of attention. Its bytes, for `group` queries that share a head:
// 2 * tile * (head_dim + 8) * 2 for keys and values, whose rows are eight numbers apart so that threads
// which read one below the other do not wait for the same bank, and
// group * (2 * head_dim + tile + 3) * 4 for the rest.
struct Shared {
    float *queries, *sums, *weights, *largest, *total, *rescale;
    bf16 *keys, *values;

    DEVICE Shared(void* memory, int head_dim, int group, int tile) {
        keys = (bf16*)memory;
        values = keys + tile * (head_dim + 8);
        queries = (float*)(values + tile * (head_dim + 8));
        sums = queries + group * head_dim;
        weights = sums + group * head_dim;
        largest = weights + group * tile;
        total = largest + group;
        rescale = total + group;
    }
};

// Copies the keys and values of `count` positions from `first` on.
DEVICE void load_tile(Shared at, const bf16* kv, const int* table, Pool pool, int head, int first,
                      int count) {
    int parts = pool.head_dim / 8, stride = pool.head_dim + 8;
    for (int i = threadIdx.x; i < count * parts; i += blockDim.x) {
        int position = first + i / parts, part = i % parts * 8;
        int block = table[position / pool.slots], slot = position % pool.slots;
        int to = i / parts * stride + part;
        *(Eight*)(at.keys + to) = *(const Eight*)(kv + pool.at(block, 0, head, slot) + part);
        *(Eight*)(at.values + to) = *(const Eight*)(kv + pool.at(block, 1, head, slot) + part);
    }
}

// Computes the scores of a tile: a thread has a query and a position.
DEVICE void score_tile(Shared at, int head_dim, int group, int tile, int count, float scale) {
    for (int i = threadIdx.x; i < group * count; i += blockDim.x) {
        const float* query = at.queries + i / count * head_dim;
        const bf16* key = at.keys + i % count * (head_dim + 8);
        float score = 0.0f;
        for (int d = 0; d < head_dim; d += 8) {
            Eight part = *(const Eight*)(key + d);
            for (int k = 0; k < 8; k++) score += query[d + k] * widen(part.at[k]);
        }
        at.weights[i / count * tile + i % count] = score * scale;
    }
}

// Turns the scores of a tile into weights, relative to the largest so far: a thread has a query.
DEVICE void weigh_tile(Shared at, int group, int tile, int count) {
    for (int query = threadIdx.x; query < group; query += blockDim.x) {
        float* weights = at.weights + query * tile;
        float before = at.largest[query], largest = before, total = 0.0f;
        for (int i = 0; i < count; i++) largest = fmaxf(largest, weights[i]);
        for (int i = 0; i < count; i++) {
            weights[i] = expf(weights[i] - largest);
            total += weights[i];
        }
        at.rescale[query] = expf(before - largest);
        at.largest[query] = largest;
        at.total[query] = at.total[query] * at.rescale[query] + total;
    }
}

// Adds the values of a tile to the sums: a thread has a query and a dimension.
DEVICE void add_tile(Shared at, int head_dim, int group, int tile, int count) {
    for (int i = threadIdx.x; i < group * head_dim; i += blockDim.x) {
        int query = i / head_dim, dimension = i % head_dim;
        float sum = at.sums[i] * at.rescale[query];
        for (int k = 0; k < count; k++) {
            float value = widen(at.values[k * (head_dim + 8) + dimension]);
            sum += at.weights[query * tile + k] * value;
        }
        at.sums[i] = sum;
    }
}

// Computes a part of a row's attention: that of the queries which share a head (y) to a piece (z) of
// the positions up to the row's own. For each query it leaves the sum of the values by their weights,
// and in `stats` the largest score, to which weights are relative, and the sum of the weights. Softmax
// in one pass: Milakov and Gimelshein, 2018.
extern "C" __global__ void attention(float* sums, float* stats, const bf16* qkv, const bf16* kv,
                                     const int* positions, const int* starts, const int* tables,
                                     int layer, int layers, int heads, int kv_heads, int head_dim,
                                     int slots, int piece, int tile, float scale) {
    SHARED_MEMORY(memory);
    Pool pool = {layer, layers, kv_heads, head_dim, slots};
    int row = blockIdx.x, head = blockIdx.y, group = heads / kv_heads;
    int first = blockIdx.z * piece, end = min(first + piece, positions[row] + 1);
    const int* table = tables + starts[row];
    const bf16* queries = qkv + ((u64)row * (heads + 2 * kv_heads) + head * group) * head_dim;
    Shared at(memory, head_dim, group, tile);
    for (int i = threadIdx.x; i < group * head_dim; i += blockDim.x) {
        at.queries[i] = widen(queries[i]);
        at.sums[i] = 0.0f;
    }
    for (int query = threadIdx.x; query < group; query += blockDim.x) {
        at.largest[query] = NEGATIVE_INFINITY;
        at.total[query] = 0.0f;
    }
    for (int from = first; from < end; from += tile) {
        int count = min(tile, end - from);
        __syncthreads();
        load_tile(at, kv, table, pool, head, from, count);
        __syncthreads();
        score_tile(at, head_dim, group, tile, count, scale);
        __syncthreads();
        weigh_tile(at, group, tile, count);
        __syncthreads();
        add_tile(at, head_dim, group, tile, count);
    }
    __syncthreads();
    u64 to = (u64)row * heads + head * group, pieces = gridDim.z;
    for (int i = threadIdx.x; i < group * head_dim; i += blockDim.x) {
        u64 query = to + i / head_dim;
        sums[(query * pieces + blockIdx.z) * head_dim + i % head_dim] = at.sums[i];
    }
    for (int query = threadIdx.x; query < group; query += blockDim.x) {
        float* stat = stats + ((to + query) * pieces + blockIdx.z) * 2;
        stat[0] = at.largest[query];
        stat[1] = at.total[query];
    }
}

// Joins the pieces of a row's attention (x) in one head (y). A piece without positions weighs nothing;
// the first piece has one at least.
extern "C" __global__ void attention_merge(bf16* out, const float* sums, const float* stats,
                                           int pieces, int head_dim) {
    u64 query = (u64)blockIdx.x * gridDim.y + blockIdx.y;
    sums += query * pieces * head_dim;
    stats += query * pieces * 2;
    float largest = stats[0];
    for (int piece = 1; piece < pieces; piece++) largest = fmaxf(largest, stats[piece * 2]);
    float total = 0.0f;
    for (int piece = 0; piece < pieces; piece++) {
        total += stats[piece * 2 + 1] * expf(stats[piece * 2] - largest);
    }
    for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
        float sum = 0.0f;
        for (int piece = 0; piece < pieces; piece++) {
            sum += sums[piece * head_dim + d] * expf(stats[piece * 2] - largest);
        }
        out[query * head_dim + d] = narrow(sum / total);
    }
}

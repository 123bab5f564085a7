// Attention over keys and values in blocks.

#include "common.cuh"

// Turns queries and keys by their positions, and writes keys and values into the pool. A row (x) has
// [heads, kv_heads, kv_heads] of `head_dim` numbers, of which a thread has two half a head apart; `angles`
// has for each position the cosines of half a head, then the sines.
extern "C" __global__ void rope_write_kv(bf16* qkv, bf16* kv, const float* angles,
                                         const int* positions, const int* starts,
                                         const int* tables, int layer, int block_size, int heads,
                                         int kv_heads, int head_dim, int slots) {
    Pool pool = {layer, block_size, kv_heads, head_dim, slots};
    int half = head_dim / 2, i = blockIdx.y * blockDim.x + threadIdx.x, head = i / half, pair = i % half;
    if (head >= heads + 2 * kv_heads) return;
    int position = positions[blockIdx.x];
    bf16* from = qkv + ((u64)blockIdx.x * (heads + 2 * kv_heads) + head) * head_dim + pair;
    bf16 a = from[0], b = from[half];
    bf16* to = from;
    if (head >= heads) {
        int block = tables[starts[blockIdx.x] + position / slots], of_values = head >= heads + kv_heads;
        int kv_head = head - heads - of_values * kv_heads;
        to = kv + pool.at(block, of_values, kv_head, position % slots) + pair;
    }
    if (head < heads + kv_heads) {
        const float* angle = angles + (u64)position * head_dim + pair;
        float cosine = angle[0], sine = angle[half], x = widen(a), y = widen(b);
        a = narrow(x * cosine - y * sine);
        b = narrow(y * cosine + x * sine);
    }
    to[0] = a;
    to[half] = b;
}

// Positions in a piece. A row's attention is that to each piece, joined in their order: so its bits
// depend on neither what else is in the step nor on who computes it.
constexpr int PIECE = 64;
// Threads of a block.
constexpr int THREADS = 128;

// A tile: `count` tokens of one sequence from row `first` on, with the queries of `heads` heads from `head`
// on, which share `kv_head`. Query q is that of token q / heads_max and head q % heads_max. Among the rows
// of the tiles of its launch, `place` is the first one's.
struct Tile {
    int first, count, place, kv_head, head, heads, heads_max;

    // The row of a query of a head, from 0 in the step; -1 where the tile has none.
    DEVICE int row(int query) const {
        int token = query / heads_max;
        return token < count && query % heads_max < heads ? first + token : -1;
    }
};

// The shape of attention, and where queries, keys and values are.
struct Shape {
    const bf16 *qkv, *kv;
    const int *positions, *starts, *tables;
    Pool pool;
    int heads;
    float scale;

    // The tile of this number in blocks' second dimension, of `part` heads each.
    DEVICE Tile tile(const int* tiles, int number, int part) const {
        int group = heads / pool.kv_heads, parts = (group + part - 1) / part;
        int kv_head = blockIdx.y / parts, head = blockIdx.y % parts * part;
        const int* at = tiles + number * 3;
        return {at[0], at[1], at[2] - tiles[2], kv_head, kv_head * group + head,
                min(part, group - head), part};
    }

    DEVICE const bf16* query(const Tile& tile, int query) const {
        u64 row = tile.row(query), head = tile.head + query % tile.heads_max;
        return qkv + (row * (heads + 2 * pool.kv_heads) + head) * pool.head_dim;
    }

    // The position of a query; -1 for none, which sees nothing.
    DEVICE int position(const Tile& tile, int query) const {
        int row = tile.row(query);
        return row < 0 ? -1 : positions[row];
    }

    // The positions that the tile sees.
    DEVICE int seen(const Tile& tile) const { return positions[tile.first + tile.count - 1] + 1; }
};

// A warp's attention to a piece, or to several. Lane l has queries l / 4 and l / 4 + 8, and of each the
// columns that `column` says.
template <int DIM>
struct Attended {
    // Columns that are read at once, and how often a row is read from.
    static constexpr int WIDTH = DIM < 64 ? DIM / 8 : 8, READS = DIM / 8 / WIDTH;

    float largest[2], total[2], sums[DIM / 8][4];

    DEVICE void clear() {
        for (int half = 0; half < 2; half++) {
            largest[half] = NEGATIVE_INFINITY;
            total[half] = 0.0f;
        }
        for (int i = 0; i < DIM / 8; i++) {
            for (int k = 0; k < 4; k++) sums[i][k] = 0.0f;
        }
    }

    // The column whose sums are at [place][2 * half + side].
    DEVICE static int column(int place, int side) {
        return (place / WIDTH * 8 + threadIdx.x % 4 * 2 + side) * WIDTH + place % WIDTH;
    }
};

// How much a part weighs whose largest score is `largest`, where `of_all` is the largest of all.
DEVICE float share(float largest, float of_all) { return exp2_fast(largest - of_all); }

// Joins a later part to an earlier one: of one query their largest scores, totals and a sum each.
struct Join {
    float earlier, later;

    DEVICE Join(float& largest, float largest_later) {
        float of_all = fmaxf(largest, largest_later);
        earlier = share(largest, of_all);
        later = share(largest_later, of_all);
        largest = of_all;
    }

    DEVICE float operator()(float sum, float more) const { return sum * earlier + more * later; }
};

// A warp's queries, as the left matrix of products. A product's sums do not depend on the order of its
// columns: those of queries and keys are the same, and such that a lane reads eight side by side.
template <int DIM>
struct Queries {
    unsigned at[DIM / 16][4];

    DEVICE Queries(const Shape& shape, const Tile& tile) {
        for (int half = 0; half < 2; half++) {
            int query = threadIdx.x % 32 / 4 + half * 8;
            bool is_there = tile.row(query) >= 0;
            const bf16* row = is_there ? shape.query(tile, query) : shape.qkv;
            for (int i = 0; i < DIM / 32; i++) {
                int column = i * 32 + threadIdx.x % 4 * 8;
                Words words = {};
                if (is_there && column < shape.pool.head_dim) words = load_words(row + column);
                for (int k = 0; k < 4; k++) at[i * 2 + k / 2][k % 2 * 2 + half] = words.at[k];
            }
        }
    }
};

// Where the keys of a piece's positions are: each lane knows those of two. Positions from `end` on are
// taken for the last one.
struct Places {
    u64 at[2];

    DEVICE Places(const Shape& shape, const Tile& tile, int first, int end) {
        const int* table = shape.tables + shape.starts[tile.first];
        for (int half = 0; half < 2; half++) {
            int position = min(first + half * 32 + (int)threadIdx.x % 32, end - 1);
            int block = table[position / shape.pool.slots], slot = position % shape.pool.slots;
            at[half] = shape.pool.at(block, 0, tile.kv_head, slot);
        }
    }

    // The place of a position's keys; all lanes ask at once, each for its own, in the same half.
    DEVICE u64 of(int half, int lane) const { return shuffle(at[half], lane); }
};

// The scores of a piece: lane l has those of its queries to positions 8 * i + l % 4 * 2 and the next.
struct Scores {
    float at[PIECE / 8][4];
};

template <int DIM>
DEVICE void score(Scores& scores, const Shape& shape, const Queries<DIM>& queries,
                  const Places& places) {
    int lane = threadIdx.x % 32;
    UNROLL for (int i = 0; i < PIECE / 8; i++) {
        const bf16* key = shape.kv + places.of(i / 4, i % 4 * 8 + lane / 4);
        Words words[DIM / 32];
        UNROLL for (int part = 0; part < DIM / 32; part++) {
            int column = part * 32 + lane % 4 * 8;
            words[part] = {};
            if (column < shape.pool.head_dim) words[part] = load_words(key + column);
        }
        for (int k = 0; k < 4; k++) scores.at[i][k] = 0.0f;
        UNROLL for (int part = 0; part < DIM / 32; part++) {
            multiply(scores.at[i], queries.at[part * 2], words[part].at[0], words[part].at[1]);
            multiply(scores.at[i], queries.at[part * 2 + 1], words[part].at[2], words[part].at[3]);
        }
    }
}

// Turns the scores of a query into weights, relative to the largest; those of positions after its own
// are 0. Weights are powers of two: the scale has the logarithm in it.
template <int DIM>
DEVICE void weigh(Scores& scores, Attended<DIM>& piece, int half, int first, int position,
                  float scale) {
    float largest = NEGATIVE_INFINITY, total = 0.0f;
    int own = first + threadIdx.x % 4 * 2;
    for (int i = 0; i < PIECE / 8; i++) {
        for (int side = 0; side < 2; side++) {
            float& score = scores.at[i][half * 2 + side];
            score = own + i * 8 + side <= position ? score * scale : NEGATIVE_INFINITY;
            largest = fmaxf(largest, score);
        }
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) largest = fmaxf(largest, shuffle_xor(largest, lanes));
    // A piece of which a query sees nothing weighs nothing.
    float base = largest == NEGATIVE_INFINITY ? 0.0f : largest;
    for (int i = 0; i < PIECE / 8; i++) {
        for (int side = 0; side < 2; side++) {
            float& score = scores.at[i][half * 2 + side];
            score = exp2_fast(score - base);
            total += score;
        }
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) total += shuffle_xor(total, lanes);
    piece.largest[half] = largest;
    piece.total[half] = total;
}

// The weights of a piece, as left matrices.
struct Weights {
    unsigned at[PIECE / 16][4];

    DEVICE explicit Weights(const Scores& scores) {
        for (int i = 0; i < PIECE / 8; i++) {
            const auto& pair = scores.at[i];
            at[i / 2][i % 2 * 2] = pack(pair[0], pair[1]);
            at[i / 2][i % 2 * 2 + 1] = pack(pair[2], pair[3]);
        }
    }
};

// Adds the values of 16 of the `count` positions of a piece, the step's, by their weights.
template <int DIM>
DEVICE void add(Attended<DIM>& piece, const Shape& shape, const Weights& weights,
                const Places& places, int step, int count) {
    constexpr int WIDTH = Attended<DIM>::WIDTH, READS = Attended<DIM>::READS;
    int lane = threadIdx.x % 32, half_pool = shape.pool.kv_heads * shape.pool.slots;
    const bf16* values = shape.kv + (u64)half_pool * shape.pool.head_dim;
    Words rows[4][READS];
    UNROLL for (int i = 0; i < 4; i++) {
        // Of a matrix of 16 rows, a lane has two side by side, and those eight further.
        int row = lane % 4 * 2 + i % 2 + i / 2 * 8;
        const bf16* from = values + places.of(step / 2, step % 2 * 16 + row);
        UNROLL for (int read = 0; read < READS; read++) {
            int column = (read * 8 + lane / 4) * WIDTH;
            rows[i][read] = {};
            bool is_there = step * 16 + row < count && column < shape.pool.head_dim;
            if (is_there) rows[i][read] = load_some<WIDTH>(from + column);
        }
    }
    UNROLL for (int read = 0; read < READS; read++) {
        UNROLL for (int i = 0; i < WIDTH; i++) {
            auto pair = [&](int row) {
                unsigned a = rows[row][read].at[i / 2], b = rows[row + 1][read].at[i / 2];
                return i % 2 == 0 ? (a & 0xffff) | b << 16 : a >> 16 | (b & 0xffff0000);
            };
            multiply(piece.sums[read * WIDTH + i], weights.at[step], pair(0), pair(2));
        }
    }
}

// Computes a warp's attention to the piece from position `first` on, of `end` positions in all.
template <int DIM>
DEVICE void attend(Attended<DIM>& piece, const Shape& shape, const Tile& tile, int first, int end) {
    Places places(shape, tile, first, end);
    Scores scores;
    // Read anew for each piece: between two, there is no room for them.
    score(scores, shape, Queries<DIM>(shape, tile), places);
    piece.clear();
    for (int half = 0; half < 2; half++) {
        int query = threadIdx.x % 32 / 4 + half * 8;
        weigh(scores, piece, half, first, shape.position(tile, query), shape.scale);
    }
    Weights weights(scores);
    UNROLL for (int step = 0; step < PIECE / 16; step++) {
        add(piece, shape, weights, places, step, end - first);
    }
}

// Computes the attention of tiles of few tokens, a piece by a warp: for each query it leaves the sum of
// the values by their weights, and in `stats` the largest score, to which weights are relative, and the
// sum of the weights. A block has a tile (x) with heads that share their keys (y).
template <int DIM>
DEVICE void attention_split(float* sums, float* stats, const Shape& shape, const int* tiles, int part,
                            int pieces) {
    Tile tile = shape.tile(tiles, blockIdx.x, part);
    int number = blockIdx.z * (blockDim.x / 32) + threadIdx.x / 32, end = shape.seen(tile);
    if (number * PIECE >= end) return;
    Attended<DIM> piece;
    attend(piece, shape, tile, number * PIECE, end);
    for (int half = 0; half < 2; half++) {
        int query = threadIdx.x % 32 / 4 + half * 8, row = tile.row(query);
        if (row < 0) continue;
        u64 place = tile.place + query / part;
        u64 to = (place * shape.heads + tile.head + query % part) * pieces + number;
        for (int i = 0; i < DIM / 8; i++) {
            for (int side = 0; side < 2; side++) {
                int column = Attended<DIM>::column(i, side);
                if (column < shape.pool.head_dim) {
                    sums[to * shape.pool.head_dim + column] = piece.sums[i][half * 2 + side];
                }
            }
        }
        if (threadIdx.x % 4 == 0) {
            stats[to * 2] = piece.largest[half];
            stats[to * 2 + 1] = piece.total[half];
        }
    }
}

// Computes the attention of tiles of many tokens, a tile by a warp. The sums of all pieces so far are in
// shared memory, where each thread has its own: there are not registers enough.
template <int DIM>
DEVICE void attention_whole(bf16* out, const Shape& shape, const int* tiles, int count, int part) {
    __shared__ float sums[DIM / 8][4][THREADS];
    int number = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (number >= count) return;
    Tile tile = shape.tile(tiles, number, part);
    int end = shape.seen(tile);
    Attended<DIM> piece;
    float largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, total[2] = {0.0f, 0.0f};
    for (int i = 0; i < DIM / 8; i++) {
        for (int k = 0; k < 4; k++) sums[i][k][threadIdx.x] = 0.0f;
    }
    for (int first = 0; first < end; first += PIECE) {
        attend(piece, shape, tile, first, end);
        for (int half = 0; half < 2; half++) {
            Join joined(largest[half], piece.largest[half]);
            total[half] = joined(total[half], piece.total[half]);
            for (int i = 0; i < DIM / 8; i++) {
                for (int k = half * 2; k < half * 2 + 2; k++) {
                    float& sum = sums[i][k][threadIdx.x];
                    sum = joined(sum, piece.sums[i][k]);
                }
            }
        }
    }
    for (int half = 0; half < 2; half++) {
        int query = threadIdx.x % 32 / 4 + half * 8, row = tile.row(query);
        if (row < 0) continue;
        u64 to = ((u64)row * shape.heads + tile.head + query % part) * shape.pool.head_dim;
        for (int i = 0; i < DIM / 8; i++) {
            for (int side = 0; side < 2; side++) {
                int column = Attended<DIM>::column(i, side);
                float sum = sums[i][half * 2 + side][threadIdx.x];
                if (column < shape.pool.head_dim) out[to + column] = narrow(sum / total[half]);
            }
        }
    }
}

#define ATTENTION(dim)                                                                             \
    extern "C" __global__ void BOUNDS(THREADS, 2) attention_split_##dim(                           \
        float* sums, float* stats, const bf16* qkv, const bf16* kv, const int* positions,          \
        const int* starts, const int* tables, const int* tiles, int layer, int block_size, int heads,\
        int kv_heads, int head_dim, int slots, int part, int pieces, float scale) {                \
        Pool pool = {layer, block_size, kv_heads, head_dim, slots};                                \
        Shape shape = {qkv, kv, positions, starts, tables, pool, heads, scale};                    \
        attention_split<dim>(sums, stats, shape, tiles, part, pieces);                             \
    }                                                                                              \
    extern "C" __global__ void BOUNDS(THREADS, 3) attention_whole_##dim(                           \
        bf16* out, const bf16* qkv, const bf16* kv, const int* positions, const int* starts,       \
        const int* tables, const int* tiles, int layer, int block_size, int heads, int kv_heads,   \
        int head_dim, int slots, int count, int part, float scale) {                               \
        Pool pool = {layer, block_size, kv_heads, head_dim, slots};                                \
        Shape shape = {qkv, kv, positions, starts, tables, pool, heads, scale};                    \
        attention_whole<dim>(out, shape, tiles, count, part);                                      \
    }

ATTENTION(32)
ATTENTION(64)
ATTENTION(128)

// Joins the pieces of the attention of a row (x) in one head (y); `rows` are those of the tiles whose pieces
// were computed.
extern "C" __global__ void attention_merge(bf16* out, const float* sums, const float* stats,
                                           const int* rows, const int* positions, int pieces,
                                           int head_dim) {
    int row = rows[blockIdx.x], count = positions[row] / PIECE + 1;
    u64 query = (u64)blockIdx.x * gridDim.y + blockIdx.y;
    sums += query * pieces * head_dim;
    stats += query * pieces * 2;
    out += ((u64)row * gridDim.y + blockIdx.y) * head_dim;
    for (int column = threadIdx.x; column < head_dim; column += blockDim.x) {
        float largest = NEGATIVE_INFINITY, total = 0.0f, sum = 0.0f;
        for (int piece = 0; piece < count; piece++) {
            Join joined(largest, stats[piece * 2]);
            total = joined(total, stats[piece * 2 + 1]);
            sum = joined(sum, sums[piece * head_dim + column]);
        }
        out[column] = narrow(sum / total);
    }
}

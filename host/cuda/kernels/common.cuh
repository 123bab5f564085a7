// Numbers and threads, as all kernels use them.
//
// No header of NVIDIA's is needed: bf16 is 16 bits, and what has no function of the compiler is a line of
// PTX. The emulation brings its own of each of those.

#pragma once

typedef unsigned short bf16;
typedef unsigned long long u64;

// Eight numbers in bf16, which are read and written at once.
struct alignas(16) Eight {
    bf16 at[8];
};

// Eight such numbers, as words of two: the lower half is the first.
struct alignas(16) Words {
    unsigned at[4];
};

struct alignas(8) TwoWords {
    unsigned at[2];
};

#ifndef POINTSMAN_EMULATED

#define DEVICE __device__ __forceinline__
#define BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define UNROLL _Pragma("unroll")
// For a loop over much memory, of which a thread asks for several numbers before it waits for the first.
#define UNROLL_SOME _Pragma("unroll 4")
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

DEVICE float widen(bf16 number) { return __uint_as_float((unsigned)number << 16); }

// Rounds to the nearest, and to the even one of two.
DEVICE bf16 narrow(float number) {
    bf16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
    return bits;
}

// Rounds two numbers: the first is the lower half.
DEVICE unsigned pack(float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

DEVICE float as_float(int bits) { return __int_as_float(bits); }

DEVICE unsigned as_bits(float number) { return __float_as_uint(number); }

// Two to a power, with an error of a few bits of the last place.
DEVICE float exp2_fast(float power) {
    float number;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(number) : "f"(power));
    return number;
}

// The upper half of a product.
DEVICE u64 product_high(u64 a, u64 b) { return __umul64hi(a, b); }

// The value of another lane. All lanes of a warp hand over theirs.
template <typename T>
DEVICE T shuffle(T value, int lane) {
    return __shfl_sync(0xffffffff, value, lane);
}

template <typename T>
DEVICE T shuffle_xor(T value, int lanes) {
    return __shfl_xor_sync(0xffffffff, value, lanes);
}

// Adds the product of a matrix of 16 rows of 16 numbers in bf16 with one of 16 rows of 8. Lane l has of
// the first the numbers in rows l / 4 and l / 4 + 8, columns l % 4 * 2 and the next ({0}, {1}), and those eight
// further ({2}, {3}); of the second those in column l / 4, rows l % 4 * 2 and the next (b0) and eight further
// (b1); of the sums rows l / 4 ({0, 1}) and l / 4 + 8 ({2, 3}), columns l % 4 * 2 and the next.
DEVICE void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

DEVICE Words load_words(const bf16* from) { return *(const Words*)from; }

// Reads four or eight numbers.
template <int COUNT>
DEVICE Words load_some(const bf16* from) {
    if constexpr (COUNT == 8) return load_words(from);
    TwoWords words = *(const TwoWords*)from;
    return {words.at[0], words.at[1], 0, 0};
}

// Joins a value of each thread of a block by `two`; all threads get the result. A block has whole warps, and
// the order in which values are joined is the same whatever they are.
template <typename T, typename Two>
DEVICE T block_join(T value, Two two) {
    __shared__ T parts[32];
    for (int lanes = 16; lanes > 0; lanes /= 2) value = two(value, shuffle_xor(value, lanes));
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    // Those before may not have been read yet.
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[warp] = value;
    __syncthreads();
    T all = parts[0];
    for (int other = 1; other < warps; other++) all = two(all, parts[other]);
    return all;
}

// The largest of the numbers of a block's threads; all get it.
DEVICE u64 block_max(u64 number) {
    return block_join(number, [](u64 a, u64 b) { return a > b ? a : b; });
}

// Adds up the numbers of a warp's lanes up to each one's own.
DEVICE u64 sum_to_lane(u64 number) {
    int lane = threadIdx.x % 32;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        u64 other = shuffle(number, lane < lanes ? lane : lane - lanes);
        if (lane >= lanes) number += other;
    }
    return number;
}

// Adds up a number of each thread of a block; all threads get the sum.
template <typename T>
DEVICE T block_sum(T number) {
    return block_join(number, [](T a, T b) { return a + b; });
}

// The place of a token's keys (half 0) or values (half 1) in the pool,
// [block][layer][keys, values][kv_head][slot][head_dim]. A block has `block_size` numbers, which may be more than
// the model needs: others of the device may have wider tokens.
struct Pool {
    int layer, block_size, kv_heads, head_dim, slots;

    DEVICE u64 at(int block, int half, int head, int slot) const {
        u64 part = (u64)(layer * 2 + half) * kv_heads + head;
        return (u64)block * block_size + (part * slots + slot) * head_dim;
    }
};

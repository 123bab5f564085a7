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

#ifndef POINTSMAN_EMULATED

#define DEVICE __device__ __forceinline__
// The shared memory whose bytes the launch gives.
#define SHARED_MEMORY(name) extern __shared__ float4 name[]
#define NEGATIVE_INFINITY __int_as_float(0xff800000)

DEVICE float widen(bf16 number) { return __uint_as_float((unsigned)number << 16); }

// Rounds to the nearest, and to the even one of two.
DEVICE bf16 narrow(float number) {
    bf16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(number));
    return bits;
}

DEVICE float shuffle_xor(float number, int lanes) {
    return __shfl_xor_sync(0xffffffff, number, lanes);
}

#endif

// Adds up a number of each thread of a block; all threads get the sum. A block has whole warps.
DEVICE float block_sum(float number) {
    __shared__ float sums[32];
    for (int lanes = 16; lanes > 0; lanes /= 2) number += shuffle_xor(number, lanes);
    int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) sums[warp] = number;
    __syncthreads();
    float sum = 0.0f;
    for (int other = 0; other < warps; other++) sum += sums[other];
    return sum;
}

// The place of a token's keys (half 0) or values (half 1) in the pool,
// [block][layer][keys, values][kv_head][slot][head_dim].
struct Pool {
    int layer, layers, kv_heads, head_dim, slots;

    DEVICE u64 at(int block, int half, int head, int slot) const {
        u64 part = ((u64)block * layers + layer) * 2 + half;
        return ((part * kv_heads + head) * slots + slot) * head_dim;
    }
};

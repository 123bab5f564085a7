// Products with weights in FP8 (e4m3), which stay as they are in memory.
//
// A scale holds for `rows_each` rows and `cols_each` numbers of each, which is a multiple of 128 or a whole row; rows
// have a multiple of 16 numbers.

#include "common.cuh"

typedef unsigned char fp8;

// Numbers that a warp multiplies before it multiplies their sum by the scale.
constexpr int FP8_GROUP = 128;
// Warps of a block, which share its rows.
constexpr int FP8_WARPS = 8;
// Rows of weights of a block, as a matrix unit has them.
constexpr int FP8_ROWS = 16;
// Tokens of a tile, the same.
constexpr int FP8_TOKENS = 8;

// The scales of a matrix, row by row of their own.
struct Scales {
    const float* numbers;
    int rows_each, cols_each, cols;

    DEVICE float at(int row, int col) const {
        int across = (cols + cols_each - 1) / cols_each;
        return numbers[(u64)(row / rows_each) * across + col / cols_each];
    }
};

// A number in FP8, without its scale. The exponent of f32 is 120 more; those with the exponent 0 are as small
// in both. There is no code for infinity, and none that is not a number is loaded.
DEVICE float widen_fp8(unsigned code) {
    return as_float((int)((code & 0x80) << 24 | (code & 0x7f) << 20)) * 0x1p120f;
}

// Four such numbers in bf16, which holds them exactly.
DEVICE TwoWords widen_four(unsigned codes) {
    return {pack(widen_fp8(codes), widen_fp8(codes >> 8)),
            pack(widen_fp8(codes >> 16), widen_fp8(codes >> 24))};
}

// Sixteen codes of a row; zeros where there are none.
DEVICE Words load_codes(const fp8* codes, int row, int col, int rows, int cols) {
    if (row >= rows || col >= cols) return {0, 0, 0, 0};
    return *(const Words*)(codes + (u64)row * cols + col);
}

// Multiplies rows of `x`, TILES * 8 of them in a block (y), by 16 rows of weights (x). What is computed for a row of
// `x` does not depend on how many others there are. A sum over a row of weights has one order: that of the matrix
// units within 16 numbers, then of the steps of a group, the groups of a warp, and the warps.
//
// A lane has 16 numbers one behind the other of two rows of weights, and of a token: matrix units get four of
// them at a time. The sum is the same whichever of its numbers go together, if it is the same ones on both sides.
template <int TILES>
DEVICE void product_fp8(bf16* out, const bf16* x, const fp8* codes, Scales scales, int tokens,
                        int rows) {
    __shared__ float parts[FP8_WARPS][TILES * FP8_TOKENS][FP8_ROWS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, cols = scales.cols;
    int first = blockIdx.y * TILES * FP8_TOKENS, begin = blockIdx.x * FP8_ROWS;
    int upper = begin + lane / 4, lower = upper + 8;
    float sums[TILES][4] = {};
    for (int group = warp * FP8_GROUP; group < cols; group += FP8_WARPS * FP8_GROUP) {
        float part[TILES][4] = {};
        UNROLL
        for (int half = 0; half < FP8_GROUP; half += 64) {
            int col = group + half + lane % 4 * 16;
            Words above = load_codes(codes, upper, col, rows, cols);
            Words below = load_codes(codes, lower, col, rows, cols);
            UNROLL
            for (int step = 0; step < 4; step++) {
                TwoWords a = widen_four(above.at[step]), b = widen_four(below.at[step]);
                unsigned weights[4] = {a.at[0], b.at[0], a.at[1], b.at[1]};
                UNROLL
                for (int tile = 0; tile < TILES; tile++) {
                    int token = first + tile * FP8_TOKENS + lane / 4;
                    TwoWords numbers = {0, 0};
                    if (token < tokens && col < cols) {
                        numbers = *(const TwoWords*)(x + (u64)token * cols + col + step * 4);
                    }
                    multiply(part[tile], weights, numbers.at[0], numbers.at[1]);
                }
            }
        }
        float scale[2] = {upper < rows ? scales.at(upper, group) : 0.0f,
                          lower < rows ? scales.at(lower, group) : 0.0f};
        UNROLL
        for (int tile = 0; tile < TILES; tile++) {
            UNROLL
            for (int i = 0; i < 4; i++) sums[tile][i] += part[tile][i] * scale[i / 2];
        }
    }
    UNROLL
    for (int tile = 0; tile < TILES; tile++) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            int token = tile * FP8_TOKENS + lane % 4 * 2 + i % 2;
            parts[warp][token][lane / 4 + i / 2 * 8] = sums[tile][i];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * FP8_TOKENS * FP8_ROWS; i += blockDim.x) {
        int token = i / FP8_ROWS, row = i % FP8_ROWS;
        float sum = 0.0f;
        for (int other = 0; other < FP8_WARPS; other++) sum += parts[other][token][row];
        if (first + token < tokens && begin + row < rows) {
            out[(u64)(first + token) * rows + begin + row] = narrow(sum);
        }
    }
}

extern "C" __global__ void BOUNDS(256, 2)
    product_fp8_8(bf16* out, const bf16* x, const fp8* codes, const float* scales, int tokens,
                  int rows, int cols, int rows_each, int cols_each) {
    product_fp8<1>(out, x, codes, {scales, rows_each, cols_each, cols}, tokens, rows);
}

extern "C" __global__ void BOUNDS(256, 2)
    product_fp8_32(bf16* out, const bf16* x, const fp8* codes, const float* scales, int tokens,
                   int rows, int cols, int rows_each, int cols_each) {
    product_fp8<4>(out, x, codes, {scales, rows_each, cols_each, cols}, tokens, rows);
}

// Writes rows of weights in bf16, from row `first` on; a block has a row.
extern "C" __global__ void widen_fp8_rows(bf16* out, const fp8* codes, const float* scales, int first,
                                          int cols, int rows_each, int cols_each) {
    Scales all = {scales, rows_each, cols_each, cols};
    int row = first + (int)blockIdx.x;
    for (int i = threadIdx.x * 8; i < cols; i += blockDim.x * 8) {
        TwoWords read = *(const TwoWords*)(codes + (u64)row * cols + i);
        float scale = all.at(row, i);
        Eight numbers;
        UNROLL
        for (int k = 0; k < 8; k++) {
            numbers.at[k] = narrow(widen_fp8(read.at[k / 4] >> (k % 4 * 8)) * scale);
        }
        *(Eight*)(out + (u64)blockIdx.x * cols + i) = numbers;
    }
}

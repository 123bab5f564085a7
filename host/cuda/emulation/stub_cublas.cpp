// cuBLAS without a device: products in one order of additions, whatever else is in the matrix.

#include <cstdint>
#include <cstring>
#include <functional>

#include "beside.h"

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Operation { AS_IT_IS = 0, TRANSPOSED = 1 };
enum Type { F32 = 0, BF16 = 14 };

// Sums that run side by side, so that the compiler can use vectors.
constexpr int LANES = 16;

float dot(const uint16_t* a, const uint16_t* b, int count) {
    float sums[LANES] = {};
    int step = 0;
    for (; step + LANES <= count; step += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            sums[lane] += widen(a[step + lane]) * widen(b[step + lane]);
        }
    }
    for (; step < count; step++) sums[0] += widen(a[step]) * widen(b[step]);
    float sum = 0;
    for (float part : sums) sum += part;
    return sum;
}

// What `cublasCreate` gives.
struct Handle {
    void* stream = nullptr;
};

}  // namespace

extern "C" {

// As NVIDIA's, these wait for all that the device does.
int cublasCreate_v2(void** handle) {
    auto* wait = of_driver<int()>("pointsman_stub_wait");
    if (wait == nullptr || wait() != 0) return NOT_INITIALIZED;
    *handle = new Handle();
    return SUCCESS;
}

int cublasDestroy_v2(void* handle) {
    auto* wait = of_driver<int()>("pointsman_stub_wait");
    if (wait == nullptr || wait() != 0) return NOT_INITIALIZED;
    delete static_cast<Handle*>(handle);
    // It waits for the device, and says so where that is lost.
    auto* synchronize = of_driver<int()>("cuCtxSynchronize");
    return synchronize != nullptr && synchronize() == 0 ? SUCCESS : EXECUTION_FAILED;
}

int cublasSetStream_v2(void* handle, void* stream) {
    static_cast<Handle*>(handle)->stream = stream;
    return SUCCESS;
}

int cublasSetWorkspace_v2(void*, void*, size_t) { return SUCCESS; }

// The product of the transpose of `a` with `b`, all column by column, as the engine asks for it.
int cublasGemmEx(void* handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                 const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                 const void* beta, void* c, int c_type, int ldc, int, int) {
    bool built = trans_a == TRANSPOSED && trans_b == AS_IT_IS && a_type == BF16 && b_type == BF16 &&
                 (c_type == BF16 || c_type == F32) && *static_cast<const float*>(alpha) == 1 &&
                 *static_cast<const float*>(beta) == 0;
    if (!built) return NOT_SUPPORTED;
    if (m <= 0 || n <= 0 || k <= 0 || lda < k || ldb < k || ldc < m) return INVALID_VALUE;
    std::function<int()> multiply = [=] {
        for (int row = 0; row < m; row++) {
            const uint16_t* left = static_cast<const uint16_t*>(a) + int64_t(row) * lda;
            for (int column = 0; column < n; column++) {
                float sum = dot(left, static_cast<const uint16_t*>(b) + int64_t(column) * ldb, k);
                int64_t at = int64_t(column) * ldc + row;
                if (c_type == F32) {
                    static_cast<float*>(c)[at] = sum;
                } else {
                    static_cast<uint16_t*>(c)[at] = narrow(sum);
                }
            }
        }
        return 0;
    };
    // It is kept where a step is recorded.
    auto* driver_do = of_driver<int(std::function<int()>*, void*)>("pointsman_stub_do");
    if (driver_do == nullptr) return NOT_INITIALIZED;
    return driver_do(&multiply, static_cast<Handle*>(handle)->stream) == 0 ? SUCCESS : EXECUTION_FAILED;
}

}  // extern "C"

// A CUDA device on this machine's processor, as far as the kernels need one.
//
// A block's threads are fibers, which run one at a time until they wait for others; blocks run one after
// the other. The order of both can be set: a result that depends on it is a race. A barrier that some
// threads of a block do not reach, which a device may wait at for ever, is an error of the launch.
// Threads of this machine run kernels side by side, each with a state of its own.
//
// Under sanitizers, AddressSanitizer sees an access outside of the device's memory and of a thread's variables. In the
// memory that a block's threads share arrays lie one behind the other: an index outside of one is seen by the bounds of
// its type, a pointer that leaves it is not.
//
// Not here: poison in the memory that a block's threads share. A block finds there what the one before has left, which
// is something else in another order of blocks. Kernels bring that memory themselves: a launch cannot ask for more.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define POINTSMAN_EMULATED
#define __global__
#define __device__
// Blocks run one after the other: their shared memory is the same.
#define __shared__ static thread_local
#define DEVICE inline
#define BOUNDS(threads, blocks)
#define UNROLL
#define UNROLL_SOME
#define NEGATIVE_INFINITY (-INFINITY)

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

namespace emulation {

enum class Order { Forward, Backward, Shuffled };
enum class Waits { Nothing, Warp, Block, Over };

constexpr size_t STACK_BYTES = 64 << 10;
constexpr unsigned WARP = 32;
constexpr unsigned CACHE_LINES = 64;
constexpr size_t HANDED_WORDS = 10;

struct State;

// A thread of a block, or the scheduler.
struct Fiber {
#if defined(__x86_64__)
    void* place = nullptr;
#else
    ucontext_t place;
#endif
    Index thread;
    Waits waits = Waits::Nothing;
    // What a thread hands over to its warp. The two take turns: a slow reader still finds what it came for.
    uint32_t handed[2][HANDED_WORDS] = {};
    unsigned exchanges = 0;
};

// The stack of a thread. It begins at a multiple of its size, with who runs on it: from any place on it that is found.
struct alignas(STACK_BYTES) Stack {
    Fiber* fiber;
    State* state;
    uint64_t words[STACK_BYTES / sizeof(uint64_t) - 2];
};
static_assert(sizeof(Stack) == STACK_BYTES, "stacks lie at multiples of their size");

// Stacks in one piece, in pages as large as can be had: each has a place that is used, and so many small pages would be
// looked up again at each switch.
class Stacks {
public:
    ~Stacks() { std::free(all); }

    Stack& operator[](unsigned thread) { return all[thread]; }

    // Makes room for so many; what was on them is lost.
    void resize(unsigned count) {
        size_t bytes = (count * sizeof(Stack) + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
        std::free(all);
        all = static_cast<Stack*>(std::aligned_alloc(LARGE_PAGE, bytes));
        if (all == nullptr) throw std::bad_alloc();
        madvise(all, bytes, MADV_HUGEPAGE);
    }

private:
    static constexpr size_t LARGE_PAGE = 2 << 20;
    Stack* all = nullptr;
};

// What the threads of a warp make together.
struct Warp {
    // The exchange whose product is in the sums; 0: none.
    unsigned multiplied = 0;
    float sums[16][8];
};

// What runs the kernels of a thread of this machine.
struct State {
    std::vector<Fiber> fibers;
    Stacks stacks;
    // The lanes of a warp in the order in which they run.
    std::vector<unsigned> lanes;
    std::vector<Warp> warps;
    Index block, threads, grid;
    Order order = Order::Forward;
    std::mt19937 random;
    std::function<void()> kernel;
    Fiber scheduler;
};

// The state of this thread of the machine.
inline State& own_state() {
    static thread_local State state;
    return state;
}

// The stack of the thread of a block that asks.
inline Stack& own_stack() {
    uintptr_t here;
#if defined(__x86_64__)
    asm("movq %%rsp, %0" : "=r"(here));
#else
    here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
    return *reinterpret_cast<Stack*>(here & ~uintptr_t(STACK_BYTES - 1));
}

inline Fiber& fiber() { return *own_stack().fiber; }
inline State& state() { return *own_stack().state; }

#if defined(__x86_64__)
// Keeps what a function must keep and the place on the stack, and goes on at another. It jumps there: a processor takes
// a return to lead to where it was called.
extern "C" void pointsman_switch(void** from, void* to);
asm(R"(
.text
.hidden pointsman_switch
.globl pointsman_switch
pointsman_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
)");
inline void go_on(Fiber& from, Fiber& to) { pointsman_switch(&from.place, to.place); }
#else
inline void go_on(Fiber& from, Fiber& to) { swapcontext(&from.place, &to.place); }
#endif

inline void wait_for(Waits what) {
    Stack& own = own_stack();
    own.fiber->waits = what;
    go_on(*own.fiber, own.state->scheduler);
}

inline void thread_main() {
    state().kernel();
    wait_for(Waits::Over);
}

inline void begin(State& here, unsigned thread) {
    Stack& stack = here.stacks[thread];
    Fiber& fiber = here.fibers[thread];
    stack.fiber = &fiber;
    stack.state = &here;
    fiber.thread = {thread, 0, 0};
    fiber.waits = Waits::Nothing;
    fiber.exchanges = 0;
#if defined(__SANITIZE_ADDRESS__)
    // The frames of the thread before were left, not returned from.
    ASAN_UNPOISON_MEMORY_REGION(stack.words, sizeof stack.words);
#endif
#if defined(__x86_64__)
    // A function begins with the stack eight bytes off a multiple of 16, as after a call. Neighbours begin on other lines
    // of the cache: places that are the same on all stacks would push each other out.
    uint64_t* top = std::end(stack.words) - 2 - thread % CACHE_LINES * 8;
    *top = reinterpret_cast<uint64_t>(&thread_main);
    fiber.place = top - 6;
#else
    getcontext(&fiber.place);
    fiber.place.uc_stack.ss_sp = stack.words;
    fiber.place.uc_stack.ss_size = sizeof stack.words;
    makecontext(&fiber.place, &thread_main, 0);
#endif
}

// The numbers up to `count`, in the order that is set.
inline std::vector<unsigned> ordered(State& here, unsigned count) {
    std::vector<unsigned> all(count);
    std::iota(all.begin(), all.end(), 0);
    if (here.order == Order::Backward) std::reverse(all.begin(), all.end());
    if (here.order == Order::Shuffled) std::shuffle(all.begin(), all.end(), here.random);
    return all;
}

// Lets the threads of a block go on if all of them wait for the same.
inline bool release(State& here, unsigned threads, Waits what) {
    auto begin = here.fibers.begin(), end = begin + threads;
    if (!std::all_of(begin, end, [&](const Fiber& fiber) { return fiber.waits == what; })) return false;
    for (auto fiber = begin; fiber != end; ++fiber) fiber->waits = Waits::Nothing;
    return true;
}

// Runs the threads of a warp until they wait for others; false if they did already.
inline bool run_warp(State& here, unsigned first) {
    bool ran = false;
    Fiber* fibers = &here.fibers[first];
    while (true) {
        if (here.order == Order::Shuffled) std::shuffle(here.lanes.begin(), here.lanes.end(), here.random);
        unsigned waiting = 0;
        for (unsigned lane : here.lanes) {
            if (fibers[lane].waits != Waits::Nothing) continue;
            go_on(here.scheduler, fibers[lane]);
            waiting += fibers[lane].waits == Waits::Warp;
            ran = true;
        }
        if (waiting < WARP) return ran;
        for (unsigned lane = 0; lane < WARP; lane++) fibers[lane].waits = Waits::Nothing;
    }
}

// Runs the threads of a block; false if some wait for others that never come.
inline bool run_block(State& here, unsigned threads) {
    for (unsigned thread = 0; thread < threads; thread++) begin(here, thread);
    for (Warp& warp : here.warps) warp.multiplied = 0;
    while (true) {
        bool ran = false;
        for (unsigned warp : ordered(here, threads / WARP)) ran |= run_warp(here, warp * WARP);
        if (release(here, threads, Waits::Over)) return true;
        if (!release(here, threads, Waits::Block) && !ran) return false;
    }
}

// Runs the blocks of a grid; false where a barrier is not reached by all.
inline bool run_grid(State& here, Index grid, unsigned threads) {
    if (here.fibers.size() < threads) {
        here.fibers.resize(threads);
        here.stacks.resize(threads);
        here.warps.resize(threads / WARP);
    }
    here.lanes = ordered(here, WARP);
    here.grid = grid;
    here.threads = {threads, 1, 1};
    for (unsigned block : ordered(here, grid.x * grid.y * grid.z)) {
        here.block = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
        if (!run_block(here, threads)) return false;
    }
    return true;
}

// A launch that can be made any number of times; false where a barrier is not reached by all.
using Launch = std::function<bool()>;

template <typename... Parameters, size_t... Places>
Launch prepare(void (*kernel)(Parameters...), void** arguments, std::index_sequence<Places...>,
               Index grid, unsigned threads) {
    // As on a device, arguments are read when the launch is asked for.
    std::tuple<Parameters...> kept(*static_cast<Parameters*>(arguments[Places])...);
    return [=] {
        State& here = own_state();
        here.kernel = [=] { std::apply(kernel, kept); };
        return run_grid(here, grid, threads);
    };
}

// Prepares to run a kernel whose arguments lie at these addresses.
template <typename... Parameters>
Launch prepare(void (*kernel)(Parameters...), void** arguments, Index grid, unsigned threads) {
    return prepare(kernel, arguments, std::index_sequence_for<Parameters...>{}, grid, threads);
}

// What all threads of a warp hand over at once.
struct Exchange {
    unsigned warp, turn;

    template <typename T>
    T of(unsigned lane) const {
        T value;
        std::memcpy(&value, state().fibers[warp * WARP + lane % WARP].handed[turn], sizeof value);
        return value;
    }
};

template <typename T>
Exchange exchange(const T& value) {
    static_assert(sizeof(T) <= sizeof(uint32_t) * HANDED_WORDS, "more than is handed over");
    Fiber& own = fiber();
    unsigned turn = own.exchanges++ % 2;
    std::memcpy(own.handed[turn], &value, sizeof value);
    wait_for(Waits::Warp);
    return {own.thread.x / WARP, turn};
}

}  // namespace emulation

#define threadIdx (emulation::fiber().thread)
#define blockIdx (emulation::state().block)
#define blockDim (emulation::state().threads)
#define gridDim (emulation::state().grid)

inline void __syncthreads() { emulation::wait_for(emulation::Waits::Block); }

inline int min(int a, int b) { return a < b ? a : b; }

// Threads take turns only where they wait.
template <typename T>
T atomicAdd(T* to, T value) {
    T before = *to;
    *to += value;
    return before;
}

inline float as_float(int bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

inline unsigned as_bits(float number) {
    unsigned bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

inline float widen(unsigned short number) { return as_float(static_cast<int>(number) << 16); }

inline unsigned short narrow(float number) {
    uint32_t bits = as_bits(number);
    if (std::isnan(number)) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline unsigned pack(float low, float high) {
    return narrow(low) | static_cast<unsigned>(narrow(high)) << 16;
}

inline float exp2_fast(float power) { return std::exp2(power); }

inline unsigned long long product_high(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

template <typename T>
T shuffle(T value, int lane) {
    return emulation::exchange(value).template of<T>(static_cast<unsigned>(lane));
}

template <typename T>
T shuffle_xor(T value, int lanes) {
    unsigned lane = threadIdx.x % emulation::WARP;
    return emulation::exchange(value).template of<T>(lane ^ static_cast<unsigned>(lanes));
}

// A lane's part of two matrices, and of the sums that their product is added to.
struct Fragments {
    unsigned a[4], b[2];
    float sums[4];
};

// The sums of a warp. The first lane that comes to ask for them makes all of them.
inline const float (&multiplied(const emulation::Exchange& all))[16][8] {
    emulation::Warp& warp = emulation::state().warps[all.warp];
    unsigned number = emulation::fiber().exchanges;
    if (warp.multiplied == number) return warp.sums;
    warp.multiplied = number;
    float left[16][16], right[16][8];
    for (unsigned lane = 0; lane < emulation::WARP; lane++) {
        auto part = all.of<Fragments>(lane);
        unsigned group = lane / 4, place = lane % 4 * 2;
        for (unsigned half = 0; half < 2; half++) {
            auto wide = [half](unsigned word) { return widen(static_cast<unsigned short>(word >> half * 16)); };
            for (unsigned k = 0; k < 4; k++) left[group + k % 2 * 8][k / 2 * 8 + place + half] = wide(part.a[k]);
            for (unsigned k = 0; k < 2; k++) right[k * 8 + place + half][group] = wide(part.b[k]);
        }
        for (unsigned i = 0; i < 4; i++) warp.sums[group + i / 2 * 8][place + i % 2] = part.sums[i];
    }
    for (unsigned row = 0; row < 16; row++) {
        for (unsigned k = 0; k < 16; k++) {
            for (unsigned column = 0; column < 8; column++) warp.sums[row][column] += left[row][k] * right[k][column];
        }
    }
    return warp.sums;
}

inline void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned lane = threadIdx.x % emulation::WARP;
    Fragments own{{a[0], a[1], a[2], a[3]}, {b0, b1}, {sums[0], sums[1], sums[2], sums[3]}};
    const auto& all = multiplied(emulation::exchange(own));
    for (unsigned i = 0; i < 4; i++) sums[i] = all[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

// A driver of CUDA without a device: memory is this machine's, and kernels run on its processor, when
// they are launched. What `pointsman-cuda` calls through cudarc is here, and the switches of tests.

#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "emulation.h"
#include "../kernels/attention.cu"
#include "../kernels/fp8.cu"
#include "../kernels/rows.cu"
#include "../kernels/sample.cu"

namespace {

enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    UNKNOWN = 999,
    // Of nothing that the driver has: what is to be done next waits for another device.
    WAITS = -1,
};

// Device attributes that are asked for.
enum Attribute { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, MEMORY_POOLS = 115 };

constexpr unsigned THREADS_MAX = 1024;

// Bytes from which memory has pages as large as can be had, and is kept when it is given back, up to so much in all: what
// every backend takes for cuBLAS would be cleared page by page otherwise, again and again.
constexpr size_t LARGE = size_t(2) << 20;
constexpr size_t SPARE_MAX = size_t(256) << 20;

using Prepare = emulation::Launch (*)(void**, Index, unsigned);

struct Kernel {
    const char* name;
    Prepare prepare;
};

#define KERNEL(name)                                                                            \
    {#name, [](void** arguments, Index grid, unsigned threads) {                                \
         return emulation::prepare(name, arguments, grid, threads);                             \
     }}

const Kernel KERNELS[] = {
    KERNEL(embed),
    KERNEL(rmsnorm),
    KERNEL(add_rmsnorm),
    KERNEL(add_bias),
    KERNEL(norm_heads),
    KERNEL(last_rows),
    KERNEL(silu_mul),
    KERNEL(rope_write_kv),
    KERNEL(attention_split_32),
    KERNEL(attention_split_64),
    KERNEL(attention_split_128),
    KERNEL(attention_whole_32),
    KERNEL(attention_whole_64),
    KERNEL(attention_whole_128),
    KERNEL(attention_merge),
    KERNEL(choose),
    KERNEL(product_fp8_8),
    KERNEL(product_fp8_32),
    KERNEL(widen_fp8_rows),
};

// A device: its memory, and who holds its context.
struct Device {
    std::map<uint64_t, size_t> memory;
    size_t allocated = 0;
    // Memory of this machine that is pinned for it.
    std::map<void*, size_t> pinned;
    int holders = 0;
    bool lost = false;
};

// Number of devices of a process that is not told another.
int count_at_first() {
    const char* told = std::getenv("POINTSMAN_EMULATED_DEVICES");
    return told == nullptr ? 1 : std::atoi(told);
}

struct Driver {
    std::mutex lock;
    std::map<int, Device> devices;
    int count = count_at_first();
    size_t memory_bytes = size_t(1) << 30;
    int capability[2] = {9, 0};
    // The minor number of one device, by its number.
    std::map<int, int> capability_minor_of;
    long launches_left = -1;
    // The same of one device, by its number.
    std::map<int, long> launches_left_of;
    // Memory that was given back, by its size.
    std::multimap<size_t, void*> spare;
    size_t spare_bytes = 0;
    // Bytes that may be pinned, those that are, and the most that were.
    size_t pinned_max = SIZE_MAX, pinned = 0, pinned_peak = 0;
    // Copies that are still made before one fails; negative: none does.
    long copies_left = -1;
    // The order of threads, and how often one was set.
    emulation::Order order = emulation::Order::Forward;
    unsigned seed = 0, orders = 0;
    // Launches: of kernels and of what other libraries have a stream do, each alone, and of records.
    std::atomic<uint64_t> launched_alone{0}, launched_records{0};
};

Driver& driver() {
    static Driver driver;
    return driver;
}

// A stream, in which copies from and to pinned memory wait until somebody asks for what is after them, and what needs
// other devices waits for these; all else is done when it is given, unless something waits in front of it.
struct Stream {
    std::deque<std::function<int()>> waiting;
    // The number of things that had to wait, and of those that are done.
    uint64_t given = 0, done = 0;

    // Does what waits until so much is done, or until something waits for another device.
    int advance(uint64_t until) {
        while (done < until) {
            int result = waiting.front()();
            if (result == WAITS) return NOT_READY;
            waiting.pop_front();
            done++;
            if (result != SUCCESS) return result;
        }
        return SUCCESS;
    }

    // The same, and waits for other devices.
    int finish(uint64_t until) {
        while (true) {
            int result = advance(until);
            if (result != NOT_READY) return result;
            std::this_thread::yield();
        }
    }

    int finish() { return finish(given); }

    void wait_with(std::function<int()> does) {
        waiting.push_back(std::move(does));
        given++;
    }

    // Does something once all in front of it is done.
    int give(std::function<int()> does) {
        if (waiting.empty()) {
            int result = does();
            if (result != WAITS) return result;
        }
        wait_with(std::move(does));
        return SUCCESS;
    }
};

// A place in a stream.
struct Event {
    Stream* stream = nullptr;
    uint64_t after = 0;
};

Stream* stream_of(void* handle) { return static_cast<Stream*>(handle); }

// The context of this thread: the number of its device, from 1.
thread_local uintptr_t current = 0;

// What is done by launches that are recorded; the result of each is the driver's.
using Graph = std::vector<std::function<int()>>;

// The launches that this thread records, if it records any.
thread_local Graph* recording = nullptr;

// The records of all threads, each with its state: false once it is broken.
std::map<Graph*, bool>& records() {
    static std::map<Graph*, bool> records;
    return records;
}

std::mutex& records_lock() {
    static std::mutex lock;
    return lock;
}

// Waits for all that a device does, which breaks the records of all threads and is refused then.
int wait_for_all() {
    std::lock_guard<std::mutex> guard(records_lock());
    for (auto& [record, is_whole] : records()) is_whole = false;
    return records().empty() ? SUCCESS : CAPTURE_UNSUPPORTED;
}

Device* device_of(uintptr_t context) {
    if (context == 0) return nullptr;
    return &driver().devices[static_cast<int>(context) - 1];
}

// Does something with the device of a context, unless it is lost.
template <typename Does>
int with_device_of(uintptr_t context, Does does) {
    std::lock_guard<std::mutex> guard(driver().lock);
    Device* device = device_of(context);
    if (device == nullptr || device->holders == 0) return INVALID_CONTEXT;
    if (device->lost) return ILLEGAL_ADDRESS;
    return does(*device);
}

// The same with the thread's device.
template <typename Does>
int with_device(Does does) {
    return with_device_of(current, does);
}

// Has a stream do something, or notes it where launches are recorded.
int give(void* stream, std::function<int()> does) {
    if (recording == nullptr) return stream_of(stream)->give(std::move(does));
    recording->push_back(std::move(does));
    return SUCCESS;
}

// The same with a launch, which is counted where it is not recorded.
int give_launch(void* stream, std::function<int()> does) {
    if (recording == nullptr) driver().launched_alone++;
    return give(stream, std::move(does));
}

bool holds(const Device& device, uint64_t at, size_t bytes) {
    auto after = device.memory.upper_bound(at);
    if (after == device.memory.begin()) return false;
    auto [begin, size] = *std::prev(after);
    return at + bytes <= begin + size;
}

// Memory of this machine for a device, or null.
void* take(size_t bytes) {
    Driver& here = driver();
    auto spare = here.spare.find(bytes);
    if (spare != here.spare.end()) {
        void* memory = spare->second;
        here.spare.erase(spare);
        here.spare_bytes -= bytes;
        return memory;
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, bytes < LARGE ? 256 : LARGE, bytes) != 0) return nullptr;
    if (bytes >= LARGE) madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

// Gives it back. A sanitizer sees who uses it afterwards: there it is not kept.
void leave(void* memory, size_t bytes) {
#if !defined(__SANITIZE_ADDRESS__)
    Driver& here = driver();
    if (bytes >= LARGE && bytes <= SPARE_MAX - here.spare_bytes) {
        here.spare.emplace(bytes, memory);
        here.spare_bytes += bytes;
        return;
    }
#endif
    std::free(memory);
}

int allocate(uint64_t* at, size_t bytes) {
    return with_device([&](Device& device) -> int {
        if (bytes == 0 || recording != nullptr) return INVALID_VALUE;
        if (bytes > driver().memory_bytes - std::min(device.allocated, driver().memory_bytes)) {
            return OUT_OF_MEMORY;
        }
        void* memory = take(bytes);
        if (memory == nullptr) return OUT_OF_MEMORY;
        // Not a number, in bf16 and f32: what is read before it is written shows.
        std::memset(memory, 0xff, bytes);
        *at = reinterpret_cast<uint64_t>(memory);
        device.memory[*at] = bytes;
        device.allocated += bytes;
        return SUCCESS;
    });
}

int give_back(uintptr_t context, uint64_t at) {
    // Memory of a lost device is gone with its context.
    return with_device_of(context, [&](Device& device) -> int {
        auto found = device.memory.find(at);
        if (found == device.memory.end()) return INVALID_VALUE;
        device.allocated -= found->second;
        leave(reinterpret_cast<void*>(at), found->second);
        device.memory.erase(found);
        return SUCCESS;
    });
}

void end_context(Device& device) {
    for (auto [at, bytes] : device.memory) leave(reinterpret_cast<void*>(at), bytes);
    for (auto [at, bytes] : device.pinned) {
        driver().pinned -= bytes;
        std::free(at);
    }
    device = Device();
}

bool is_pinned(const void* at) {
    std::lock_guard<std::mutex> guard(driver().lock);
    Device* device = device_of(current);
    if (device == nullptr) return false;
    auto after = device->pinned.upper_bound(const_cast<void*>(at));
    if (after == device->pinned.begin()) return false;
    auto [begin, size] = *std::prev(after);
    return static_cast<const char*>(at) < static_cast<const char*>(begin) + size;
}

int copy(uint64_t on_device, void* to, const void* from, size_t bytes, void* handle) {
    auto make = [=, context = current] {
        return with_device_of(context, [&](Device& device) -> int {
            if (!holds(device, on_device, bytes)) return INVALID_VALUE;
            long& left = driver().copies_left;
            if (left == 0) return UNKNOWN;
            if (left > 0) left--;
            std::memcpy(to, from, bytes);
            return SUCCESS;
        });
    };
    Stream* stream = stream_of(handle);
    if (is_pinned(to) || is_pinned(from)) {
        stream->wait_with(make);
        return SUCCESS;
    }
    if (int failed = stream->finish()) return failed;
    return make();
}

// Counts a launch, and returns true if it is the one that is lost.
bool is_lost_with(long& left) {
    bool is_lost = left == 0;
    if (left >= 0) left--;
    return is_lost;
}

// Takes over the order of threads, where another was set since.
void take_order() {
    static thread_local unsigned taken = 0;
    Driver& here = driver();
    if (taken == here.orders) return;
    taken = here.orders;
    emulation::own_state().order = here.order;
    emulation::own_state().random.seed(here.seed);
}

// Begins to run a kernel on a device, unless it is lost with it.
int begin_run(uintptr_t context, Device& device) {
    auto own = driver().launches_left_of.find(static_cast<int>(context) - 1);
    bool is_own = own != driver().launches_left_of.end() && is_lost_with(own->second);
    if (is_lost_with(driver().launches_left) || is_own) {
        device.lost = true;
        return ILLEGAL_ADDRESS;
    }
    take_order();
    return SUCCESS;
}

// Runs a kernel on a device. Other threads have the driver meanwhile.
int run(uintptr_t context, const emulation::Launch& launch) {
    int refused = with_device_of(context, [=](Device& device) { return begin_run(context, device); });
    if (refused != SUCCESS) return refused;
    if (launch()) return SUCCESS;
    return with_device_of(context, [](Device& device) {
        device.lost = true;
        return LAUNCH_FAILED;
    });
}

int launch(const Kernel& kernel, Index grid, Index block, void* stream, void** arguments) {
    std::function<int()> does;
    int refused = with_device([&](Device&) -> int {
        unsigned threads = block.x * block.y * block.z;
        bool whole = block.y == 1 && block.z == 1 && threads % emulation::WARP == 0;
        if (!whole || threads == 0 || threads > THREADS_MAX) return INVALID_VALUE;
        if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
            return INVALID_VALUE;
        }
        auto prepared = kernel.prepare(arguments, grid, threads);
        does = [=, context = current] { return run(context, prepared); };
        return SUCCESS;
    });
    return refused == SUCCESS ? give_launch(stream, does) : refused;
}

// Has each thread of a launch write its number to the same place: a race, of which the number of the last is left.
void race(unsigned* last) { *last = blockIdx.x * blockDim.x + threadIdx.x; }

// Has each thread of a block write to the place behind its own in an array that they share: the last one's is outside.
void overrun_shared(unsigned* last) {
    __shared__ unsigned places[emulation::WARP];
    places[threadIdx.x + 1] = threadIdx.x;
    __syncthreads();
    *last = places[threadIdx.x];
}

const std::map<int, const char*> ERRORS = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {NOT_READY, "CUDA_ERROR_NOT_READY"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
};

}  // namespace

extern "C" {

// === Switches of tests ===

void pointsman_stub_devices(int count) { driver().count = count; }

void pointsman_stub_capability(int major, int minor) {
    driver().capability[0] = major;
    driver().capability[1] = minor;
    driver().capability_minor_of.clear();
}

// Has one device another minor number.
void pointsman_stub_capability_minor_of(int device, int minor) { driver().capability_minor_of[device] = minor; }

void pointsman_stub_memory(size_t bytes) { driver().memory_bytes = bytes; }

size_t pointsman_stub_allocated() {
    std::lock_guard<std::mutex> guard(driver().lock);
    size_t bytes = 0;
    for (auto& [number, device] : driver().devices) {
        bytes += device.allocated;
        for (auto& [at, pinned] : device.pinned) bytes += pinned;
    }
    return bytes;
}

void pointsman_stub_lose_after(long launches) {
    std::lock_guard<std::mutex> guard(driver().lock);
    driver().launches_left = launches;
}

// The same of one device; negative: it is not lost.
void pointsman_stub_lose_device_after(int number, long launches) {
    std::lock_guard<std::mutex> guard(driver().lock);
    driver().launches_left_of[number] = launches;
}

// Bytes that may be pinned, and from now on the most that are.
void pointsman_stub_pin_max(size_t bytes) {
    std::lock_guard<std::mutex> guard(driver().lock);
    driver().pinned_max = bytes;
    driver().pinned_peak = driver().pinned;
}

size_t pointsman_stub_pinned_peak() {
    std::lock_guard<std::mutex> guard(driver().lock);
    return driver().pinned_peak;
}

void pointsman_stub_fail_copies_after(long copies) {
    std::lock_guard<std::mutex> guard(driver().lock);
    driver().copies_left = copies;
}

void pointsman_stub_order(int order, unsigned seed) {
    std::lock_guard<std::mutex> guard(driver().lock);
    driver().order = static_cast<emulation::Order>(order);
    driver().seed = seed;
    driver().orders++;
}

// Runs a kernel that writes behind its memory.
void pointsman_stub_overrun() {
    std::vector<bf16> table(16), out(8);
    bf16 *to = out.data(), *from = table.data();
    int token = 0, size = 16;
    const int* tokens = &token;
    void* arguments[] = {&to, &from, &tokens, &size};
    emulation::prepare(embed, arguments, {1, 1, 1}, emulation::WARP)();
}

// Runs a kernel that writes behind an array that a block's threads share.
void pointsman_stub_overrun_shared() {
    unsigned last = 0, *at = &last;
    void* arguments[] = {&at};
    emulation::prepare(overrun_shared, arguments, {1, 1, 1}, emulation::WARP)();
}

// Runs a kernel that is a race, in the order of threads that is set, and returns what it leaves.
unsigned pointsman_stub_race() {
    unsigned last = 0, *at = &last;
    void* arguments[] = {&at};
    {
        std::lock_guard<std::mutex> guard(driver().lock);
        take_order();
    }
    emulation::prepare(race, arguments, {2, 1, 1}, 2 * emulation::WARP)();
    return last;
}

uint64_t pointsman_stub_launched_alone() { return driver().launched_alone; }

uint64_t pointsman_stub_launched_records() { return driver().launched_records; }

// === For the other libraries ===

// Has a stream do something, unless the thread's device is lost then, or notes it where launches are recorded. It is done
// again and again for as long as it returns -1.
int pointsman_stub_do(std::function<int()>* does, void* stream) {
    return give_launch(stream, [does = *does, context = current]() mutable {
        int lost = with_device_of(context, [](Device&) { return SUCCESS; });
        return lost == SUCCESS ? does() : lost;
    });
}

// 1 where this thread records launches.
int pointsman_stub_records() { return recording != nullptr; }

int pointsman_stub_wait() { return wait_for_all(); }

// === The driver ===

int cuInit(unsigned) { return SUCCESS; }

int cuGetErrorName(int error, const char** name) {
    auto found = ERRORS.find(error);
    *name = found == ERRORS.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
    return SUCCESS;
}

int cuGetErrorString(int error, const char** text) { return cuGetErrorName(error, text); }

int cuDeviceGetCount(int* count) {
    *count = driver().count;
    return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= driver().count) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char* name, int length, int device) {
    std::snprintf(name, static_cast<size_t>(length), "Emulated device %d", device);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = driver().memory_bytes;
    return SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
    auto own = driver().capability_minor_of.find(device);
    int minor = own == driver().capability_minor_of.end() ? driver().capability[1] : own->second;
    switch (attribute) {
        case CAPABILITY_MAJOR: *value = driver().capability[0]; return SUCCESS;
        case CAPABILITY_MINOR: *value = minor; return SUCCESS;
        case MEMORY_POOLS: *value = 1; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    std::lock_guard<std::mutex> guard(driver().lock);
    driver().devices[device].holders++;
    *context = reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int number) {
    std::lock_guard<std::mutex> guard(driver().lock);
    Device& device = driver().devices[number];
    if (device.holders == 0) return INVALID_CONTEXT;
    if (--device.holders == 0) end_context(device);
    return SUCCESS;
}

int cuCtxGetCurrent(void** context) {
    *context = reinterpret_cast<void*>(current);
    return SUCCESS;
}

int cuCtxSetCurrent(void* context) {
    current = reinterpret_cast<uintptr_t>(context);
    return SUCCESS;
}

int cuCtxSynchronize() {
    return with_device([](Device&) { return SUCCESS; });
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    return with_device([&](Device& device) {
        *total = driver().memory_bytes;
        *free = *total - std::min(device.allocated, *total);
        return SUCCESS;
    });
}

int cuMemAlloc_v2(uint64_t* at, size_t bytes) { return allocate(at, bytes); }

int cuMemAllocAsync(uint64_t* at, size_t bytes, void*) { return allocate(at, bytes); }

int cuMemFree_v2(uint64_t at) {
    if (int refused = wait_for_all()) return refused;
    return give_back(current, at);
}

int cuMemFreeAsync(uint64_t at, void* stream) {
    return stream_of(stream)->give([at, context = current] { return give_back(context, at); });
}

int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    if (int refused = wait_for_all()) return refused;
    return with_device([&](Device& device) -> int {
        Driver& here = driver();
        if (bytes > here.pinned_max - std::min(here.pinned, here.pinned_max)) return OUT_OF_MEMORY;
        *at = std::malloc(bytes);
        if (*at == nullptr) return OUT_OF_MEMORY;
        device.pinned[*at] = bytes;
        here.pinned += bytes;
        here.pinned_peak = std::max(here.pinned_peak, here.pinned);
        return SUCCESS;
    });
}

int cuMemFreeHost(void* at) {
    if (int refused = wait_for_all()) return refused;
    return with_device([&](Device& device) -> int {
        auto found = device.pinned.find(at);
        if (found == device.pinned.end()) return INVALID_VALUE;
        driver().pinned -= found->second;
        device.pinned.erase(found);
        std::free(at);
        return SUCCESS;
    });
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    return copy(to, reinterpret_cast<void*>(to), from, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    return copy(from, to, reinterpret_cast<void*>(from), bytes, stream);
}

int cuMemsetD8Async(uint64_t at, unsigned char byte, size_t bytes, void* stream) {
    return give(stream, [=, context = current] {
        return with_device_of(context, [&](Device& device) -> int {
            if (!holds(device, at, bytes)) return INVALID_VALUE;
            std::memset(reinterpret_cast<void*>(at), byte, bytes);
            return SUCCESS;
        });
    });
}

int cuStreamCreate(void** stream, unsigned) {
    return with_device([&](Device&) {
        *stream = new Stream();
        return SUCCESS;
    });
}

// Memory is not to be taken while a thread records: it would be another's when the record is run.
int cuStreamBeginCapture_v2(void*, int) {
    if (recording != nullptr) return INVALID_VALUE;
    recording = new Graph();
    std::lock_guard<std::mutex> guard(records_lock());
    records()[recording] = true;
    return SUCCESS;
}

int cuStreamEndCapture(void*, void** graph) {
    if (recording == nullptr) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(records_lock());
    bool is_whole = records()[recording];
    records().erase(recording);
    if (!is_whole) delete recording;
    *graph = is_whole ? recording : nullptr;
    recording = nullptr;
    return is_whole ? SUCCESS : CAPTURE_INVALIDATED;
}

int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
    *executable = new Graph(*static_cast<Graph*>(graph));
    return SUCCESS;
}

int cuGraphLaunch(void* executable, void* stream) {
    driver().launched_records++;
    for (auto& does : *static_cast<Graph*>(executable)) {
        if (int failed = stream_of(stream)->give(does)) return failed;
    }
    return SUCCESS;
}

int cuGraphExecDestroy(void* executable) {
    delete static_cast<Graph*>(executable);
    return SUCCESS;
}

int cuGraphDestroy(void* graph) {
    delete static_cast<Graph*>(graph);
    return SUCCESS;
}

int cuStreamSynchronize(void* stream) {
    if (int failed = stream_of(stream)->finish()) return failed;
    return cuCtxSynchronize();
}

// What it still has to do is done first.
int cuStreamDestroy_v2(void* handle) {
    Stream* stream = stream_of(handle);
    while (stream->done < stream->given && stream->advance(stream->done + 1) != NOT_READY) {
    }
    delete stream;
    return SUCCESS;
}

int cuEventCreate(void** event, unsigned) {
    *event = new Event();
    return SUCCESS;
}

int cuEventDestroy_v2(void* event) {
    delete static_cast<Event*>(event);
    return SUCCESS;
}

int cuEventRecord(void* event, void* stream) {
    *static_cast<Event*>(event) = {stream_of(stream), stream_of(stream)->given};
    return cuCtxSynchronize();
}

// Each look makes a copy that is waited for, and finds it under way.
int cuEventQuery(void* handle) {
    Event* event = static_cast<Event*>(handle);
    Stream* stream = event->stream;
    if (stream == nullptr || stream->done >= event->after) return SUCCESS;
    if (int failed = stream->advance(stream->done + 1)) return failed;
    return NOT_READY;
}

int cuEventSynchronize(void* handle) {
    Event* event = static_cast<Event*>(handle);
    return event->stream == nullptr ? SUCCESS : event->stream->finish(event->after);
}

int cuStreamWaitEvent(void*, void* event, unsigned) { return cuEventSynchronize(event); }

int cuModuleLoadData(void** module, const void* ptx) {
    return with_device([&](Device&) {
        *module = new std::string(static_cast<const char*>(ptx));
        return SUCCESS;
    });
}

int cuModuleUnload(void* module) {
    if (int refused = wait_for_all()) return refused;
    delete static_cast<std::string*>(module);
    return SUCCESS;
}

int cuModuleGetFunction(const void** function, void* module, const char* name) {
    std::string entry = std::string(".entry ") + name + "(";
    if (static_cast<std::string*>(module)->find(entry) == std::string::npos) return NOT_FOUND;
    for (const Kernel& kernel : KERNELS) {
        if (std::strcmp(kernel.name, name) == 0) {
            *function = &kernel;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int cuLaunchKernel(const void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** arguments, void**) {
    // No kernel asks for it.
    if (shared_bytes > 0) return INVALID_VALUE;
    return launch(*static_cast<const Kernel*>(function), {grid_x, grid_y, grid_z},
                  {block_x, block_y, block_z}, stream, arguments);
}

}  // extern "C"

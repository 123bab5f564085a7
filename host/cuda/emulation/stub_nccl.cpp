// NCCL without devices that are linked: sums over ranks in one process, in the order of their numbers. As NVIDIA's, a sum
// is a part of its stream, which waits there until all ranks have come to it; nobody waits in a call.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "beside.h"

namespace {

enum Status { SUCCESS = 0, UNHANDLED = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum Type { BF16 = 9 };
enum Operation { SUM = 0 };

constexpr unsigned MAGIC = 0xcafebeef;
// What the driver's library takes for: not yet.
constexpr int WAITS = -1;
constexpr int INVALID_VALUE = 1;
constexpr uint64_t NOT_BEGUN = UINT64_MAX;

struct Id {
    char bytes[128];
};

struct Config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};

// A sum to which ranks come one after the other.
struct Sum {
    std::vector<uint16_t*> parts;
    size_t count = 0;
    bool is_recorded = false;
    size_t arrived = 0, left = 0;
};

struct Group {
    std::mutex lock;
    size_t ranks = 0, joined = 0;
    // A rank has left: the others wait for it.
    bool is_left = false;
    std::map<uint64_t, Sum> sums;
};

struct Rank {
    std::shared_ptr<Group> group;
    size_t number = 0;
    // Sums that it has come to.
    uint64_t sums = 0;
    std::atomic<bool> is_aborted{false};
    // Looks until what was asked for last is done.
    int looks = 0;
    bool has_summed = false;
};

using Comm = std::shared_ptr<Rank>;

std::mutex& groups_lock() {
    static std::mutex lock;
    return lock;
}

std::map<uint64_t, std::shared_ptr<Group>>& groups() {
    static std::map<uint64_t, std::shared_ptr<Group>> groups;
    return groups;
}

// Sums of any rank until a link fails; negative: none does.
std::atomic<long>& sums_left() {
    static std::atomic<long> left{-1};
    return left;
}

std::atomic<long>& communicators() {
    static std::atomic<long> count{0};
    return count;
}

void add_up(const Sum& sum) {
    for (size_t place = 0; place < sum.count; place++) {
        float total = widen(sum.parts[0][place]);
        for (size_t rank = 1; rank < sum.parts.size(); rank++) total += widen(sum.parts[rank][place]);
        for (uint16_t* part : sum.parts) part[place] = narrow(total);
    }
}

// Comes to a sum, where the rank has not yet, and finds out whether all have. Ranks have to ask for the same, and
// record it all or none.
int come(Rank& rank, uint64_t& turn, uint16_t* part, size_t count, bool is_recorded) {
    if (rank.is_aborted) return SUCCESS;
    Group& group = *rank.group;
    std::lock_guard<std::mutex> guard(group.lock);
    if (group.is_left) return WAITS;
    bool is_first_look = turn == NOT_BEGUN;
    if (is_first_look) turn = rank.sums++;
    Sum& sum = group.sums[turn];
    if (is_first_look) {
        if (sum.arrived == 0) {
            sum.parts.resize(group.ranks);
            sum.count = count;
            sum.is_recorded = is_recorded;
        }
        if (sum.count != count || sum.is_recorded != is_recorded) return INVALID_VALUE;
        sum.parts[rank.number] = part;
        if (++sum.arrived == group.ranks) {
            add_up(sum);
            sum.left = group.ranks;
        }
    }
    if (sum.left == 0) return WAITS;
    if (--sum.left == 0) group.sums.erase(turn);
    return SUCCESS;
}

Rank& rank_of(void* comm) { return **static_cast<Comm*>(comm); }

}  // namespace

extern "C" {

// === Switches of tests ===

void pointsman_stub_nccl_fail_after(long sums) { sums_left() = sums; }

// Number of communicators that were not let go of.
long pointsman_stub_nccl_communicators() { return communicators(); }

// === NCCL ===

const char* ncclGetErrorString(int status) {
    switch (status) {
        case REMOTE_ERROR: return "remote process exited or there was a network error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        default: return "unhandled cuda error";
    }
}

int ncclGetUniqueId(Id* id) {
    static std::atomic<uint64_t> next{1};
    uint64_t number = next++;
    std::memset(id, 0, sizeof *id);
    std::memcpy(id->bytes, &number, sizeof number);
    return SUCCESS;
}

int ncclCommInitRankConfig(void** comm, int ranks, Id id, int rank, const Config* config) {
    bool is_built = config != nullptr && config->size == sizeof(Config) && config->magic == MAGIC &&
                    config->blocking == 0;
    if (!is_built || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    uint64_t number;
    std::memcpy(&number, id.bytes, sizeof number);
    std::lock_guard<std::mutex> guard(groups_lock());
    auto& group = groups()[number];
    if (group == nullptr) group = std::make_shared<Group>();
    auto* made = new Comm(std::make_shared<Rank>());
    (*made)->group = group;
    (*made)->number = static_cast<size_t>(rank);
    std::lock_guard<std::mutex> of_group(group->lock);
    group->ranks = static_cast<size_t>(ranks);
    if (++group->joined == group->ranks) groups().erase(number);
    communicators()++;
    *comm = made;
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void* comm, int* status) {
    Rank& rank = rank_of(comm);
    std::lock_guard<std::mutex> guard(rank.group->lock);
    bool is_under_way = rank.group->joined < rank.group->ranks;
    if (rank.looks > 0) {
        rank.looks--;
        is_under_way = true;
    }
    *status = is_under_way ? IN_PROGRESS : sums_left() == 0 ? REMOTE_ERROR : SUCCESS;
    return SUCCESS;
}

int ncclAllReduce(const void* send, void* receive, size_t count, int type, int operation, void* comm,
                  void* stream) {
    if (send != receive || type != BF16 || operation != SUM) return INVALID_ARGUMENT;
    Rank& rank = rank_of(comm);
    // What was asked for before has to be done.
    if (rank.is_aborted || rank.looks > 0 || rank.group->joined < rank.group->ranks) return INVALID_USAGE;
    if (sums_left() > 0) sums_left()--;
    auto* records = of_driver<int()>("pointsman_stub_records");
    auto* driver_do = of_driver<int(std::function<int()>*, void*)>("pointsman_stub_do");
    if (records == nullptr || driver_do == nullptr) return UNHANDLED;
    bool is_recorded = records() != 0;
    std::function<int()> sum = [owner = *static_cast<Comm*>(comm), part = static_cast<uint16_t*>(receive), count,
                                is_recorded, turn = NOT_BEGUN]() mutable {
        return come(*owner, turn, part, count, is_recorded);
    };
    if (driver_do(&sum, stream) != 0) return UNHANDLED;
    // The first one makes connections beside its caller.
    if (rank.has_summed) return SUCCESS;
    rank.has_summed = true;
    rank.looks = 2;
    return IN_PROGRESS;
}

int ncclCommAbort(void* comm) {
    Rank& rank = rank_of(comm);
    rank.is_aborted = true;
    std::unique_lock<std::mutex> guard(rank.group->lock);
    rank.group->is_left = true;
    guard.unlock();
    communicators()--;
    delete static_cast<Comm*>(comm);
    return SUCCESS;
}

}  // extern "C"

// The choice of tokens, as `sample` of the engine makes it on processors: the same tokens of the same rows.

#include "common.cuh"

// The weight of the likeliest token. Weights are whole numbers, so that sums are the same in any order.
constexpr u64 UNIT = 1ull << 40;
// A logarithm of weights that are less than one of so many: they are 0.
constexpr float NOTHING = -28.0f;

// How a token is to be chosen. The host lays it out in 32 bits each.
struct Draw {
    // The row of logits.
    int row;
    float temperature;
    // As many of the likeliest at most; 0 for all.
    int top_k;
    // As large a share of the weight as the likeliest that are kept have at least; 1 for all.
    float top_p;
    // As large a part of the likeliest one's weight as those that are kept have at least.
    float min_p;
    // A random number, in halves.
    unsigned random_low, random_high;
    // The tokens whose logits change: the place of the first, and their number.
    int changes, changes_count;
    // Penalties, as the engine names them.
    float repetition, frequency, presence;
};

// A token whose logit changes.
struct Change {
    int token;
    float bias;
    // The times that it was generated.
    int times;
    // 1 if it came up at all, in the prompt or after it.
    int came_up;
};

// The rank of a token: higher for a larger logit, and among equals for a lower id; 0 if it cannot come up.
DEVICE u64 rank(float logit, int token) {
    if (!(logit > NEGATIVE_INFINITY)) return 0;
    // There is one zero.
    unsigned bits = as_bits(logit + 0.0f);
    bits = bits >> 31 ? ~bits : bits | 0x80000000;
    return (u64)bits << 32 | (unsigned)~token;
}

// The tokens that may be chosen: those of a row that are no further behind the likeliest than `bound`.
struct Candidates {
    const float* logits;
    int count;
    float temperature, min_p, largest;
    // One divided by the temperature.
    double scale;
    u64 likeliest, bound;

    // How far a token is behind the likeliest.
    DEVICE u64 behind(int token) const { return likeliest - rank(logits[token], token); }

    // The weight of a token, by its logit; 0 if it is not likely enough to be chosen.
    DEVICE u64 weight(int token) const {
        float logit = logits[token], below = logit - largest;
        if (!(logit > NEGATIVE_INFINITY) || below < temperature * NOTHING) return 0;
        if (behind(token) > bound) return 0;
        double weight = exp((double)below * scale);
        return weight < (double)min_p ? 0 : (u64)(weight * (double)UNIT);
    }
};

// Digits of 8 bits by which a bound is found.
constexpr int DIGITS = 256;

// What a block knows while it looks for a bound: for each digit how much the tokens with it have together, and
// how many they are.
struct Search {
    // The sums in halves: what a device adds to shared memory at once has 32 bits.
    unsigned low[DIGITS], high[DIGITS], counts[DIGITS];
    // The digit that is found, how much all before it have, and how many have it.
    int digit;
    u64 before;
    unsigned count;

    DEVICE u64 sum(int digit) const { return (u64)high[digit] << 32 | low[digit]; }

    DEVICE void add(int digit, u64 measure) {
        unsigned part = (unsigned)measure, before = atomicAdd(&low[digit], part);
        unsigned rest = (unsigned)(measure >> 32) + (before + part < before);
        if (rest > 0) atomicAdd(&high[digit], rest);
        atomicAdd(&counts[digit], 1u);
    }
};

// Finds the first digit up to which all have enough: a warp's lanes have eight digits each.
template <typename IsEnough>
DEVICE void find_digit(Search& search, u64 before, IsEnough is_enough) {
    constexpr int EACH_LANE = DIGITS / 32;
    int lane = threadIdx.x % 32;
    u64 own = 0;
    for (int i = 0; i < EACH_LANE; i++) own += search.sum(lane * EACH_LANE + i);
    u64 sum = before + sum_to_lane(own) - own;
    bool is_here = !is_enough(sum) || lane == 0;
    if (!is_here || !(is_enough(sum + own) || lane == 31)) return;
    int digit = lane * EACH_LANE, last = digit + EACH_LANE - 1;
    while (digit < last && !is_enough(sum + search.sum(digit))) sum += search.sum(digit++);
    search.digit = digit;
    search.before = sum;
    search.count = search.counts[digit];
}

// Bounds the candidates: as few of the likeliest stay as have enough together. `measure` is how much a token
// has, `furthest` how far behind the last one is.
template <typename Measure, typename IsEnough>
DEVICE u64 find_bound(const Candidates& among, u64 furthest, Measure measure, IsEnough is_enough) {
    __shared__ Search search;
    int shift = 64;
    while (shift > 0 && furthest >> (shift - 1) == 0) shift--;
    // The digits found so far.
    u64 found = 0, before = 0;
    while (shift > 0) {
        int width = min(shift, 8);
        shift -= width;
        __syncthreads();
        for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) {
            search.low[i] = search.high[i] = search.counts[i] = 0;
        }
        __syncthreads();
        UNROLL_SOME for (int token = threadIdx.x; token < among.count; token += blockDim.x) {
            u64 weight = among.weight(token);
            if (weight == 0) continue;
            u64 behind = among.behind(token) >> shift;
            if (behind >> width != found) continue;
            search.add((int)(behind & ((1 << width) - 1)), measure(weight));
        }
        __syncthreads();
        if (threadIdx.x < 32) find_digit(search, before, is_enough);
        __syncthreads();
        found = found << width | (u64)search.digit;
        before = search.before;
        // The only one with these digits is the last that stays, whatever its others are.
        if (search.count <= 1) return ((found + 1) << shift) - 1;
    }
    return found;
}

// How far the last candidate is behind.
DEVICE u64 furthest(const Candidates& among) {
    u64 furthest = 0;
    UNROLL_SOME for (int token = threadIdx.x; token < among.count; token += blockDim.x) {
        u64 behind = among.behind(token);
        if (behind > furthest && among.weight(token) > 0) furthest = behind;
    }
    return block_max(furthest);
}

// The weight of all candidates.
DEVICE u64 total(const Candidates& among) {
    u64 sum = 0;
    UNROLL_SOME for (int token = threadIdx.x; token < among.count; token += blockDim.x) sum += among.weight(token);
    return block_sum(sum);
}

// Leaves out what top-k and top-p leave out, in this order.
DEVICE void bound(Candidates& among, const Draw& draw) {
    bool is_share = draw.top_p < 1.0f;
    if (draw.top_k == 0 && !is_share) return;
    u64 last = furthest(among);
    if (draw.top_k > 0) {
        u64 enough = (u64)draw.top_k;
        among.bound = find_bound(
            among, last, [](u64) { return (u64)1; }, [=](u64 count) { return count >= enough; });
    }
    if (is_share) {
        double enough = (double)total(among) * (double)draw.top_p;
        u64 share = find_bound(
            among, last, [](u64 weight) { return weight; },
            [=](u64 sum) { return (double)sum >= enough; });
        // Digits that no other candidate has may be those of tokens that top-k has left out.
        if (share < among.bound) among.bound = share;
    }
}

// Finds the first token up to which the weights are more than the random part of their sum. A warp has
// tokens that are side by side.
DEVICE void pick(int* chosen, const Candidates& among, u64 random) {
    __shared__ u64 sums[32];
    int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    int each = (among.count + blockDim.x - 1) / blockDim.x * 32;
    int first = warp * each, end = min(first + each, among.count);
    u64 sum = 0;
    UNROLL_SOME for (int token = first + lane; token < end; token += 32) sum += among.weight(token);
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    u64 all = 0, before = 0;
    for (int other = 0; other < warps; other++) {
        if (other == warp) before = all;
        all += sums[other];
    }
    u64 target = product_high(random, all);
    if (target < before || target >= before + sum) return;
    for (int from = first;; from += 32) {
        u64 own = from + lane < end ? among.weight(from + lane) : 0, up_to = sum_to_lane(own);
        if (target >= before + up_to - own && target < before + up_to) *chosen = from + lane;
        before += shuffle(up_to, 31);
        if (target < before) return;
    }
}

// Changes the logits of tokens, each by a thread: by a bias, then by penalties for having come up.
DEVICE void change(float* logits, int count, const Draw& draw, const Change* changes) {
    for (int i = threadIdx.x; i < draw.changes_count; i += blockDim.x) {
        Change change = changes[draw.changes + i];
        if (change.token >= count) continue;
        float logit = logits[change.token] + change.bias;
        if (change.came_up) {
            logit = logit > 0.0f ? logit / draw.repetition : logit * draw.repetition;
        }
        for (int time = 0; time < change.times; time++) {
            logit = logit - draw.frequency - (time == 0 ? draw.presence : 0.0f);
        }
        logits[change.token] = logit;
    }
}

// Chooses a token for each draw, a block for one, or -1 where no token of the row can come up. Rows have
// `size` logits, of which those of the first `count` tokens may come up, but for those `missing`.
extern "C" __global__ void BOUNDS(1024, 1) choose(int* chosen, float* rows, const int* draws,
                                                  const int* changes, const int* missing,
                                                  int missing_count, int size, int count) {
    Draw draw = ((const Draw*)draws)[blockIdx.x];
    float* logits = rows + (u64)draw.row * size;
    for (int i = threadIdx.x; i < missing_count; i += blockDim.x) {
        if (missing[i] < count) logits[missing[i]] = NEGATIVE_INFINITY;
    }
    __syncthreads();
    change(logits, count, draw, (const Change*)changes);
    __syncthreads();
    u64 likeliest = 0;
    UNROLL_SOME for (int token = threadIdx.x; token < count; token += blockDim.x) {
        u64 other = rank(logits[token], token);
        if (other > likeliest) likeliest = other;
    }
    likeliest = block_max(likeliest);
    int token = likeliest == 0 ? -1 : (int)~(unsigned)likeliest;
    float largest = likeliest == 0 ? 0.0f : logits[token];
    // No random choice among those that are infinitely likely.
    if (!(draw.temperature > 0.0f) || likeliest == 0 || largest - largest != 0.0f) {
        if (threadIdx.x == 0) chosen[blockIdx.x] = token;
        return;
    }
    Candidates among = {
        logits, count, draw.temperature, draw.min_p, largest, 1.0 / (double)draw.temperature,
        likeliest, ~0ull};
    bound(among, draw);
    pick(chosen + blockIdx.x, among, (u64)draw.random_high << 32 | draw.random_low);
}

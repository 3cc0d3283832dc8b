// Scaled dot products: forward. The queries stand in the lanes (query_lanes.hpp).
//
//     for blocks of queries (a task), in groups of up to three vectors of them:
//         for blocks of keys they may attend to:
//             Sᵀ = K · Qᵀ                       registers → the first-level cache, with the highest of each lane
//             Pᵀ = e^(Sᵀ − highest so far)      sums are rescaled only when a score exceeds what was the highest
//             O += P · V                        where the context belongs, if its rows are whole vectors
//         context = O / Σ P
//
// Where one block holds all keys, Pᵀ is divided by its sum before the product: O is the context at once.
#include <cstring>

#include "base/dtype.hpp"
#include "base/gemm_microkernel.hpp"
#include "base/kernel_table.hpp"
#include "base/pack.hpp"
#include "base/problem.hpp"
#include "base/score_epilogue.hpp"
#include "dot/query_lanes.hpp"

namespace regard::REGARD_ISA {

namespace {

constexpr int key_block = 128;

// Working memory of a task for a group of queries.
struct State {
    float* qt;               // (width, group): transposed, times the scale
    float *highest, *total;  // (group)
    float* summed;           // (rows, ld): the context, not yet divided
    bool fresh;              // nothing is summed yet
    bool divided;            // what is summed is the context
};

// A block of keys, ready to be read.
struct Keys {
    Rectangle k, v;
    int64_t first;
    int count;
};

// Working memory that all groups of a task share.
struct Room {
    float* s;  // (key_block, group)
    ptrdiff_t ld;  // of summed
    int value_width;  // whole vectors
};

// Sums of earlier blocks, brought to a new highest score.
void rescale(const Group& group, const State& state, const vec* shrink, const Room& room) {
    float by[most_vectors * lanes];
    for (int j = 0; j < group.vectors; ++j) {
        store(by + j * lanes, shrink[j]);
        store(state.total + j * lanes, load(state.total + j * lanes) * shrink[j]);
    }
    for (int i = 0; i < group.rows; ++i)
        for (int c = 0; c < room.value_width; c += lanes)
            store(state.summed + i * room.ld + c, load(state.summed + i * room.ld + c) * by[i]);
}

// Weights in place of scores, divided by their sum where no other block follows.
template <int NV, bool MASKED>
void weigh(float* s, int keys, const vec* peak, const Group& group, const State& state, const Room& room) {
    vec base[NV], total[NV], shrink[NV];
    bool risen = false;
    for (int j = 0; j < NV; ++j) {
        const vec before = state.fresh ? splat(-infinity) : load(state.highest + j * lanes);
        const vec now = maximum(before, peak[j]);
        base[j] = MASKED ? (now == splat(-infinity) ? vec{} : now) : now;
        risen |= !state.fresh && any(now > before);
        shrink[j] = before == splat(-infinity) ? vec{} : exponential(before - base[j]);
        store(state.highest + j * lanes, now);
    }
    if (risen) rescale(group, state, shrink, room);
    // Sums of several keys side by side, so that one addition need not wait for another
    constexpr int side = NV == 1 ? 4 : NV == 2 ? 2 : 1;
    vec part[side][NV] = {};
    const auto weight = [&](int key, int place) {
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
            float* at = s + (key * NV + j) * lanes;
            const vec x = load(at);
            vec p = exponential(x - base[j]);
            if (MASKED) p = x == splat(-infinity) ? vec{} : p;
            part[place][j] += p;
            store(at, p);
        }
    };
    int key = 0;
    for (; key + side <= keys; key += side)
#pragma GCC unroll 4
        for (int i = 0; i < side; ++i) weight(key + i, i);
    for (; key < keys; ++key) weight(key, 0);
    for (int j = 0; j < NV; ++j) {
        total[j] = state.fresh ? vec{} : load(state.total + j * lanes);
        for (int i = 0; i < side; ++i) total[j] += part[i][j];
        store(state.total + j * lanes, total[j]);
    }
    if (!state.divided) return;
    for (int j = 0; j < NV; ++j) total[j] = total[j] == vec{} ? vec{} : 1.0f / total[j];
    for (int i = 0; i < keys; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) store(s + (i * NV + j) * lanes, load(s + (i * NV + j) * lanes) * total[j]);
}

// O = or += P · V, for some rows of a group and the keys from `first` to `last` of a block.
void gather(const Room& room, const State& state, const Group& group, int row, int rows, const Rectangle& v, int first, int last) {
    const Matrix weights{room.s + first * group.width() + row, 1, group.width()};
    float* to = state.summed + row * room.ld;
    if (state.fresh)
        product<false>(rows, room.value_width, last - first, weights, v.data + first * v.row, v.row, to, room.ld);
    else
        product<true>(rows, room.value_width, last - first, weights, v.data + first * v.row, v.row, to, room.ld);
}

// A group of queries against a block of keys.
template <int NV>
void meet(const Dot& of, const Field& at, const Keys& keys, const State& state, const Room& room) {
    const ptrdiff_t start = at.col - keys.first;
    const Rectangle k{keys.k.data + start * keys.k.row, keys.k.row}, v{keys.v.data + start * keys.v.row, keys.v.row};
    vec peak[NV];
    if (inside(of, at.place(), at.block())) {
        score_block<NV>(k, at.cols, int(of.width), state.qt, room.s, peak);
        if (of.softcap > 0) {
            cap(room.s, 0, 1, at.cols * at.group.width(), of.softcap);
            highest_of<NV>(room.s, at.cols, peak);
        }
        weigh<NV, false>(room.s, at.cols, peak, at.group, state, room);
        return gather(room, state, at.group, 0, at.group.rows, v, 0, at.cols);
    }
    score_some<NV>(of, at, k, int(of.width), state.qt, room.s);
    if (of.softcap > 0) cap(room.s, 0, 1, at.cols * at.group.width(), of.softcap);
    mask_field(of, at, room.s);
    highest_of<NV>(room.s, at.cols, peak);
    weigh<NV, true>(room.s, at.cols, peak, at.group, state, room);
    const int step = strip(at.group.rows);
    for (int m = 0; m < at.group.rows; m += step) {  // each strip with the keys that it may attend to
        const int rows = int(least(at.group.rows - m, step));
        const Span own = keys_of(of, at, m, rows);
        gather(room, state, at.group, m, rows, v, own.first, own.last);
    }
}

// Context and softmax of a group.
bool finish(const DotForward& job, const Place& at, const Group& group, const State& state, const Room& room) {
    const Dot& of = job.of;
    float* highest = job.softmax.highest.at<float>(at.batch, at.head, group.row);
    float* total = job.softmax.total.at<float>(at.batch, at.head, group.row);
    if (state.fresh) {
        std::memset(state.total, 0, sizeof(float) * group.width());
        for (int i = 0; i < group.rows; ++i) std::memset(state.summed + i * room.ld, 0, sizeof(float) * room.value_width);
    }
    float share[most_vectors * lanes];
    for (int i = 0; i < group.rows; i += lanes) {
        const vec sums = load(state.total + i);
        const int some = int(least(lanes, group.rows - i));
        store_some(highest + i, sums == vec{} ? splat(-infinity) : load(state.highest + i), some);
        store_some(total + i, sums, some);
        store(share + i, sums == vec{} ? splat(1.0f) : 1.0f / sums);
    }
    float* context = job.context.at<float>(at.batch, at.head, group.row);
    if (state.divided && state.summed == context) return !of.mask.any || finite(context, group.rows, int(of.value_width), room.ld);
    vec trace{};
    for (int i = 0; i < group.rows; ++i) {
        const vec times = splat(state.divided ? 1.0f : share[i]);
        for (int c = 0; c < of.value_width; c += lanes) {
            const vec x = load(state.summed + i * room.ld + c) * times;
            trace += x * 0.0f;
            store_some(context + i * job.context.row + c, x, int(least(lanes, of.value_width - c)));
        }
    }
    return sum(trace) == 0;
}

// The part of a block of keys that a group of queries may attend to.
void meet_block(const Dot& of, const Place& at, const Group& group, const Keys& keys, State& state, const Room& room) {
    const Columns own = columns_of(of, at.batch, group.row, group.rows);
    const int64_t start = most(own.first, keys.first), stop = least(own.last, keys.first + keys.count);
    if (start >= stop) return;
    const Field field{at.batch, at.head, group, start, int(stop - start)};
    state.divided = own.first >= keys.first && own.last <= keys.first + keys.count;
    by_vectors(group, [&](auto vectors) { meet<vectors()>(of, field, keys, state, room); });
    state.fresh = false;
}

// The groups of a task with their queries transposed. `copy` has room for the rows of a group.
State* make_states(const DotForward& job, const Place& at, const Groups& groups, float* copy, Scratch& scratch) {
    const Dot& of = job.of;
    const int width = int(of.width);
    const Source q = source(of.q, of.number, at.batch, at.head);
    State* states = reinterpret_cast<State*>(scratch.take(groups.count * sizeof(State) / sizeof(float)));
    const bool whole = of.value_width % lanes == 0;
    for (int g = 0; g < groups.count; ++g) {
        const Group group = groups[g];
        State& state = states[g];
        state.qt = scratch.take(width * group.width());
        state.highest = scratch.take(group.width());
        state.total = scratch.take(group.width());
        state.summed = whole ? job.context.at<float>(at.batch, at.head, group.row)
                             : scratch.take(group.rows * round_up(int(of.value_width)));
        state.fresh = true;
        state.divided = false;
        const Rectangle rows = rectangle<false>(q, group.row, group.rows, width, copy);
        pack_transposed(rows.data, rows.row, group.rows, width, state.qt, group.width(),
                        of.softcap > 0 ? of.scale / of.softcap : of.scale);
    }
    return states;
}

}  // namespace

void dot_forward(const void* given, int64_t task, Scratch& scratch) {
    const DotForward& job = *static_cast<const DotForward*>(given);
    const Dot& of = job.of;
    const Place at = place(of, task, scratch.rows_per_task);
    const int width = int(of.width), value_width = round_up(int(of.value_width));
    const ptrdiff_t ld = value_width == of.value_width ? job.context.row : value_width;
    const Room room{scratch.take(key_block * most_vectors * lanes), ld, value_width};
    float* k_room = scratch.take(key_block * round_up(width));
    float* v_room = scratch.take(key_block * value_width);
    const Groups groups(at.row, at.rows);
    State* states = make_states(job, at, groups, k_room, scratch);
    const Source k = source(of.k, of.number, at.batch, at.head / of.groups);
    const Source v = source(of.v, of.number, at.batch, at.head / of.groups);
    const Columns columns = columns_of(of, at);
    const int64_t range = columns.last - columns.first, blocks = (range + key_block - 1) / key_block;
    const int64_t step = blocks ? (range + blocks - 1) / blocks : 1;
    for (int64_t first = columns.first; first < columns.last; first += step) {
        const int count = int(least(columns.last - first, step));
        const Keys keys{rectangle<false>(k, first, count, width, k_room),
                        rectangle<true>(v, first, count, int(of.value_width), v_room), first, count};
        for (int g = 0; g < groups.count; ++g) meet_block(of, at, groups[g], keys, states[g], room);
    }
    bool finite = true;
    for (int g = 0; g < groups.count; ++g) finite &= finish(job, at, groups[g], states[g], room);
    if (!finite) __atomic_store_n(job.lost, 1, __ATOMIC_RELAXED);
}

}  // namespace regard::REGARD_ISA

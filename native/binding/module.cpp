// The module regard._native: it reads plain numbers and runs kernels; results are written through pointers. The caller has
// validated shapes and dtypes and keeps the tensors alive; only the form of the arguments is checked here. README.md
// describes how to add a kernel.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "additive/additive.hpp"
#include "base/kernel_table.hpp"
#include "base/parallel.hpp"
#include "base/problem.hpp"
#include "binding/argument_reader.hpp"
#include "dispatch/dispatch.hpp"
#include "views/views.hpp"

namespace nb = nanobind;

namespace regard {

namespace {

const Runnable runnable;

}  // namespace

const Kernels* active = runnable.fastest();

namespace {

nb::list isas() {
    nb::list names;
    for (int i = 0; i < runnable.count; ++i) names.append(runnable.all[i]->name);
    return names;
}

void use_isa(const std::string& name) {
    std::string choices;
    for (int i = 0; i < runnable.count; ++i) {
        if (name == runnable.all[i]->name) {
            active = runnable.all[i];
            return;
        }
        choices += (i ? ", " : "") + std::string(runnable.all[i]->name);
    }
    throw nb::value_error(("native: isa ('" + name + "') must be one that runs here: " + choices + ".").c_str());
}

template <typename T = View>
T view(const char* name, nb::handle given) {
    Reader from(name, given, 4);
    return {.data = from.pointer<float>(), .batch = from.integer(), .head = from.integer(), .row = from.integer()};
}

Mask mask_of(nb::handle given) {
    constexpr int64_t open = int64_t(1) << 60;
    if (given.is_none()) return {.left = open, .right = open, .offset = nullptr, .length = nullptr, .kind = MaskKind::none, .dense = nullptr, .batch = 0, .head = 0, .row = 0, .col = 0, .any = false};
    Reader from("mask", given, 10);
    return {
        .left = from.integer(),
        .right = from.integer(),
        .offset = from.pointer<const int64_t>(),
        .length = from.pointer<const int64_t>(),
        .kind = MaskKind(from.integer()),
        .dense = from.pointer<const void>(),
        .batch = from.integer(),
        .head = from.integer(),
        .row = from.integer(),
        .col = from.integer(),
        .any = true,
    };
}

// Arguments of every attention kernel: sizes, q, k, v, numbers, mask.
Dot dot_of(nb::handle problem) {
    Reader part("problem", problem, 6), size("sizes", part.item(), 7);
    const View q = view("q", part.item()), k = view("k", part.item()), v = view("v", part.item());
    Reader number("numbers", part.item(), 3);
    return {
        .batches = size.integer(),
        .heads = size.integer(),
        .groups = size.integer(),
        .queries = size.integer(),
        .keys = size.integer(),
        .width = size.integer(),
        .value_width = size.integer(),
        .q = q,
        .k = k,
        .v = v,
        .number = Number(number.integer()),
        .scale = number.real(),
        .softcap = number.real(),
        .mask = mask_of(part.item()),
    };
}

template <typename T>
Softmax<T> softmax_of(nb::handle given) {
    Reader from("softmax", given, 4);
    float* const highest = from.pointer<float>();
    float* const total = highest + from.integer();
    const ptrdiff_t batch = from.integer(), head = from.integer();
    return {{highest, batch, head, 1}, {total, batch, head, 1}};
}

std::optional<calls::Packed> packed_of(nb::handle lengths) {
    if (lengths.is_none()) return std::nullopt;
    Reader from("lengths", lengths, 3);
    return calls::Packed{from.integer(), from.pointer<const int64_t>(), from.pointer<const int64_t>()};
}

void check_rows(int64_t rows_per_task) {
    if (rows_per_task < 1) throw nb::value_error("native: rows_per_task must be at least 1.");
}

bool dot_forward(nb::handle problem, nb::handle lengths, nb::handle context, nb::handle softmax, int64_t rows_per_task, int threads) {
    const DotForward job{dot_of(problem), view<Output>("context", context), softmax_of<Output>(softmax), nullptr};
    const std::optional<calls::Packed> packed = packed_of(lengths);
    check_rows(rows_per_task);
    nb::gil_scoped_release released;
    return packed ? calls::packed_forward(*active, job, *packed, rows_per_task, threads)
                  : calls::dot_forward(*active, job, rows_per_task, threads);
}

bool dot_backward(nb::handle problem, nb::handle lengths, nb::handle grad, nb::handle context, nb::handle softmax, int64_t parts,
                  nb::handle gradients, int threads) {
    Reader to("gradients", gradients, 6);
    const DotBackward job{
        .of = dot_of(problem),
        .grad = view("grad", grad),
        .context = view("context", context),
        .softmax = softmax_of<View>(softmax),
        .parts = parts,
        .dq = view<Output>("dq", to.item()),
        .dk = view<Output>("dk", to.item()),
        .dv = view<Output>("dv", to.item()),
        .dq_part = to.integer(),
        .dq_number = Number(to.integer()),
        .dk_number = Number(to.integer()),
        .lost = nullptr,
    };
    const std::optional<calls::Packed> packed = packed_of(lengths);
    nb::gil_scoped_release released;
    return packed ? calls::packed_backward(*active, job, *packed, threads) : calls::dot_backward(*active, job, threads);
}

bool additive_forward(nb::handle problem, nb::handle w, int64_t eq, int64_t ek, bool ready, int64_t context, nb::handle softmax,
                      int64_t kept, int64_t rows_per_task, int threads) {
    AdditiveForward job{};
    job.of.of = dot_of(problem);
    job.context = address<float>(context);
    job.softmax = softmax_of<Output>(softmax);
    job.kept = address<float>(kept);
    const View weights = view("w", w);
    check_rows(rows_per_task);
    nb::gil_scoped_release released;
    return calls::additive_forward(*active, job, weights, {address<float>(eq), address<float>(ek), ready}, rows_per_task, threads);
}

void additive_backward(nb::handle problem, nb::handle w, bool own_queries, bool own_keys, nb::handle grad, nb::handle context,
                       nb::handle softmax, int64_t kept, int64_t parts, int64_t dq, int64_t dk, int64_t dv, int64_t dw, int threads) {
    const AdditiveBackward job{
        .of = {dot_of(problem), {}, nullptr, nullptr},
        .grad = view("grad", grad),
        .context = view("context", context),
        .softmax = softmax_of<View>(softmax),
        .kept = address<const float>(kept),
        .parts = parts,
        .dq = address<float>(dq),
        .dk = address<float>(dk),
        .dv = address<float>(dv),
        .dw = address<float>(dw),
    };
    const View weights = view("w", w);
    nb::gil_scoped_release released;
    calls::additive_backward(*active, job, weights, {own_queries, own_keys}, threads);
}

// Asks for large pages where the system gives them: a new piece of memory then costs a fault per 2 MiB, not per 4 KiB.
void large_pages(int64_t start, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const int64_t page = sysconf(_SC_PAGESIZE), first = (start + page - 1) / page * page;
    if (first < start + bytes) madvise(reinterpret_cast<void*>(first), size_t(start + bytes - first), MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

Verb verb_of(const std::string& name) {
    for (int i = 0; i < int(std::size(verbs)); ++i)
        if (name == verbs[i]) return Verb(i);
    throw nb::value_error(("native: verb ('" + name + "') must be one that views/views.hpp lists.").c_str());
}

// Where each of `count` cells of nearly equal size starts, and where the last ends.
std::vector<int64_t> edges_of(Reader& from) {
    const int64_t start = from.integer(), entries = from.integer() - start, count = from.integer();
    if (count < 1) throw nb::value_error("native: the number of cells must be at least 1.");
    std::vector<int64_t> edges(size_t(count + 1));
    for (int64_t c = 0; c <= count; ++c) edges[c] = start + (count == entries ? c : c * entries / count);
    return edges;
}

Shades shades_of(nb::handle given) {
    if (given.is_none()) return {};
    Reader from("shades", given, 6);
    return {
        .out = from.pointer<uint8_t>(),
        .head = from.integer(),
        .row = from.integer(),
        .log = from.integer() != 0,
        .slope = from.real(),
        .shift = from.real(),
    };
}

bool observe(const std::string& verb, nb::handle problem, nb::handle w, int64_t eq, int64_t ek, nb::handle softmax, nb::handle out,
             nb::handle x, nb::handle cells, nb::handle shades, nb::handle cut, int threads) {
    Reader to("out", out, 5), share("cut", cut, 4), rows("softmax", softmax, 2);
    Observe job{};
    job.of.of = dot_of(problem);
    job.verb = verb_of(verb);
    job.highest = rows.pointer<float>();
    job.total = rows.pointer<float>();
    job.out = to.pointer<float>();
    job.out_head = to.integer();
    job.out_row = to.integer();
    job.at = to.pointer<int64_t>();
    job.count = to.integer();
    job.x = view("x", x);
    std::vector<int64_t> edges[2];
    if (!cells.is_none()) {
        Reader from("cells", cells, 6);
        for (std::vector<int64_t>& side : edges) side = edges_of(from);
        job.rows = {edges[0].data(), int64_t(edges[0].size()) - 1};
        job.cols = {edges[1].data(), int64_t(edges[1].size()) - 1};
    }
    job.shades = shades_of(shades);
    job.first = share.integer();
    job.last = share.integer();
    job.units = share.integer();
    job.per_task = share.integer();
    if (job.per_task < 1) throw nb::value_error("native: per_task must be at least 1.");
    const std::optional<View> weights = w.is_none() ? std::nullopt : std::optional(view("w", w));
    nb::gil_scoped_release released;
    return calls::observe(*active, job, weights, {address<float>(eq), address<float>(ek)}, threads);
}

void best(int64_t logits, int64_t rows, int64_t size, int64_t row, int64_t count, int64_t values, int64_t ids, int threads) {
    if (count < 1 || count > size) throw nb::value_error("native: count must lie in 1 … size.");
    const Best job{address<const float>(logits), rows, size, row, count, address<float>(values), address<int64_t>(ids)};
    nb::gil_scoped_release released;
    calls::best(*active, job, threads);
}

void move(nb::sequence tables, int64_t rows, int64_t count, int64_t group, int64_t length, int threads) {
    calls::Move job{{}, address<const int64_t>(rows), count, group, length};
    for (nb::handle given : tables) {
        Reader from("table", given, 4);
        const auto data = from.pointer<char>();
        const int64_t row = from.integer(), position = from.integer(), size = from.integer();
        job.tables.push_back({data, row * size, position * size});
    }
    if (job.tables.empty() || group < 1) throw nb::value_error("native: there must be a table, and rows in a group.");
    nb::gil_scoped_release released;
    calls::move(job, threads);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "C++ kernels for the CPU. Pointers are integers; strides count elements.";
    m.def("isa", [] { return active->name; }, "The instruction set in use.");
    m.def("isas", isas, "The instruction sets that are built and run on this machine, the fastest last.");
    m.def("use_isa", use_isa, nb::arg("name"), "Use another one of them: for tests.");
    m.def(
        "use_pool", [](int64_t region) { use_pool(address<void(void (*)(void*), void*, unsigned, unsigned)>(region)); },
        nb::arg("address"), "Run tasks by the GOMP_parallel at this address; 0: on threads of our own.");
    m.def("dot_forward", dot_forward, nb::arg("problem"), nb::arg("lengths").none(), nb::arg("context"), nb::arg("softmax"),
          nb::arg("rows_per_task"), nb::arg("threads"),
          "Whether every context is finite. problem: (sizes, q, k, v, numbers, mask); sizes: batches, heads, groups, queries, keys, "
          "width, value_width; q, k, v and context: pointer and strides of batch, head, row; numbers: what q, k, v are (0 float32, "
          "1 bfloat16, 2 float16), scale, softcap; mask: None, or left, right, offset, length, kind, dense, and its four strides. "
          "softmax: pointer to the highest score of each row, distance to the totals Σ e^(score − highest), strides of batch and "
          "head. lengths: None; or for sequences one after the other how many, and pointers to their numbers of queries and of "
          "keys: then queries and keys are those of the longest, and the mask's offset is 0 or points to one number per sequence.");
    m.def("dot_backward", dot_backward, nb::arg("problem"), nb::arg("lengths").none(), nb::arg("grad"), nb::arg("context"),
          nb::arg("softmax"), nb::arg("parts"), nb::arg("gradients"), nb::arg("threads"),
          "Whether every gradient is finite. As dot_forward; gradients: dq, dk, dv, one per query head, with rows of padded widths; "
          "the distance from one share's dq to the next's; what dq is to be, and dk and dv: float32, or what q, k, v are. The "
          "gradients of a sequence without queries are not written.");
    m.def("large_pages", large_pages, nb::arg("start"), nb::arg("bytes"), "Ask for large pages in a piece of memory.");
    m.def("padded", padded, nb::arg("width"), "The width of a row of gradients.");
    m.def("query_row", query_row, nb::arg("width"), "The width of a row of exponentials of a query.");
    m.def("key_row", key_row, nb::arg("width"), "The width of a row of exponentials of a key.");
    m.def("additive_forward", additive_forward, nb::arg("problem"), nb::arg("w"), nb::arg("eq"), nb::arg("ek"), nb::arg("ready"),
          nb::arg("context"), nb::arg("softmax"), nb::arg("kept"), nb::arg("rows_per_task"), nb::arg("threads"),
          "Whether the result may be used. As dot_forward; w: pointer and strides; eq, ek: room for the exponentials of "
          "queries and keys, which are computed first, but those of keys not where they are ready; 0: every task computes "
          "those of its head for itself.");
    m.def("additive_backward", additive_backward, nb::arg("problem"), nb::arg("w"), nb::arg("own_queries"), nb::arg("own_keys"),
          nb::arg("grad"), nb::arg("context"), nb::arg("softmax"), nb::arg("kept"), nb::arg("parts"), nb::arg("dq"), nb::arg("dk"),
          nb::arg("dv"), nb::arg("dw"), nb::arg("threads"),
          "As dot_backward, with `parts` copies of dq and dw. q and k are exponentials, but not where own_queries or own_keys "
          "says that the tasks are to compute them.");
    m.def("observe", observe, nb::arg("verb"), nb::arg("problem"), nb::arg("w").none(), nb::arg("eq"), nb::arg("ek"), nb::arg("softmax"),
          nb::arg("out"), nb::arg("x"), nb::arg("cells").none(), nb::arg("shades").none(), nb::arg("cut"), nb::arg("threads"),
          "A view of the scores (views/views.hpp); whether it may be used. w, eq, ek: as additive_forward, for additive scores; "
          "None, 0, 0 for dot products. softmax: two pointers, (B, H, Tq) each: where highest scores and totals go, or what is to be subtracted from the scores; out: pointer, strides of head and row, pointer to indices, count; cells: None, or start, stop and number of cells "
          "of rows and of columns; shades: None, or pointer, strides of head and row, log, slope, shift; cut: first and last column, units of a head, units of a task.");
    m.def("best", best, nb::arg("logits"), nb::arg("rows"), nb::arg("size"), nb::arg("row"), nb::arg("count"), nb::arg("values"),
          nb::arg("ids"), nb::arg("threads"),
          "The highest `count` of each row of logits, as log-probabilities, and where they are. logits: pointer to float32, `row` "
          "apart; values, ids: pointers to (rows, count) of float32 and int64.");
    m.def("move", move, nb::arg("tables"), nb::arg("rows"), nb::arg("count"), nb::arg("group"), nb::arg("length"), nb::arg("threads"),
          "Rows that go on from other rows, in place (dispatch/dispatch.hpp). tables: pointer, strides of row and position, bytes of an "
          "element, of each; the first holds who wrote a position, int32. rows: pointer to int64.");
    bind_between(m);
}

}  // namespace regard

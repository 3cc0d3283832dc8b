// The module regard._native: plain numbers in, kernels run, at most a yes or no out. Whoever calls has checked shapes and dtypes and
// keeps the tensors alive; here only the form of the arguments is checked.
//
// To add a kernel: its job in base/problem.hpp or a header of its own, its Kernel in `Kernels` (base/kernel_table.hpp and
// base/kernel_table.cpp), its call in dispatch/dispatch.hpp, a function here or in another file of this folder that reads
// the job and makes the call, and its line in the module below.
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

View view(const char* name, nb::handle given) {
    Reader from(name, given, 4);
    return {.data = from.pointer<const float>(), .batch = from.integer(), .head = from.integer(), .row = from.integer()};
}

Output output(const char* name, nb::handle given) {
    Reader from(name, given, 4);
    return {.data = from.pointer<void>(), .batch = from.integer(), .head = from.integer(), .row = from.integer()};
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

Dot dot_of(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask) {
    Reader size("sizes", sizes, 7), number("numbers", numbers, 3);
    return {
        .batches = size.integer(),
        .heads = size.integer(),
        .groups = size.integer(),
        .queries = size.integer(),
        .keys = size.integer(),
        .width = size.integer(),
        .value_width = size.integer(),
        .q = view("q", q),
        .k = view("k", k),
        .v = view("v", v),
        .number = Number(number.integer()),
        .scale = number.real(),
        .softcap = number.real(),
        .mask = mask_of(mask),
    };
}

bool dot_forward(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask,
                 nb::handle context, int64_t softmax, int64_t rows_per_task, int threads) {
    const Dot of = dot_of(sizes, q, k, v, numbers, mask);
    const DotForward job{of, output("context", context), softmax_output(of, address<float>(softmax)), nullptr};
    if (rows_per_task < 1) throw nb::value_error("native: rows_per_task must be at least 1.");
    nb::gil_scoped_release released;
    return calls::dot_forward(*active, job, rows_per_task, threads);
}

// Everything but where the softmax of each row is.
DotBackward backward_of(const Dot& of, nb::handle grad, nb::handle context, int64_t parts, nb::handle dq, nb::handle dk,
                        nb::handle dv, int64_t dq_part, int dq_number, int dk_number) {
    return {
        .of = of,
        .grad = view("grad", grad),
        .context = view("context", context),
        .softmax = {},
        .parts = parts,
        .dq = output("dq", dq),
        .dk = output("dk", dk),
        .dv = output("dv", dv),
        .dq_part = dq_part,
        .dq_number = Number(dq_number),
        .dk_number = Number(dk_number),
        .lost = nullptr,
    };
}

bool dot_backward(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask,
                  nb::handle grad, nb::handle context, int64_t softmax, int64_t parts, nb::handle dq, nb::handle dk,
                  nb::handle dv, int64_t dq_part, int dq_number, int dk_number, int threads) {
    const Dot of = dot_of(sizes, q, k, v, numbers, mask);
    DotBackward job = backward_of(of, grad, context, parts, dq, dk, dv, dq_part, dq_number, dk_number);
    job.softmax = softmax_view(of, address<const float>(softmax));
    nb::gil_scoped_release released;
    return calls::dot_backward(*active, job, threads);
}

calls::Packed packed_of(nb::handle lengths) {
    Reader from("lengths", lengths, 3);
    return {from.integer(), from.pointer<const int64_t>(), from.pointer<const int64_t>()};
}

bool packed_forward(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask,
                    nb::handle lengths, int64_t rows, nb::handle context, int64_t softmax, int64_t rows_per_task, int threads) {
    const Dot of = dot_of(sizes, q, k, v, numbers, mask);
    float* both = address<float>(softmax);
    const DotForward job{of, output("context", context), {{both, 0, rows, 1}, {both + of.heads * rows, 0, rows, 1}}, nullptr};
    const calls::Packed packed = packed_of(lengths);
    if (rows_per_task < 1) throw nb::value_error("native: rows_per_task must be at least 1.");
    nb::gil_scoped_release released;
    return calls::packed_forward(*active, job, packed, rows_per_task, threads);
}

bool packed_backward(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask,
                     nb::handle lengths, int64_t rows, nb::handle grad, nb::handle context, int64_t softmax, int64_t parts,
                     nb::handle dq, nb::handle dk, nb::handle dv, int64_t dq_part, int dq_number, int dk_number, int threads) {
    DotBackward job = backward_of(dot_of(sizes, q, k, v, numbers, mask), grad, context, parts, dq, dk, dv, dq_part, dq_number, dk_number);
    const float* both = address<const float>(softmax);
    job.softmax = {{both, 0, rows, 1}, {both + job.of.heads * rows, 0, rows, 1}};
    const calls::Packed packed = packed_of(lengths);
    nb::gil_scoped_release released;
    return calls::packed_backward(*active, job, packed, threads);
}

bool additive_forward(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask,
                      nb::handle w, int64_t eq, int64_t ek, bool ready, int64_t context, int64_t softmax,
                      int64_t kept, int64_t rows_per_task, int threads) {
    AdditiveForward job{};
    job.of.of = dot_of(sizes, q, k, v, numbers, mask);
    job.context = address<float>(context);
    job.softmax = softmax_output(job.of.of, address<float>(softmax));
    job.kept = address<float>(kept);
    const View weights = view("w", w);
    if (rows_per_task < 1) throw nb::value_error("native: rows_per_task must be at least 1.");
    nb::gil_scoped_release released;
    return calls::additive_forward(*active, job, weights, {address<float>(eq), address<float>(ek), ready}, rows_per_task, threads);
}

void additive_backward(nb::handle sizes, nb::handle q, nb::handle k, nb::handle v, nb::handle numbers, nb::handle mask,
                       nb::handle w, bool own_queries, bool own_keys, nb::handle grad, nb::handle context, int64_t softmax,
                       int64_t kept, int64_t parts, int64_t dq, int64_t dk, int64_t dv, int64_t dw, int threads) {
    const Dot of = dot_of(sizes, q, k, v, numbers, mask);
    const AdditiveBackward job{
        .of = {of, {}, nullptr, nullptr},
        .grad = view("grad", grad),
        .context = view("context", context),
        .softmax = softmax_view(of, address<const float>(softmax)),
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

bool observe(const std::string& verb, nb::handle sizes, nb::handle q, nb::handle k, nb::handle numbers, nb::handle mask,
             nb::handle w, int64_t eq, int64_t ek, nb::handle softmax, nb::handle out, nb::handle x, nb::handle cells, nb::handle shades,
             nb::handle cut, int threads) {
    Reader to("out", out, 5), share("cut", cut, 4), rows("softmax", softmax, 2);
    Observe job{};
    job.of.of = dot_of(sizes, q, k, k, numbers, mask);
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
    m.def("dot_forward", dot_forward, nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("numbers"),
          nb::arg("mask").none(), nb::arg("context"), nb::arg("softmax"), nb::arg("rows_per_task"), nb::arg("threads"),
          "Whether every context is finite. sizes: batches, heads, groups, queries, keys, width, value_width; q, k, v and context: pointer and strides of "
          "batch, head, row; softmax (2, B, H, Tq): the highest score and the total Σ e^(score − highest) of each row; numbers: what q, k, v are (0 float32, 1 bfloat16, 2 float16), scale, softcap; mask: None, or left, right, offset, length, kind, dense, and its four strides.");
    m.def("dot_backward", dot_backward, nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("numbers"),
          nb::arg("mask").none(), nb::arg("grad"), nb::arg("context"), nb::arg("softmax"), nb::arg("parts"), nb::arg("dq"),
          nb::arg("dk"), nb::arg("dv"), nb::arg("dq_part"), nb::arg("dq_number"), nb::arg("dk_number"), nb::arg("threads"),
          "Whether every gradient is finite. As dot_forward; dq, dk, dv, one per query head: rows of padded widths; dq_part: from one share's dq to the "
          "next's; dq_number, dk_number: "
          "what dq is to be, and dk and dv: float32, or what q, k, v are.");
    m.def("packed_forward", packed_forward, nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("numbers"),
          nb::arg("mask").none(), nb::arg("lengths"), nb::arg("rows"), nb::arg("context"), nb::arg("softmax"), nb::arg("rows_per_task"),
          nb::arg("threads"),
          "As dot_forward, for sequences one after the other. sizes: queries and keys are those of the longest; lengths: how many "
          "sequences, pointers to their numbers of queries and of keys; the mask's offset: 0, or a pointer to one number per "
          "sequence; rows: all queries; context: strides of head and row; softmax (2, H, rows).");
    m.def("packed_backward", packed_backward, nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("numbers"),
          nb::arg("mask").none(), nb::arg("lengths"), nb::arg("rows"), nb::arg("grad"), nb::arg("context"), nb::arg("softmax"),
          nb::arg("parts"), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"), nb::arg("dq_part"), nb::arg("dq_number"), nb::arg("dk_number"), nb::arg("threads"),
          "As dot_backward and packed_forward. The gradients of a sequence without queries are not written.");
    m.def("large_pages", large_pages, nb::arg("start"), nb::arg("bytes"), "Ask for large pages in a piece of memory.");
    m.def("padded", padded, nb::arg("width"), "The width of a row of gradients.");
    m.def("query_row", query_row, nb::arg("width"), "The width of a row of exponentials of a query.");
    m.def("key_row", key_row, nb::arg("width"), "The width of a row of exponentials of a key.");
    m.def("additive_parts", additive_parts, nb::arg("heads"), nb::arg("keys"), nb::arg("threads"),
          "Shares of a head's keys in the backward pass.");
    m.def("additive_forward", additive_forward, nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
          nb::arg("numbers"), nb::arg("mask").none(), nb::arg("w"), nb::arg("eq"), nb::arg("ek"), nb::arg("ready"),
          nb::arg("context"), nb::arg("softmax"), nb::arg("kept"), nb::arg("rows_per_task"), nb::arg("threads"),
          "Whether the result may be used. As dot_forward; w: pointer and strides; eq, ek: room for the exponentials of "
          "queries and keys, which are computed first, but those of keys not where they are ready; 0: every task computes "
          "those of its head for itself.");
    m.def("additive_backward", additive_backward, nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
          nb::arg("numbers"), nb::arg("mask").none(), nb::arg("w"), nb::arg("own_queries"), nb::arg("own_keys"), nb::arg("grad"),
          nb::arg("context"), nb::arg("softmax"), nb::arg("kept"), nb::arg("parts"), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"), nb::arg("dw"),
          nb::arg("threads"),
          "As dot_backward, with `parts` copies of dq and dw. q and k are exponentials, but not where own_queries or own_keys "
          "says that the tasks are to compute them.");
    m.def("observe", observe, nb::arg("verb"), nb::arg("sizes"), nb::arg("q"), nb::arg("k"), nb::arg("numbers"),
          nb::arg("mask").none(), nb::arg("w").none(), nb::arg("eq"), nb::arg("ek"), nb::arg("softmax"), nb::arg("out"),
          nb::arg("x"), nb::arg("cells").none(), nb::arg("shades").none(), nb::arg("cut"), nb::arg("threads"),
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

// The module regard._native: parses arguments and runs kernels, which write their results through pointers. The caller has
// validated shapes and dtypes and keeps the tensors alive; only the structure of the arguments is checked here. README.md
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

const SupportedIsas supported;

}  // namespace

const Kernels* active = supported.fastest();

namespace {

nb::list isas() {
    nb::list names;
    for (int i = 0; i < supported.count; ++i) names.append(supported.all[i]->name);
    return names;
}

void use_isa(const std::string& name) {
    std::string choices;
    for (int i = 0; i < supported.count; ++i) {
        if (name == supported.all[i]->name) {
            active = supported.all[i];
            return;
        }
        choices += (i ? ", " : "") + std::string(supported.all[i]->name);
    }
    throw nb::value_error(("native: isa ('" + name + "') must be one that runs here: " + choices + ".").c_str());
}

template <typename T = View>
T view(const char* name, nb::handle tuple) {
    Reader reader(name, tuple, 4);
    return {.data = reader.pointer<float>(), .batch = reader.integer(), .head = reader.integer(), .row = reader.integer()};
}

Mask mask_of(nb::handle tuple) {
    if (tuple.is_none()) {
        Mask open{};
        open.left = open.right = int64_t(1) << 60;
        return open;
    }
    Reader reader("mask", tuple, 10);
    return {
        .left = reader.integer(),
        .right = reader.integer(),
        .offset = reader.pointer<const int64_t>(),
        .length = reader.pointer<const int64_t>(),
        .kind = MaskKind(reader.integer()),
        .dense = reader.pointer<const void>(),
        .batch = reader.integer(),
        .head = reader.integer(),
        .row = reader.integer(),
        .col = reader.integer(),
        .any = true,
    };
}

// Arguments of every attention kernel: sizes, q, k, v, parameters, mask.
Dot dot_of(nb::handle problem) {
    Reader parts("problem", problem, 6), size("sizes", parts.item(), 7);
    const View q = view("q", parts.item()), k = view("k", parts.item()), v = view("v", parts.item());
    Reader parameters("parameters", parts.item(), 3);
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
        .dtype = Dtype(parameters.integer()),
        .scale = parameters.number(),
        .softcap = parameters.number(),
        .mask = mask_of(parts.item()),
    };
}

template <typename T>
Softmax<T> softmax_of(nb::handle tuple) {
    Reader reader("softmax", tuple, 4);
    float* const highest = reader.pointer<float>();
    float* const total = highest + reader.integer();
    const ptrdiff_t batch = reader.integer(), head = reader.integer();
    return {{highest, batch, head, 1}, {total, batch, head, 1}};
}

std::optional<calls::Packed> packed_of(nb::handle lengths) {
    if (lengths.is_none()) return std::nullopt;
    Reader reader("lengths", lengths, 3);
    return calls::Packed{reader.integer(), reader.pointer<const int64_t>(), reader.pointer<const int64_t>()};
}

void check_rows(int64_t rows_per_task) {
    if (rows_per_task < 1) throw nb::value_error("native: rows_per_task must be at least 1.");
}

bool dot_forward(nb::handle problem, nb::handle lengths, nb::handle context, nb::handle softmax, int64_t rows_per_task,
                 int threads) {
    const DotForward job{dot_of(problem), view<Output>("context", context), softmax_of<Output>(softmax), nullptr};
    const std::optional<calls::Packed> packed = packed_of(lengths);
    check_rows(rows_per_task);
    nb::gil_scoped_release released;
    return packed ? calls::packed_forward(*active, job, *packed, rows_per_task, threads)
                  : calls::dot_forward(*active, job, rows_per_task, threads);
}

bool dot_backward(nb::handle problem, nb::handle lengths, nb::handle grad, nb::handle context, nb::handle softmax, int64_t parts,
                  nb::handle gradients, int threads) {
    Reader output("gradients", gradients, 6);
    const DotBackward job{
        .dot = dot_of(problem),
        .grad = view("grad", grad),
        .context = view("context", context),
        .softmax = softmax_of<View>(softmax),
        .parts = parts,
        .dq = view<Output>("dq", output.item()),
        .dk = view<Output>("dk", output.item()),
        .dv = view<Output>("dv", output.item()),
        .dq_part = output.integer(),
        .dq_dtype = Dtype(output.integer()),
        .dkv_dtype = Dtype(output.integer()),
        .non_finite = nullptr,
    };
    const std::optional<calls::Packed> packed = packed_of(lengths);
    nb::gil_scoped_release released;
    return packed ? calls::packed_backward(*active, job, *packed, threads) : calls::dot_backward(*active, job, threads);
}

bool additive_forward(nb::handle problem, nb::handle w, int64_t eq, int64_t ek, bool ready, int64_t context, nb::handle softmax,
                      int64_t saved_scores, int64_t rows_per_task, int threads) {
    AdditiveForward job{};
    job.additive.dot = dot_of(problem);
    job.context = address<float>(context);
    job.softmax = softmax_of<Output>(softmax);
    job.saved_scores = address<float>(saved_scores);
    const View weights = view("w", w);
    check_rows(rows_per_task);
    nb::gil_scoped_release released;
    return calls::additive_forward(*active, job, weights, {address<float>(eq), address<float>(ek), ready}, rows_per_task,
                                   threads);
}

void additive_backward(nb::handle problem, nb::handle w, bool raw_queries, bool raw_keys, nb::handle grad, nb::handle context,
                       nb::handle softmax, int64_t saved_scores, int64_t parts, int64_t dq, int64_t dk, int64_t dv, int64_t dw,
                       int threads) {
    const AdditiveBackward job{
        .additive = {dot_of(problem), {}, nullptr, nullptr},
        .grad = view("grad", grad),
        .context = view("context", context),
        .softmax = softmax_of<View>(softmax),
        .saved_scores = address<const float>(saved_scores),
        .parts = parts,
        .dq = address<float>(dq),
        .dk = address<float>(dk),
        .dv = address<float>(dv),
        .dw = address<float>(dw),
    };
    const View weights = view("w", w);
    nb::gil_scoped_release released;
    calls::additive_backward(*active, job, weights, {raw_queries, raw_keys}, threads);
}

// Requests huge pages, if the system supports them: first use of memory then causes a fault per 2 MiB, not per 4 KiB.
void large_pages(int64_t start, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    const int64_t page = sysconf(_SC_PAGESIZE), first = (start + page - 1) / page * page;
    if (first < start + bytes) madvise(reinterpret_cast<void*>(first), size_t(start + bytes - first), MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

ViewKind view_kind_of(const std::string& name) {
    for (int i = 0; i < int(std::size(view_names)); ++i)
        if (name == view_names[i]) return ViewKind(i);
    throw nb::value_error(("native: kind ('" + name + "') must be a name in views/views.hpp.").c_str());
}

// Start of each of `count` cells of nearly equal size, and the end of the last.
std::vector<int64_t> edges_of(Reader& reader) {
    const int64_t start = reader.integer(), entries = reader.integer() - start, count = reader.integer();
    if (count < 1) throw nb::value_error("native: the number of cells must be at least 1.");
    std::vector<int64_t> edges(size_t(count + 1));
    for (int64_t c = 0; c <= count; ++c) edges[c] = start + (count == entries ? c : c * entries / count);
    return edges;
}

Shades shades_of(nb::handle tuple) {
    if (tuple.is_none()) return {};
    Reader reader("shades", tuple, 6);
    return {
        .out = reader.pointer<uint8_t>(),
        .head = reader.integer(),
        .row = reader.integer(),
        .log = reader.integer() != 0,
        .slope = reader.number(),
        .shift = reader.number(),
    };
}

bool compute_view(const std::string& kind, nb::handle problem, nb::handle w, int64_t eq, int64_t ek, nb::handle softmax,
                  nb::handle out, nb::handle x, nb::handle cells, nb::handle shades, nb::handle tasks, int threads) {
    Reader output("out", out, 5), range("tasks", tasks, 4), statistic("softmax", softmax, 2);
    ViewJob job{};
    job.additive.dot = dot_of(problem);
    job.kind = view_kind_of(kind);
    job.highest = statistic.pointer<float>();
    job.total = statistic.pointer<float>();
    job.out = output.pointer<float>();
    job.out_head = output.integer();
    job.out_row = output.integer();
    job.indices = output.pointer<int64_t>();
    job.count = output.integer();
    job.x = view("x", x);
    std::vector<int64_t> edges[2];
    if (!cells.is_none()) {
        Reader reader("cells", cells, 6);
        for (std::vector<int64_t>& side : edges) side = edges_of(reader);
        job.rows = {edges[0].data(), int64_t(edges[0].size()) - 1};
        job.cols = {edges[1].data(), int64_t(edges[1].size()) - 1};
    }
    job.shades = shades_of(shades);
    job.first = range.integer();
    job.last = range.integer();
    job.units = range.integer();
    job.per_task = range.integer();
    if (job.per_task < 1) throw nb::value_error("native: per_task must be at least 1.");
    const std::optional<View> weights = w.is_none() ? std::nullopt : std::optional(view("w", w));
    nb::gil_scoped_release released;
    return calls::compute_view(*active, job, weights, {address<float>(eq), address<float>(ek)}, threads);
}

void log_softmax_top_k(int64_t logits, int64_t rows, int64_t size, int64_t row, int64_t count, int64_t values, int64_t ids,
                       int threads) {
    if (count < 1 || count > size) throw nb::value_error("native: count must be in 1 … size.");
    const LogSoftmaxTopK job{address<const float>(logits), rows, size, row, count, address<float>(values), address<int64_t>(ids)};
    nb::gil_scoped_release released;
    calls::log_softmax_top_k(*active, job, threads);
}

void reorder_rows(nb::sequence tables, int64_t rows, int64_t count, int64_t group, int64_t length, int threads) {
    calls::ReorderRows job{{}, address<const int64_t>(rows), count, group, length};
    for (nb::handle tuple : tables) {
        Reader reader("table", tuple, 4);
        const auto data = reader.pointer<char>();
        const int64_t row = reader.integer(), position = reader.integer(), size = reader.integer();
        job.tables.push_back({data, row * size, position * size});
    }
    if (job.tables.empty() || group < 1) throw nb::value_error("native: there must be a table, and group must be at least 1.");
    nb::gil_scoped_release released;
    calls::reorder_rows(job, threads);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "C++ kernels for the CPU. Pointers are integers; strides count elements.";
    m.def("isa", [] { return active->name; }, "The instruction set in use.");
    m.def("isas", isas, "The instruction sets that are built and supported by this machine, the fastest last.");
    m.def("use_isa", use_isa, nb::arg("name"), "Use another instruction set, for tests.");
    m.def(
        "use_pool", [](int64_t region) { use_pool(address<void(void (*)(void*), void*, unsigned, unsigned)>(region)); },
        nb::arg("address"), "Run tasks with the GOMP_parallel at this address; 0: on new threads.");
    m.def("dot_forward", dot_forward, nb::arg("problem"), nb::arg("lengths").none(), nb::arg("context"), nb::arg("softmax"),
          nb::arg("rows_per_task"), nb::arg("threads"),
          "Return whether every context is finite. problem: (sizes, q, k, v, parameters, mask); sizes: batches, heads, "
          "groups, queries, keys, width, value_width; q, k, v and context: pointer and strides of batch, head, row; "
          "parameters: dtype of q, k, v (0 float32, 1 bfloat16, 2 float16), scale, softcap; mask: None, or left, right, "
          "offset, length, kind, dense, and its four strides. softmax: pointer to the highest score of each row, distance "
          "to the totals Σ e^(score − highest), strides of batch and head. lengths: None, or for packed sequences their "
          "number, and pointers to their numbers of queries and of keys: then queries and keys are the largest lengths, and "
          "the offset of the mask is 0 or points to one number per sequence.");
    m.def("dot_backward", dot_backward, nb::arg("problem"), nb::arg("lengths").none(), nb::arg("grad"), nb::arg("context"),
          nb::arg("softmax"), nb::arg("parts"), nb::arg("gradients"), nb::arg("threads"),
          "Return whether every gradient is finite. Arguments as for dot_forward; gradients: dq, dk, dv, one per query "
          "head, with padded rows; the stride from the dq of one part to the next; the dtypes of dq, and of dk and dv: "
          "float32, or that of q, k, v. The gradients of a sequence without queries are not written.");
    m.def("large_pages", large_pages, nb::arg("start"), nb::arg("bytes"), "Request huge pages for a range of memory.");
    m.def("padded", padded, nb::arg("width"), "Row width of gradients.");
    m.def("query_row", query_row, nb::arg("width"), "Row width of the exponentials of queries.");
    m.def("key_row", key_row, nb::arg("width"), "Row width of the exponentials of keys.");
    m.def("additive_forward", additive_forward, nb::arg("problem"), nb::arg("w"), nb::arg("eq"), nb::arg("ek"), nb::arg("ready"),
          nb::arg("context"), nb::arg("softmax"), nb::arg("saved_scores"), nb::arg("rows_per_task"), nb::arg("threads"),
          "Return whether the result is usable. Arguments as for dot_forward; w: pointer and strides; eq, ek: buffers for "
          "the exponentials of queries and keys, which are computed first; 0: every task computes its own. ready: ek is "
          "already filled.");
    m.def("additive_backward", additive_backward, nb::arg("problem"), nb::arg("w"), nb::arg("raw_queries"), nb::arg("raw_keys"),
          nb::arg("grad"), nb::arg("context"), nb::arg("softmax"), nb::arg("saved_scores"), nb::arg("parts"), nb::arg("dq"),
          nb::arg("dk"), nb::arg("dv"), nb::arg("dw"), nb::arg("threads"),
          "Arguments as for dot_backward, with `parts` copies of dq and dw. q and k are exponentials, unless raw_queries or "
          "raw_keys is true: then each task computes them.");
    m.def("compute_view", compute_view, nb::arg("kind"), nb::arg("problem"), nb::arg("w").none(), nb::arg("eq"), nb::arg("ek"),
          nb::arg("softmax"), nb::arg("out"), nb::arg("x"), nb::arg("cells").none(), nb::arg("shades").none(), nb::arg("tasks"),
          nb::arg("threads"),
          "Compute a view of the scores (views/views.hpp); return whether it is usable. w, eq, ek: as for additive_forward, "
          "for additive scores; None, 0, 0 for dot products. softmax: two pointers, (B, H, Tq) each: outputs for highest "
          "scores and totals, or the numbers to subtract from the scores; out: pointer, strides of head and row, pointer to "
          "indices, count; cells: None, or start, stop and number of cells of rows and of columns; shades: None, or "
          "pointer, strides of head and row, log, slope, shift; tasks: first and last column, units of a head, units of a "
          "task.");
    m.def("log_softmax_top_k", log_softmax_top_k, nb::arg("logits"), nb::arg("rows"), nb::arg("size"), nb::arg("row"),
          nb::arg("count"), nb::arg("values"), nb::arg("ids"), nb::arg("threads"),
          "Compute the `count` highest log-probabilities of each row of logits, and their ids. logits: pointer to float32 "
          "with row stride `row`; values, ids: pointers to (rows, count) of float32 and int64.");
    m.def("reorder_rows", reorder_rows, nb::arg("tables"), nb::arg("rows"), nb::arg("count"), nb::arg("group"), nb::arg("length"),
          nb::arg("threads"),
          "Replace rows by other rows, in place (dispatch/dispatch.hpp). tables: pointer, strides of row and position, and "
          "element size of each; the first has the writer of each position, int32. rows: pointer to int64.");
    bind_fused(m);
    bind_linear(m);
}

}  // namespace regard

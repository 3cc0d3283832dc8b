// Bindings of the kernels of decoding steps (linear/linear.hpp). Tensors are pointers to contiguous float32.
#include "binding/argument_reader.hpp"
#include "linear/linear.hpp"

namespace regard {

namespace {

RowNorm norm_of(nb::handle arguments, int64_t rows, int64_t width) {
    Reader from("norm", arguments, 6);
    return {
        .rows = rows,
        .width = width,
        .x = from.pointer<const float>(),
        .gain = from.pointer<const float>(),
        .shift = from.pointer<const float>(),
        .epsilon = from.number(),
        .centered = from.integer() != 0,
        .y = from.pointer<float>(),
    };
}

void few_rows(nb::handle sizes, nb::handle norm, int64_t x, int64_t weight, int64_t bias, int64_t y, int epilogue, int threads) {
    Reader size("sizes", sizes, 3);
    const int64_t rows = size.integer(), in = size.integer(), out = size.integer();
    if (rows < 1 || in < 1 || out < 1) throw nb::value_error("native: rows, in and out must be at least 1.");
    if (epilogue < 0 || epilogue > int(Epilogue::gate)) throw nb::value_error("native: epilogue must be 0 (store), 1 (add) or 2 (gate).");
    RowNorm before{};
    if (!norm.is_none()) before = norm_of(norm, rows, in);
    const Linear job{rows, in, out, address<const float>(x), address<const float>(weight), address<const float>(bias), address<float>(y), Epilogue(epilogue)};
    nb::gil_scoped_release released;
    calls::linear(*active, before.y ? &before : nullptr, job, threads);
}

void row_norm(nb::handle sizes, nb::handle norm, int threads) {
    Reader size("sizes", sizes, 2);
    const int64_t rows = size.integer(), width = size.integer();
    if (rows < 1 || width < 1) throw nb::value_error("native: rows and width must be at least 1.");
    const RowNorm job = norm_of(norm, rows, width);
    nb::gil_scoped_release released;
    calls::row_norm(*active, job, threads);
}

void rotate_append(nb::handle sizes, int64_t qkv, int64_t cos, int64_t sin, int64_t first, nb::handle caches, int threads) {
    Reader size("sizes", sizes, 5), cache("caches", caches, 4);
    const RotateAppend job{
        .rows = size.integer(),
        .tokens = size.integer(),
        .heads = size.integer(),
        .kv_heads = size.integer(),
        .width = size.integer(),
        .qkv = address<float>(qkv),
        .cos = address<const float>(cos),
        .sin = address<const float>(sin),
        .first = address<const int64_t>(first),
        .key = cache.pointer<float>(),
        .value = cache.pointer<float>(),
        .text = cache.integer(),
        .head = cache.integer(),
    };
    if (job.tokens < 1 || job.width < 1) throw nb::value_error("native: tokens and width must be at least 1.");
    if (job.cos && job.width % 2) throw nb::value_error("native: width must be even: pairs of numbers are rotated.");
    nb::gil_scoped_release released;
    calls::rotate_append(*active, job, threads);
}

}  // namespace

void bind_linear(nb::module_& m) {
    m.def("few_rows", few_rows, nb::arg("sizes"), nb::arg("norm").none(), nb::arg("x"), nb::arg("weight"), nb::arg("bias"), nb::arg("y"),
          nb::arg("epilogue"), nb::arg("threads"),
          "y = x·Wᵀ + bias. sizes: rows, in, out; norm: None, or the arguments of row_norm that computes x first; bias: or 0; "
          "epilogue: 0 stores y, 1 adds to y, 2 stores silu(gate)·up, where the weights of both follow each other.");
    m.def("row_norm", row_norm, nb::arg("sizes"), nb::arg("norm"), nb::arg("threads"),
          "sizes: rows, width; norm: x, gain, shift or 0, epsilon, whether the mean is subtracted, y, which may be x.");
    m.def("rotate_append", rotate_append, nb::arg("sizes"), nb::arg("qkv"), nb::arg("cos"), nb::arg("sin"), nb::arg("first"),
          nb::arg("caches"), nb::arg("threads"),
          "Rotate queries and keys in place; copy keys and values to caches. sizes: rows, tokens of a text, heads, kv_heads, width; "
          "cos, sin: or 0; first: position of the first token of each text, int64; caches: keys, values or 0, strides of text and head.");
}

}  // namespace regard

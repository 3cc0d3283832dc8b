// Bindings of the fused elementwise kernels (fused/fused.hpp). Tensors are pointers to contiguous float32.
#include "binding/argument_reader.hpp"
#include "dispatch/dispatch.hpp"

namespace regard {

namespace {

struct Sizes {
    int64_t rows, width;

    explicit Sizes(nb::handle tuple) {
        Reader reader("sizes", tuple, 2);
        rows = reader.integer();
        width = reader.integer();
        if (rows < 0 || width < 1)
            throw nb::value_error("native: sizes must be a non-negative number of rows and a positive width.");
    }
};

Dropout dropout_of(nb::handle tuple) {
    Reader reader("dropout", tuple, 2);
    const uint64_t key = uint64_t(reader.integer());
    const int64_t threshold = reader.integer();
    if (threshold < 0 || threshold > 255) throw nb::value_error("native: the dropout threshold must be in 0 … 255.");
    return {{uint32_t(key), uint32_t(key >> 32)}, int(threshold)};
}

void gelu(nb::handle sizes, int64_t x, int64_t bias, int64_t y, int threads) {
    const Sizes size(sizes);
    const Gelu job{size.rows, size.width, address<const float>(x), address<const float>(bias), address<float>(y)};
    nb::gil_scoped_release released;
    calls::gelu(*active, job, threads);
}

void add_norm(nb::handle sizes, int64_t x, int64_t part, int64_t bias, int64_t gain, int64_t shift, float epsilon,
              nb::handle dropout, int64_t sum, int64_t y, int64_t mean, int64_t inverse_std, int threads) {
    const Sizes size(sizes);
    const AddNorm job{
        .rows = size.rows,
        .width = size.width,
        .x = address<const float>(x),
        .part = address<const float>(part),
        .bias = address<const float>(bias),
        .gain = address<const float>(gain),
        .shift = address<const float>(shift),
        .epsilon = epsilon,
        .dropout = dropout_of(dropout),
        .sum = address<float>(sum),
        .y = address<float>(y),
        .mean = address<float>(mean),
        .inverse_std = address<float>(inverse_std),
    };
    nb::gil_scoped_release released;
    calls::add_norm(*active, job, threads);
}

void add_norm_backward(nb::handle sizes, int64_t sum, int64_t gain, int64_t mean, int64_t inverse_std, int64_t grad_sum,
                       int64_t grad_y, nb::handle dropout, int64_t dx, int64_t dpart, int64_t dgain, int64_t dshift,
                       int threads) {
    const Sizes size(sizes);
    const AddNormBackward job{
        .rows = size.rows,
        .width = size.width,
        .sum = address<const float>(sum),
        .gain = address<const float>(gain),
        .mean = address<const float>(mean),
        .inverse_std = address<const float>(inverse_std),
        .grad_sum = address<const float>(grad_sum),
        .grad_y = address<const float>(grad_y),
        .dropout = dropout_of(dropout),
        .dx = address<float>(dx),
        .dpart = address<float>(dpart),
        .dgain = address<float>(dgain),
        .dshift = address<float>(dshift),
    };
    nb::gil_scoped_release released;
    calls::add_norm_backward(*active, job, threads);
}

}  // namespace

void bind_fused(nb::module_& m) {
    m.def("fused_tasks", calls::fused_tasks, nb::arg("rows"), nb::arg("threads"),
          "Number of tasks, and so of partial sums over rows.");
    m.def("gelu", gelu, nb::arg("sizes"), nb::arg("x"), nb::arg("bias"), nb::arg("y"), nb::arg("threads"),
          "y = gelu(x + bias). sizes: rows, width; y may be x.");
    m.def("add_norm", add_norm, nb::arg("sizes"), nb::arg("x"), nb::arg("part"), nb::arg("bias"), nb::arg("gain"),
          nb::arg("shift"), nb::arg("epsilon"), nb::arg("dropout"), nb::arg("sum"), nb::arg("y"), nb::arg("mean"),
          nb::arg("inverse_std"), nb::arg("threads"),
          "sum = x + dropout(part + bias), y = layer_norm(sum). bias: or 0; dropout: a key, and how many of the 256 values "
          "of a random byte drop an element; sum: or 0, then y may be part; mean, inverse_std: (rows,).");
    m.def("add_norm_backward", add_norm_backward, nb::arg("sizes"), nb::arg("sum"), nb::arg("gain"), nb::arg("mean"),
          nb::arg("inverse_std"), nb::arg("grad_sum"), nb::arg("grad_y"), nb::arg("dropout"), nb::arg("dx"), nb::arg("dpart"),
          nb::arg("dgain"), nb::arg("dshift"), nb::arg("threads"),
          "grad_sum: or 0; dpart: or 0 without dropout; dgain, dshift: (tasks, width).");
}

}  // namespace regard

// Bindings of the fused elementwise kernels (fused/fused.hpp). Tensors are pointers to contiguous float32.
#include "binding/argument_reader.hpp"
#include "dispatch/dispatch.hpp"

namespace regard {

namespace {

struct Sizes {
    int64_t rows, width;

    explicit Sizes(nb::handle given) {
        Reader from("sizes", given, 2);
        rows = from.integer();
        width = from.integer();
        if (rows < 0 || width < 1) throw nb::value_error("native: there must be rows, and numbers in them.");
    }
};

Drop drop_of(nb::handle given) {
    Reader from("drop", given, 2);
    const uint64_t key = uint64_t(from.integer());
    const int64_t below = from.integer();
    if (below < 0 || below > 255) throw nb::value_error("native: of the 256 values of a byte, 0 to 255 may be dropped.");
    return {{uint32_t(key), uint32_t(key >> 32)}, int(below)};
}

void gelu(nb::handle sizes, int64_t x, int64_t bias, int64_t y, int threads) {
    const Sizes of(sizes);
    const Gelu job{of.rows, of.width, address<const float>(x), address<const float>(bias), address<float>(y)};
    nb::gil_scoped_release released;
    calls::gelu(*active, job, threads);
}

void add_norm(nb::handle sizes, int64_t x, int64_t part, int64_t bias, int64_t gain, int64_t shift, float epsilon,
              nb::handle drop, int64_t sum, int64_t y, int64_t mean, int64_t rate, int threads) {
    const Sizes of(sizes);
    const AddNorm job{
        .rows = of.rows, .width = of.width,
        .x = address<const float>(x), .part = address<const float>(part), .bias = address<const float>(bias),
        .gain = address<const float>(gain), .shift = address<const float>(shift),
        .epsilon = epsilon,
        .drop = drop_of(drop),
        .sum = address<float>(sum), .y = address<float>(y),
        .mean = address<float>(mean), .rate = address<float>(rate),
    };
    nb::gil_scoped_release released;
    calls::add_norm(*active, job, threads);
}

void add_norm_backward(nb::handle sizes, int64_t sum, int64_t gain, int64_t mean, int64_t rate, int64_t of_sum, int64_t of_y, nb::handle drop,
                       int64_t dx, int64_t dpart, int64_t dgain, int64_t dshift, int threads) {
    const Sizes of(sizes);
    const AddNormBackward job{
        .rows = of.rows, .width = of.width,
        .sum = address<const float>(sum), .gain = address<const float>(gain),
        .mean = address<const float>(mean), .rate = address<const float>(rate),
        .of_sum = address<const float>(of_sum), .of_y = address<const float>(of_y),
        .drop = drop_of(drop),
        .dx = address<float>(dx), .dpart = address<float>(dpart),
        .dgain = address<float>(dgain), .dshift = address<float>(dshift),
    };
    nb::gil_scoped_release released;
    calls::add_norm_backward(*active, job, threads);
}

}  // namespace

void bind_between(nb::module_& m) {
    m.def("tasks_between", calls::tasks_between, nb::arg("rows"), nb::arg("threads"), "In how many rows sums over all rows come.");
    m.def("gelu", gelu, nb::arg("sizes"), nb::arg("x"), nb::arg("bias"), nb::arg("y"), nb::arg("threads"),
          "y = gelu(x + bias). sizes: rows, width; y may be x.");
    m.def("add_norm", add_norm, nb::arg("sizes"), nb::arg("x"), nb::arg("part"), nb::arg("bias"), nb::arg("gain"), nb::arg("shift"),
          nb::arg("epsilon"), nb::arg("drop"), nb::arg("sum"), nb::arg("y"), nb::arg("mean"), nb::arg("rate"), nb::arg("threads"),
          "sum = x + dropped(part + bias), y = norm(sum). bias: or 0; drop: a key and how many values of a byte drop; sum: or 0, and then y may be part; mean, rate: (rows,).");
    m.def("add_norm_backward", add_norm_backward, nb::arg("sizes"), nb::arg("sum"), nb::arg("gain"), nb::arg("mean"), nb::arg("rate"),
          nb::arg("of_sum"), nb::arg("of_y"), nb::arg("drop"), nb::arg("dx"), nb::arg("dpart"), nb::arg("dgain"), nb::arg("dshift"), nb::arg("threads"),
          "of_sum: or 0; dpart: or 0 where nothing is dropped; dgain, dshift: (tasks, width).");
}

}  // namespace regard

// The table of kernels of the instruction set for which this file is compiled.
#include "base/kernel_table.hpp"
#include "base/simd.hpp"

#define REGARD_TEXT_(x) #x
#define REGARD_TEXT(x) REGARD_TEXT_(x)

namespace regard::REGARD_ISA {

Kernel dot_forward, few_queries_forward, dot_backward, few_queries_backward, exponentials, additive_forward, additive_backward,
    compute_view, log_softmax_top_k, gelu, add_norm, add_norm_backward, few_rows, row_norm, rotate_append;

extern const Kernels table;
const Kernels table{
    .name = REGARD_TEXT(REGARD_ISA),
    .lanes = lanes,
    .dot_forward = dot_forward,
    .few_queries_forward = few_queries_forward,
    .dot_backward = dot_backward,
    .few_queries_backward = few_queries_backward,
    .exponentials = exponentials,
    .additive_forward = additive_forward,
    .additive_backward = additive_backward,
    .compute_view = compute_view,
    .log_softmax_top_k = log_softmax_top_k,
    .gelu = gelu,
    .add_norm = add_norm,
    .add_norm_backward = add_norm_backward,
    .few_rows = few_rows,
    .row_norm = row_norm,
    .rotate_append = rotate_append,
};

}  // namespace regard::REGARD_ISA

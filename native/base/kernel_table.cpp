// The kernels of the instruction set that this file is compiled for, by name.
#include "base/kernel_table.hpp"
#include "base/simd.hpp"

#define REGARD_TEXT_(x) #x
#define REGARD_TEXT(x) REGARD_TEXT_(x)

namespace regard::REGARD_ISA {

Kernel dot_forward, dot_few, dot_backward, dot_few_backward, exponentials, additive_forward, additive_backward, observe, best, gelu,
    add_norm, add_norm_backward;

extern const Kernels table;
const Kernels table{
    .name = REGARD_TEXT(REGARD_ISA),
    .lanes = lanes,
    .dot_forward = dot_forward,
    .dot_few = dot_few,
    .dot_backward = dot_backward,
    .dot_few_backward = dot_few_backward,
    .exponentials = exponentials,
    .additive_forward = additive_forward,
    .additive_backward = additive_backward,
    .observe = observe,
    .best = best,
    .gelu = gelu,
    .add_norm = add_norm,
    .add_norm_backward = add_norm_backward,
};

}  // namespace regard::REGARD_ISA

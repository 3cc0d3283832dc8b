// The kernels of the instruction set that this file is compiled for, by name.
#include "base/kernel_table.hpp"
#include "base/simd.hpp"

#define REGARD_TEXT_(x) #x
#define REGARD_TEXT(x) REGARD_TEXT_(x)

namespace regard::REGARD_ISA {

void dot_forward(const void*, int64_t, Scratch&);
size_t dot_forward_room(const void*, int64_t);
void dot_few(const void*, int64_t, Scratch&);
size_t dot_few_room(const void*, int64_t);
void dot_backward(const void*, int64_t, Scratch&);
size_t dot_backward_room(const void*, int64_t);
void dot_few_backward(const void*, int64_t, Scratch&);
size_t dot_few_backward_room(const void*, int64_t);
void exponentials(const void*, int64_t, Scratch&);
size_t exponentials_room(const void*, int64_t);
void additive_forward(const void*, int64_t, Scratch&);
size_t additive_forward_room(const void*, int64_t);
void additive_backward(const void*, int64_t, Scratch&);
size_t additive_backward_room(const void*, int64_t);
void observe(const void*, int64_t, Scratch&);
size_t observe_room(const void*, int64_t);
void best(const void*, int64_t, Scratch&);
size_t best_room(const void*, int64_t);
void gelu(const void*, int64_t, Scratch&);
size_t gelu_room(const void*, int64_t);
void add_norm(const void*, int64_t, Scratch&);
size_t add_norm_room(const void*, int64_t);
void add_norm_backward(const void*, int64_t, Scratch&);
size_t add_norm_backward_room(const void*, int64_t);

extern const Kernels table;
const Kernels table{
    .name = REGARD_TEXT(REGARD_ISA),
    .lanes = lanes,
    .dot_forward = {dot_forward, dot_forward_room},
    .dot_few = {dot_few, dot_few_room},
    .dot_backward = {dot_backward, dot_backward_room},
    .dot_few_backward = {dot_few_backward, dot_few_backward_room},
    .exponentials = {exponentials, exponentials_room},
    .additive_forward = {additive_forward, additive_forward_room},
    .additive_backward = {additive_backward, additive_backward_room},
    .observe = {observe, observe_room},
    .best = {best, best_room},
    .gelu = {gelu, gelu_room},
    .add_norm = {add_norm, add_norm_room},
    .add_norm_backward = {add_norm_backward, add_norm_backward_room},
};

}  // namespace regard::REGARD_ISA

// Parsing of arguments, and the kernels in use. Shared by the files of the module.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "base/kernel_table.hpp"

namespace regard {

namespace nb = nanobind;

extern const Kernels* active;

void bind_fused(nb::module_& m);   // fused_binding.cpp
void bind_linear(nb::module_& m);  // linear_binding.cpp

// Reads the items of a tuple in order.
class Reader {
    PyObject* tuple;
    Py_ssize_t next = 0;

   public:
    Reader(const char* name, nb::handle value, Py_ssize_t size) : tuple(value.ptr()) {
        if (PyTuple_Check(tuple) && NB_TUPLE_GET_SIZE(tuple) == size) return;
        const std::string rule = "native: " + std::string(name) + " must be a tuple of " + std::to_string(size);
        throw nb::type_error((rule + " items.").c_str());
    }

    nb::handle item() { return NB_TUPLE_GET_ITEM(tuple, next++); }
    int64_t integer() {
        const long long value = PyLong_AsLongLong(item().ptr());
        if (value == -1 && PyErr_Occurred()) throw nb::python_error();
        return value;
    }
    float number() {
        const double value = PyFloat_AsDouble(item().ptr());
        if (value == -1 && PyErr_Occurred()) throw nb::python_error();
        return float(value);
    }
    template <typename T>
    T* pointer() {
        return reinterpret_cast<T*>(integer());
    }
};

template <typename T>
T* address(int64_t pointer) {
    return reinterpret_cast<T*>(pointer);
}

}  // namespace regard

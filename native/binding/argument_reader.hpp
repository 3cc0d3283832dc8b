// Shared by the files of the module: parsing of arguments, and the selected kernels.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "base/kernel_table.hpp"

namespace regard {

namespace nb = nanobind;

extern const Kernels* active;

void bind_between(nb::module_& m);  // fused_binding.cpp

// Reads the items of a tuple one after the other.
class Reader {
    PyObject* tuple;
    Py_ssize_t next = 0;

   public:
    Reader(const char* name, nb::handle given, Py_ssize_t size) : tuple(given.ptr()) {
        if (PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == size) return;
        const std::string rule = "native: " + std::string(name) + " must be a tuple of " + std::to_string(size);
        throw nb::type_error((rule + " items.").c_str());
    }

    nb::handle item() { return PyTuple_GET_ITEM(tuple, next++); }
    int64_t integer() {
        const long long value = PyLong_AsLongLong(item().ptr());
        if (value == -1 && PyErr_Occurred()) throw nb::python_error();
        return value;
    }
    float real() {
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
T* address(int64_t number) {
    return reinterpret_cast<T*>(number);
}

}  // namespace regard

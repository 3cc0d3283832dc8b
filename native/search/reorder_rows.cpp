// Reordering of the rows of tables, in place.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/parallel.hpp"
#include "dispatch/dispatch.hpp"

namespace regard::calls {

namespace {

const int32_t* writers_of(const ReorderRows& job, int64_t row) {
    return reinterpret_cast<const int32_t*>(job.tables[0].data + row * job.tables[0].row);
}

// The first position at which a row differs from its source.
int64_t first_difference(const ReorderRows& job, int64_t row) {
    const int32_t *row_writers = writers_of(job, row), *source_writers = writers_of(job, job.rows[row]);
    int64_t position = row_writers == source_writers ? job.length : 0;
    while (position < job.length && row_writers[position] == source_writers[position]) ++position;
    return position;
}

// Reorders one group. All rows are read before any is written, because a row may be the source of another.
void run(const void* arguments, int64_t group, Workspace& workspace) {
    const ReorderRows& job = *static_cast<const ReorderRows*>(arguments);
    const int64_t start = group * job.group, stop = std::min(start + job.group, job.count);
    std::vector<int64_t> first;
    for (int64_t r = start; r < stop; ++r) first.push_back(first_difference(job, r));
    for (size_t t = job.tables.size(); t--;) {  // the table of writers last
        const Table& table = job.tables[t];
        workspace.release();
        float* const copies = workspace.allocate(size_t(job.group * job.length * table.position) / sizeof(float) + 1);
        const auto for_each_row = [&](auto copy) {
            char* buffer = reinterpret_cast<char*>(copies);
            for (int64_t r = start; r < stop; ++r) {
                const int64_t offset = first[r - start] * table.position, bytes = job.length * table.position - offset;
                if (bytes) copy(r, offset, buffer, size_t(bytes));
                buffer += bytes;
            }
        };
        for_each_row([&](int64_t r, int64_t offset, char* buffer, size_t bytes) {
            std::memcpy(buffer, table.data + job.rows[r] * table.row + offset, bytes);
        });
        for_each_row([&](int64_t r, int64_t offset, char* buffer, size_t bytes) {
            std::memcpy(table.data + r * table.row + offset, buffer, bytes);
        });
    }
}

}  // namespace

void reorder_rows(const ReorderRows& job, int threads) {
    parallel(run, &job, (job.count + job.group - 1) / job.group, 1, threads);
}

}  // namespace regard::calls

// Rows of tables that go on from other rows, where they are.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/parallel.hpp"
#include "dispatch/dispatch.hpp"

namespace regard::calls {

namespace {

const int32_t* writers_of(const Move& job, int64_t row) {
    return reinterpret_cast<const int32_t*>(job.tables[0].data + row * job.tables[0].row);
}

// The first position at which a row does not hold what its source does.
int64_t first_of(const Move& job, int64_t row) {
    const int32_t *own = writers_of(job, row), *others = writers_of(job, job.rows[row]);
    int64_t at = own == others ? job.length : 0;
    while (at < job.length && own[at] == others[at]) ++at;
    return at;
}

// A group at a time: all is read before any is written, as one row may be the source of another.
void run(const void* given, int64_t group, Scratch& scratch) {
    const Move& job = *static_cast<const Move*>(given);
    const int64_t start = group * job.group, past = std::min(start + job.group, job.count);
    std::vector<int64_t> first;
    for (int64_t r = start; r < past; ++r) first.push_back(first_of(job, r));
    for (size_t t = job.tables.size(); t--;) {  // the writers last
        const Table& table = job.tables[t];
        scratch.release();
        float* const copies = scratch.take(size_t(job.group * job.length * table.position) / sizeof(float) + 1);
        const auto each = [&](auto copy) {
            char* room = reinterpret_cast<char*>(copies);
            for (int64_t r = start; r < past; ++r) {
                const int64_t skipped = first[r - start] * table.position, bytes = job.length * table.position - skipped;
                if (bytes) copy(r, skipped, room, size_t(bytes));
                room += bytes;
            }
        };
        each([&](int64_t r, int64_t skipped, char* room, size_t bytes) {
            std::memcpy(room, table.data + job.rows[r] * table.row + skipped, bytes);
        });
        each([&](int64_t r, int64_t skipped, char* room, size_t bytes) {
            std::memcpy(table.data + r * table.row + skipped, room, bytes);
        });
    }
}

}  // namespace

void move(const Move& job, int threads) {
    parallel(run, &job, (job.count + job.group - 1) / job.group, 1, threads);
}

}  // namespace regard::calls

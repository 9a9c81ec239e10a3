// Runs every function on memory of exactly the size that it may touch, for a build with sanitizers to watch.
#include <cstdio>
#include <vector>

#include "linear.cpp"

namespace {

uint32_t state = 1;
uint8_t byte() {
    state = state * 1664525u + 1013904223u;
    return static_cast<uint8_t>(state >> 24);
}

template <class T>
struct Exact {  // its end is the end of what may be read
    explicit Exact(size_t count) : at(static_cast<T*>(std::malloc(count * sizeof(T)))) {}
    ~Exact() { std::free(at); }
    T* at;
};

struct Layout {
    int64_t columns, file_bytes;
};

void run(int kind, Layout layout, int64_t outputs, int64_t columns, int64_t rows, int threads) {
    const size_t from_bytes = static_cast<size_t>(outputs * columns / layout.columns * layout.file_bytes);
    const size_t table_bytes = static_cast<size_t>(asyncpage_table_bytes(kind, outputs, columns));
    Exact<uint8_t> from(from_bytes), table(table_bytes);
    for (size_t i = 0; i < from_bytes; ++i) from.at[i] = byte() & 0x3b;  // numbers of either precision
    std::memset(table.at, 0, table_bytes);
    asyncpage_pack(kind, from.at, outputs, columns, 0, table.at);
    Exact<float> x(static_cast<size_t>(rows * columns)), y(static_cast<size_t>(rows * outputs));
    for (int64_t i = 0; i < rows * columns; ++i) x.at[i] = static_cast<float>(byte()) - 128.0f;
    x.at[0] = __builtin_nanf("");
    const auto multiply = [&](const float* x, float* y, int64_t rows, int64_t x_stride, int64_t y_stride, int adds) {
        const int failed =
            asyncpage_linear(kind, table.at, x, y, rows, columns, outputs, x_stride, y_stride, adds, threads);
        if (failed) std::abort();
    };
    multiply(x.at, y.at, rows, columns, outputs, 0);
    if (y.at[0] == y.at[0] || (rows > 1 && y.at[outputs] != y.at[outputs])) std::abort();
    // Rows apart: the last ends where its memory does.
    const int64_t x_stride = columns + 5, y_stride = outputs + 3;
    Exact<float> apart(static_cast<size_t>((rows - 1) * x_stride + columns));
    Exact<float> sums(static_cast<size_t>((rows - 1) * y_stride + outputs));
    for (int64_t i = 0; i < (rows - 1) * x_stride + columns; ++i) apart.at[i] = static_cast<float>(byte());
    for (int64_t i = 0; i < (rows - 1) * y_stride + outputs; ++i) sums.at[i] = 1.0f;
    multiply(apart.at, sums.at, rows, x_stride, y_stride, 1);
    const int64_t ids[] = {0, outputs - 1};
    Exact<float> out(static_cast<size_t>(2 * columns));
    if (asyncpage_read(kind, table.at, outputs, columns, ids, 2, out.at) != 0) std::abort();
    const int64_t none[] = {0, outputs}, negative[] = {0, -1};
    if (asyncpage_read(kind, table.at, outputs, columns, none, 2, out.at) != 1) std::abort();
    if (asyncpage_read(kind, table.at, outputs, columns, negative, 2, out.at) != 1) std::abort();
    multiply(nullptr, nullptr, 0, columns, outputs, 1);
}

}  // namespace

int main() {
    const Layout layouts[] = {HARNESS_LAYOUTS};
    int kind = 0;
    for (const Layout& layout : layouts) {
        for (int64_t rows : {1, 2, 3, 7, 8, 15, 70}) {
            for (int threads : {1, 3}) {
                run(kind, layout, 1, 256, rows, threads);
                run(kind, layout, 43, 512, rows, threads);
                if (layout.columns == 1) run(kind, layout, 70, 37, rows, threads);
            }
        }
        ++kind;
    }
    std::puts("done");
    return 0;
}

// Products of tables and the functions of vectors, on numbers from a pipe: for processors that no test may run on.
#include <cstdio>
#include <vector>

#include "linear.cpp"

namespace {

template <class T>
std::vector<T> take(size_t count) {
    std::vector<T> found(count);
    if (std::fread(found.data(), sizeof(T), count, stdin) != count) std::abort();
    return found;
}

void give(const std::vector<float>& found) { std::fwrite(found.data(), sizeof(float), found.size(), stdout); }

// Given kind, outputs, columns, rows, bytes of blocks; the blocks, the rows. Gives products of all rows on three
// threads and of each by itself, and the table's rows.
void multiply_rows() {
    const std::vector<int64_t> sizes = take<int64_t>(5);
    const int kind = static_cast<int>(sizes[0]);
    const int64_t outputs = sizes[1], columns = sizes[2], rows = sizes[3];
    const std::vector<uint8_t> blocks = take<uint8_t>(static_cast<size_t>(sizes[4]));
    const std::vector<float> x = take<float>(static_cast<size_t>(rows * columns));
    std::vector<uint8_t> table(static_cast<size_t>(asyncpage_table_bytes(kind, outputs, columns)));
    asyncpage_pack(kind, blocks.data(), outputs, columns, 0, table.data());
    std::vector<float> y(static_cast<size_t>(rows * outputs)), values(static_cast<size_t>(outputs * columns));
    std::vector<int64_t> ids(static_cast<size_t>(outputs));
    for (int64_t i = 0; i < outputs; ++i) ids[static_cast<size_t>(i)] = i;
    const auto multiply = [&](int64_t first, int64_t count, int threads) {
        const float* from = x.data() + first * columns;
        float* to = y.data() + first * outputs;
        const int failed =
            linear(kind, table.data(), from, to, count, columns, outputs, columns, outputs, false, threads);
        if (failed) std::abort();
    };
    multiply(0, rows, 3);
    give(y);
    std::fill(y.begin(), y.end(), 0.0f);
    for (int64_t row = 0; row < rows; ++row) multiply(row, 1, 1);
    give(y);
    if (asyncpage_read(kind, table.data(), outputs, columns, ids.data(), outputs, values.data())) std::abort();
    give(values);
}

// Given a count and twice as many numbers, a and b: gives what each function makes of them.
void map_vectors() {
    const size_t count = static_cast<size_t>(take<int64_t>(1)[0]);
    const std::vector<float> a = take<float>(count), b = take<float>(count);
    std::vector<float> found(count);
    const auto each = [&](auto function) {
        for (size_t i = 0; i < count; i += LANES) store(&found[i], function(load(&a[i]), load(&b[i])));
        give(found);
    };
    each([](Floats x, Floats y) { return add(x, y); });
    each([](Floats x, Floats y) { return subtract(x, y); });
    each([](Floats x, Floats y) { return multiply(x, y); });
    each([](Floats x, Floats y) { return divide(x, y); });
    each([](Floats x, Floats y) { return fused(x, y, x); });
    each([](Floats x, Floats y) { return greater(x, y); });
    each([](Floats x, Floats y) { return lesser(x, y); });
    each([](Floats x, Floats) { return nearest(x); });
    each([](Floats x, Floats) { return exponential(x); });
    each([](Floats x, Floats) { return floats(rounded(x)); });
    const std::vector<uint16_t> halves = take<uint16_t>(count);
    for (size_t i = 0; i < count; i += LANES) store(&found[i], load_half(&halves[i]));
    give(found);
    for (size_t i = 0; i < count; i += LANES) store(&found[i], load_brain(&halves[i]));
    give(found);
}

}  // namespace

int main() {
    map_vectors();
    for (int64_t left = take<int64_t>(1)[0]; left > 0; --left) multiply_rows();
    return 0;
}

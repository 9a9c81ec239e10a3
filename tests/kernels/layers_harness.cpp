// Runs attention and lists of operators on memory of exactly the size that they may touch, for sanitizers to watch.
#include <cstdio>
#include <vector>

#include "attention.hpp"
#include "stack.hpp"

using namespace asyncpage;

extern "C" {
int64_t asyncpage_attention_workspace(const AttentionGroup*, int64_t, int64_t);
int asyncpage_attention_plan(const AttentionGroup*, AttentionStep*);
void asyncpage_attention_write(const AttentionGroup*, const AttentionStep*, const AttentionLayer*, const float*, int64_t,
                               const float*, int64_t);
void asyncpage_attention_run(const AttentionGroup*, const AttentionStep*, const AttentionLayer*, const float*, int64_t,
                             float*, int64_t, float*);
int asyncpage_stack(const Run*);
}

namespace {

uint32_t state = 1;
float number() {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
}

template <class T>
struct Exact {  // its end is the end of what may be read
    explicit Exact(int64_t count) : at(static_cast<T*>(std::malloc(static_cast<size_t>(count) * sizeof(T)))) {}
    ~Exact() { std::free(at); }
    T* at;
};

struct Floats_ : Exact<float> {
    explicit Floats_(int64_t count) : Exact<float>(count) {
        for (int64_t i = 0; i < count; ++i) at[i] = number();
    }
};

// Sequences of `lengths`, the last `asked` tokens of each in one step.
void attend(const AttentionGroup& group, const std::vector<int32_t>& lengths, const std::vector<int32_t>& asked) {
    const auto sequences = static_cast<int64_t>(lengths.size());
    const int64_t block = group.block_size, item = group.kv == 0 ? 4 : 2, sides = group.is_latent ? 1 : 2;
    int64_t width = 0, tokens = 0;
    for (int64_t i = 0; i < sequences; ++i) width = std::max(width, (lengths[i] + block - 1) / block), tokens += asked[i];
    Exact<int32_t> starts(sequences + 1), sizes(sequences), table(sequences * width);
    Exact<int64_t> slots(tokens);
    starts.at[0] = 0;
    int64_t token = 0;
    for (int64_t i = 0; i < sequences; ++i) {
        starts.at[i + 1] = starts.at[i] + asked[i];
        sizes.at[i] = lengths[i];
        for (int64_t b = 0; b < width; ++b) {
            const bool is_used = b * block < lengths[i];
            table.at[i * width + b] = is_used ? static_cast<int32_t>(i * width + b) : 1 << 30;
        }
        for (int64_t p = lengths[i] - asked[i]; p < lengths[i]; ++p) slots.at[token++] = (i * width + p / block) * block + p % block;
    }
    const AttentionGroup& of = group;
    const int64_t kv_bytes = sides * of.kv_heads * sequences * width * block * of.head_dim * item;
    Exact<uint8_t> kv(kv_bytes);
    std::memset(kv.at, 0, static_cast<size_t>(kv_bytes));
    const int64_t room = asyncpage_attention_workspace(&of, sequences, tokens);
    Exact<uint8_t> workspace(room);
    AttentionStep step{};
    step.sequences = sequences, step.tokens = tokens, step.table_stride = width;
    step.starts = starts.at, step.lengths = sizes.at, step.table = table.at, step.slots = slots.at;
    step.workspace = workspace.at, step.workspace_bytes = room;
    if (asyncpage_attention_plan(&of, &step) != 0) std::abort();
    Floats_ sinks(of.q_heads), slopes(of.q_heads), q(tokens * of.q_heads * of.head_dim);
    Floats_ k(tokens * of.kv_heads * of.head_dim), v(tokens * of.kv_heads * of.v_head_dim);
    Floats_ out(tokens * of.q_heads * of.v_head_dim), lse(tokens * of.q_heads);
    const AttentionLayer layer{kv.at, 0.3, sinks.at, slopes.at};
    asyncpage_attention_write(&of, &step, &layer, k.at, of.kv_heads * of.head_dim, v.at, of.kv_heads * of.v_head_dim);
    asyncpage_attention_run(&of, &step, &layer, q.at, of.q_heads * of.head_dim, out.at, of.q_heads * of.v_head_dim, lse.at);
    for (int64_t i = 0; i < tokens * of.q_heads * of.v_head_dim; ++i) if (!std::isfinite(out.at[i])) std::abort();
    step.workspace_bytes = 64;
    if (asyncpage_attention_plan(&of, &step) != 1) std::abort();
}

void list(int64_t rows, int64_t width, int64_t threads) {
    Floats_ wide(rows * 2 * width), narrow(rows * width), weight(width), angles(2 * rows * (width / 2 * 2));
    const Buffer buffers[] = {{wide.at, 2 * width}, {narrow.at, width}};
    const int64_t turned = width / 2 * 2;
    const Angles turns[] = {{angles.at, angles.at + rows * turned}};
    Instruction one{};
    std::vector<Instruction> all;
    const auto put = [&](int64_t operation, int64_t from, int64_t to, int64_t kind) {
        one = {};
        one.operation = operation, one.from = from, one.to = to, one.kind = kind;
        one.width = width, one.heads = 1, one.weight = weight.at, one.eps = 1e-5;
        all.push_back(one);
    };
    put(NORM, 1, 1, 0), put(HEAD_NORM, 0, 0, 0), put(BIAS, 1, 1, 0), put(ADD, 0, 1, 0);
    for (int64_t kind : {SILU, GELU_TANH, RELU}) put(GATE, 0, 1, kind);
    if (turned > 0) {
        put(TURN, 1, 1, 0);
        all.back().width = turned, all.back().outputs = width;
    }
    Exact<int64_t> positions(rows);
    for (int64_t row = 0; row < rows; ++row) positions.at[row] = rows - 1 - row;
    const Run run{all.data(), static_cast<int64_t>(all.size()), rows, threads, buffers, turns, positions.at};
    if (asyncpage_stack(&run) != 0) std::abort();
    for (int64_t i = 0; i < rows * width; ++i) if (!std::isfinite(narrow.at[i])) std::abort();
}

}  // namespace

int main() {
    const std::vector<int32_t> lengths{1, 17, 128, 129, 300, 555};
    for (int64_t threads : {1, 3}) {
        for (int64_t kv : {0, 1, 2}) {
            for (int64_t window : {0, 9, 200}) {
                // q_heads, kv_heads, head_dim, v_head_dim, block_size, window, kv, is_latent, threads, softcap
                attend({6, 2, 64, 64, 16, window, kv, 0, threads, 0.0}, lengths, lengths);
                attend({6, 2, 64, 64, 16, window, kv, 0, threads, 5.0}, lengths, {1, 1, 1, 1, 1, 1});
                attend({3, 1, 20, 20, 7, window, kv, 0, threads, 0.0}, lengths, {1, 2, 100, 1, 33, 1});
                attend({5, 1, 44, 36, 1, window, kv, 1, threads, 0.0}, lengths, {1, 2, 100, 1, 33, 1});
            }
            attend({3, 1, 64, 64, 16, 0, kv, 0, threads, 0.0}, {2000}, {1});
        }
        for (int64_t rows : {1, 5, 3000}) for (int64_t width : {1, 7, 16, 50}) list(rows, width, threads);
    }
    std::puts("done");
    return 0;
}

// Attention over a paged cache, its blocks read where they lie: tiles of keys against tiles of queries, a softmax for
// each tile, tiles put together as in "online" softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022).
//
// What a query is given is made of its own sequence's keys by the same operations in the same order whatever is beside
// it: tiles begin at multiples of TILE in the sequence, each is summed from its first visible key on, and they are put
// together from the first to the last, whoever computed them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.hpp"

namespace asyncpage {

constexpr int64_t TILE = 128;             // keys that have a softmax of their own
constexpr int STRIP = 2 * LANES;          // of them, how many are multiplied at once, one in each lane
constexpr int64_t MOST_ROWS = 48;         // of a tile of queries, each with all heads of one key head, where these are fewer
constexpr int SCORE_ROWS = LANES == 16 ? 12 : 6;  // as many as registers hold sums of
constexpr int VALUE_ROWS = 4;
constexpr int VALUE_VECTORS = LANES == 16 ? 4 : 2;

// What a group of layers shares. `kv`: 0 for float32, 1 for float16, 2 for bfloat16. A layer's cache is [blocks, sides,
// kv_heads, block_size, head_dim], keys first and then values, or latent rows that are both.
struct AttentionGroup {
    int64_t q_heads, kv_heads, head_dim, v_head_dim, block_size, window, kv, is_latent, threads;
    double softcap;

    // Numbers from one to the next.
    int64_t head_stride() const { return block_size * head_dim; }
    int64_t side_stride() const { return is_latent ? 0 : kv_heads * head_stride(); }
    int64_t block_stride() const { return kv_heads * head_stride() * (is_latent ? 1 : 2); }

    int64_t heads() const { return q_heads / kv_heads; }
    int64_t padded() const { return (v_head_dim + LANES - 1) / LANES * LANES; }
    int64_t tile_queries() const { return std::max<int64_t>(1, MOST_ROWS / heads()); }
};

// Queries of one sequence and one key head. Where a step is cut along keys, `first_tile` to `last_tile` is this piece's
// share, else all that its queries see.
struct AttentionItem {
    int32_t sequence, kv_head, first_query, queries, first_tile, last_tile;
    int64_t partial;  // where in `partials` its first tile goes
};

// A step. `items` are `count` pieces of work; where `is_cut`, `wholes` follow, `whole_count` of them, that put the
// pieces together.
struct AttentionStep {
    int64_t sequences, tokens, table_stride;
    const int32_t* starts;   // [sequences + 1]
    const int32_t* lengths;  // [sequences]
    const int32_t* table;    // [sequences, table_stride]
    const int64_t* slots;    // [tokens]
    uint8_t* workspace;
    int64_t workspace_bytes;
    AttentionItem* items;
    int64_t count, whole_count, is_cut;
    float* scratch;
    float* partials;
};

struct AttentionLayer {
    void* kv;
    double scale;
    const float* sinks;   // [q_heads] or null
    const float* slopes;  // [q_heads] or null
};

// One thread's memory for one item.
struct AttentionScratch {
    float *queries, *keys, *scores, *values, *tile, *sum, *most, *total, *tile_most, *tile_total;

    static int64_t floats(const AttentionGroup& group) {
        const int64_t rows = group.tile_queries() * group.heads(), width = group.padded();
        const int64_t dim = (group.head_dim + 7) / 8 * 8;
        const int64_t all = rows * dim + dim * STRIP + rows * TILE + TILE * width + 2 * rows * width + 4 * rows;
        return (all + 10 * LANES + 63) / 64 * 64;
    }
    AttentionScratch(const AttentionGroup& group, float* at) {
        const int64_t rows = group.tile_queries() * group.heads(), width = group.padded();
        const int64_t dim = (group.head_dim + 7) / 8 * 8;
        const auto take = [&at](int64_t count) {
            float* taken = at;
            at += (count + LANES - 1) / LANES * LANES;
            return taken;
        };
        queries = take(rows * dim);
        keys = take(dim * STRIP);
        scores = take(rows * TILE);
        values = take(TILE * width);
        tile = take(rows * width);
        sum = take(rows * width);
        most = take(rows), total = take(rows), tile_most = take(rows), tile_total = take(rows);
    }
};

struct Half {
    uint16_t bits;
    static Floats widen(const Half* at) { return load_half(&at->bits); }
};
struct Brain {
    uint16_t bits;
    static Floats widen(const Brain* at) { return load_brain(&at->bits); }
};
inline Floats widen(const float* at) { return load(at); }
inline Floats widen(const Half* at) { return Half::widen(at); }
inline Floats widen(const Brain* at) { return Brain::widen(at); }

// `count` numbers, all of them or fewer than LANES.
template <class T>
inline Floats widen_some(const T* at, int64_t count) {
    if (count >= LANES) return widen(at);
    T some[LANES] = {};
    std::memcpy(some, at, sizeof(T) * static_cast<size_t>(count));
    return widen(some);
}

// LANES keys, one a lane: `to` [head_dim, STRIP] from its column `lane` on. A key that is null is zeros.
template <class T>
void lay_keys(const T* const* keys, int64_t head_dim, float* to) {
    for (int64_t d = 0; d < head_dim; d += LANES) {
        Floats square[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            square[lane] = keys[lane] == nullptr ? all(0.0f) : widen_some(keys[lane] + d, head_dim - d);
        }
        transpose(square);
        const int64_t count = std::min<int64_t>(LANES, head_dim - d);
        for (int64_t i = 0; i < count; ++i) store(to + (d + i) * STRIP, square[i]);
    }
}

// Scores of `rows` queries against a strip of keys: each a sum over head_dim in its order.
template <int rows>
void score_strip(const float* queries, int64_t dim, int64_t head_dim, const float* keys, float* scores) {
    Floats sums[rows][2];
    for (int r = 0; r < rows; ++r) sums[r][0] = sums[r][1] = all(0.0f);
    for (int64_t d = 0; d < head_dim; ++d) {
        const Floats first = load(keys + d * STRIP), second = load(keys + d * STRIP + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r) {
            const Floats query = all(queries[r * dim + d]);
            sums[r][0] = fused(query, first, sums[r][0]);
            sums[r][1] = fused(query, second, sums[r][1]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        store(scores + r * TILE, sums[r][0]);
        store(scores + r * TILE + LANES, sums[r][1]);
    }
}

template <int rows>
void score_rows(const float* queries, int64_t dim, int64_t head_dim, const float* keys, float* scores, int64_t count) {
    if constexpr (rows > 0) {
        if (count < rows) return score_rows<rows - 1>(queries, dim, head_dim, keys, scores, count);
        score_strip<rows>(queries, dim, head_dim, keys, scores);
        score_rows<rows>(queries + rows * dim, dim, head_dim, keys, scores + rows * TILE, count - rows);
    }
}

// Sums of values, weighted by `rows` rows of `weights`, from key `begin` to key `end` in their order.
template <int rows, int vectors>
void weigh_part(const float* weights, const float* const* values, int64_t begin, int64_t end, int64_t at, float* out,
                int64_t width) {
    Floats sums[rows][vectors];
    for (int r = 0; r < rows; ++r) for (int v = 0; v < vectors; ++v) sums[r][v] = all(0.0f);
    for (int64_t key = begin; key < end; ++key) {
        const float* value = values[key] + at;
        Floats part[vectors];
        for (int v = 0; v < vectors; ++v) part[v] = load(value + v * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const Floats weight = all(weights[r * TILE + key]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sums[r][v] = fused(weight, part[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; ++r) for (int v = 0; v < vectors; ++v) store(out + r * width + at + v * LANES, sums[r][v]);
}

template <int rows>
void weigh(const float* weights, const float* const* values, int64_t begin, int64_t end, float* out, int64_t width) {
    int64_t at = 0;
    for (; at + VALUE_VECTORS * LANES <= width; at += VALUE_VECTORS * LANES) {
        weigh_part<rows, VALUE_VECTORS>(weights, values, begin, end, at, out, width);
    }
    for (; at < width; at += LANES) weigh_part<rows, 1>(weights, values, begin, end, at, out, width);
}

// Attention of an item's rows to the keys of tile after tile.
template <class T>
class Attending {
  public:
    Attending(const AttentionGroup& group, const AttentionStep& step, const AttentionLayer& layer,
              const AttentionItem& item, float* scratch)
        : group_(group), step_(step), layer_(layer), item_(item), at_(group, scratch),
          rows_(item.queries * group.heads()), dim_((group.head_dim + 7) / 8 * 8), width_(group.padded()),
          first_token_(step.starts[item.sequence] + item.first_query) {
        const int64_t length = step.lengths[item.sequence];
        const int64_t asked = step.starts[item.sequence + 1] - step.starts[item.sequence];
        first_position_ = length - asked + item.first_query;
    }

    // Keys that a row sees: from `begin` to before `end`.
    int64_t end(int64_t row) const { return first_position_ + row / group_.heads() + 1; }
    int64_t begin(int64_t row) const { return group_.window ? std::max<int64_t>(0, end(row) - group_.window) : 0; }

    // The item's queries, each multiplied by the layer's scale.
    void take(const float* q, int64_t stride) {
        const int64_t heads = group_.heads(), head_dim = group_.head_dim;
        const float scale = static_cast<float>(layer_.scale);
        for (int64_t row = 0; row < rows_; ++row) {
            const float* from = q + (first_token_ + row / heads) * stride + (item_.kv_head * heads + row % heads) * head_dim;
            for (int64_t d = 0; d < head_dim; ++d) at_.queries[row * dim_ + d] = from[d] * scale;
        }
    }

    // Every row's share of a tile: its greatest score, and sums of weights and of weighted values at `out`.
    void compute(int64_t number, float* most, float* total, float* out) {
        const int64_t base = number * TILE;
        const int64_t begin_all = std::max(begin(0), base) - base, end_all = std::min(end(rows_ - 1), base + TILE) - base;
        find(base, begin_all, end_all);
        for (int64_t strip = begin_all / STRIP * STRIP; strip < end_all; strip += STRIP) {
            fetch(std::max(begin_all, strip + STRIP), std::min(end_all, strip + 2 * STRIP), 0);
            if (!group_.is_latent) fetch(std::max(begin_all, strip), std::min(end_all, strip + STRIP), group_.side_stride());
            lay_keys(keys_ + strip, group_.head_dim, at_.keys);
            lay_keys(keys_ + strip + LANES, group_.head_dim, at_.keys + LANES);
            score_rows<SCORE_ROWS>(at_.queries, dim_, group_.head_dim, at_.keys, at_.scores + strip, rows_);
        }
        for (int64_t row = 0; row < rows_; ++row) {
            const int64_t from = std::max(begin(row), base) - base, to = std::min(end(row), base + TILE) - base;
            if (from < to) weights(row, base, from, to, most + row, total + row);
        }
        widen_values(begin_all, end_all);
        for (int64_t row = 0; row < rows_;) {
            const int64_t from = std::max(begin(row), base) - base, to = std::min(end(row), base + TILE) - base;
            int64_t alike = 1;
            while (alike < VALUE_ROWS && row + alike < rows_ && std::max(begin(row + alike), base) - base == from &&
                   std::min(end(row + alike), base + TILE) - base == to) ++alike;
            if (from < to) {
                const float* of = at_.scores + row * TILE;
                float* into = out + row * width_;
                switch (alike) {
                    case 4: weigh<4>(of, values_, from, to, into, width_); break;
                    case 3: weigh<3>(of, values_, from, to, into, width_); break;
                    case 2: weigh<2>(of, values_, from, to, into, width_); break;
                    default: weigh<1>(of, values_, from, to, into, width_);
                }
            }
            row += alike;
        }
    }

    void begin_sums() {
        for (int64_t row = 0; row < rows_; ++row) at_.total[row] = -1.0f;  // nothing yet
    }

    // Puts a tile to what was put together before.
    void put(int64_t number, const float* most, const float* total, const float* out) {
        const int64_t base = number * TILE;
        for (int64_t row = 0; row < rows_; ++row) {
            if (std::max(begin(row), base) >= std::min(end(row), base + TILE)) continue;
            float* sum = at_.sum + row * width_;
            const float* more = out + row * width_;
            if (at_.total[row] == -1.0f) {
                at_.most[row] = most[row], at_.total[row] = total[row];
                std::memcpy(sum, more, sizeof(float) * static_cast<size_t>(width_));
                continue;
            }
            const float greatest = std::max(at_.most[row], most[row]);
            const float before = power(at_.most[row] - greatest), now = power(most[row] - greatest);
            at_.most[row] = greatest;
            at_.total[row] = at_.total[row] * before + total[row] * now;
            for (int64_t v = 0; v < width_; v += LANES) {
                store(sum + v, fused(load(more + v), all(now), multiply(load(sum + v), all(before))));
            }
        }
    }

    // Outputs, and logarithms of the denominators where `lse` [tokens, q_heads] is given.
    void give(float* out, int64_t stride, float* lse) {
        const int64_t heads = group_.heads();
        for (int64_t row = 0; row < rows_; ++row) {
            const int64_t token = first_token_ + row / heads, head = item_.kv_head * heads + row % heads;
            float most = at_.most[row], total = at_.total[row], factor = 1.0f;
            if (layer_.sinks != nullptr) {
                const float sink = layer_.sinks[head], greatest = std::max(most, sink);
                factor = power(most - greatest);
                total = total * factor + power(sink - greatest);
                most = greatest;
            }
            float* to = out + token * stride + head * group_.v_head_dim;
            const float* sum = at_.sum + row * width_;
            const float share = factor / total;
            for (int64_t v = 0; v < group_.v_head_dim; ++v) to[v] = sum[v] * share;
            if (lse != nullptr) lse[token * group_.q_heads + head] = most + std::log(total);
        }
    }

    int64_t rows() const { return rows_; }
    int64_t width() const { return width_; }
    AttentionScratch& scratch() { return at_; }
    int64_t first_tile() const { return begin(0) / TILE; }
    int64_t last_tile() const { return (end(rows_ - 1) - 1) / TILE; }

  private:
    static float power(float x) {
        alignas(64) float lanes[LANES];
        store(lanes, exponential(all(x)));
        return lanes[0];
    }

    // Where the keys and values of a tile are, from key `begin` to before `end`; null for the others.
    void find(int64_t base, int64_t begin, int64_t end) {
        const T* keys = static_cast<const T*>(layer_.kv) + item_.kv_head * group_.head_stride();
        const int32_t* table = step_.table + item_.sequence * step_.table_stride;
        std::fill(keys_, keys_ + begin, nullptr);
        std::fill(keys_ + end, keys_ + TILE, nullptr);
        for (int64_t key = begin; key < end;) {
            const int64_t position = base + key, offset = position % group_.block_size;
            const int64_t stop = std::min(end, key + group_.block_size - offset);
            const T* at = keys + table[position / group_.block_size] * group_.block_stride() + offset * group_.head_dim;
            for (; key < stop; ++key, at += group_.head_dim) keys_[key] = at;
        }
    }

    // Asks memory for the keys from `begin` to before `end`, or their values, ahead of their use.
    void fetch(int64_t begin, int64_t end, int64_t side) const {
        const int64_t bytes = group_.head_dim * static_cast<int64_t>(sizeof(T));
        for (int64_t key = begin; key < end; ++key) {
            const char* at = reinterpret_cast<const char*>(keys_[key] + side);
            for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte);
        }
    }

    // Values in float32, in place where they are that.
    void widen_values(int64_t begin, int64_t end) {
        const int64_t side = group_.side_stride();
        const bool is_plain = sizeof(T) == sizeof(float) && width_ == group_.v_head_dim;
        for (int64_t key = begin; key < end; ++key) {
            const T* value = keys_[key] + side;
            if (is_plain) {
                values_[key] = reinterpret_cast<const float*>(value);
                continue;
            }
            float* wide = at_.values + key * width_;
            for (int64_t v = 0; v < width_; v += LANES) store(wide + v, widen_some(value + v, group_.v_head_dim - v));
            values_[key] = wide;
        }
    }

    // Scores of a row to weights, in place: e^(score - greatest), nothing outside [from, to).
    void weights(int64_t row, int64_t base, int64_t from, int64_t to, float* most, float* total) {
        float* scores = at_.scores + row * TILE;
        if (group_.softcap != 0.0) {
            const Floats cap = all(static_cast<float>(group_.softcap));
            for (int64_t key = from / LANES * LANES; key < to; key += LANES) {
                store(scores + key, multiply(cap, hyperbolic_tangent(divide(load(scores + key), cap))));
            }
        }
        if (layer_.slopes != nullptr) {
            const float slope = layer_.slopes[item_.kv_head * group_.heads() + row % group_.heads()];
            for (int64_t key = from; key < to; ++key) {
                scores[key] += slope * static_cast<float>(base + key - (end(row) - 1));
            }
        }
        const int64_t first = from / LANES * LANES, last = (to + LANES - 1) / LANES * LANES;
        for (int64_t key = first; key < from; ++key) scores[key] = -std::numeric_limits<float>::infinity();
        for (int64_t key = to; key < last; ++key) scores[key] = -std::numeric_limits<float>::infinity();
        Floats greatest = all(-std::numeric_limits<float>::infinity());
        for (int64_t key = first; key < last; key += LANES) greatest = greater(greatest, load(scores + key));
        alignas(64) float lanes[LANES];
        store(lanes, greatest);
        const float found = *std::max_element(lanes, lanes + LANES);
        for (int64_t key = first; key < last; key += LANES) {
            store(scores + key, exponential(subtract(load(scores + key), all(found))));
        }
        for (int64_t key = first; key < from; ++key) scores[key] = 0.0f;
        for (int64_t key = to; key < last; ++key) scores[key] = 0.0f;
        Floats sums = all(0.0f);
        for (int64_t key = first; key < last; key += LANES) sums = add(sums, load(scores + key));
        *most = found;
        *total = sum(sums);
    }

    const AttentionGroup& group_;
    const AttentionStep& step_;
    const AttentionLayer& layer_;
    const AttentionItem& item_;
    AttentionScratch at_;
    const int64_t rows_, dim_, width_, first_token_;
    int64_t first_position_;
    const T* keys_[TILE];
    const float* values_[TILE];
};

}  // namespace asyncpage

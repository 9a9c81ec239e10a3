// Attention as Python and the list of a step's operators call it: plan a step, store keys and values, attend.
#include "attention.hpp"

#include <atomic>

#include "pool.hpp"
#include "product.hpp"

namespace asyncpage {
namespace {

constexpr int64_t PARTIAL_BYTES = 8 << 20;
constexpr int64_t PIECES_A_THREAD = 8;
constexpr int64_t MOST_THREADS = MOST_HELPERS + 1;
constexpr int64_t WRITTEN_TOKENS = 32;  // of one piece

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t tiles(const AttentionItem& item) { return item.last_tile - item.first_tile + 1; }

int64_t most_items(const AttentionGroup& group, int64_t sequences, int64_t tokens) {
    return (tokens / group.tile_queries() + sequences) * group.kv_heads + 4 * PIECES_A_THREAD * group.threads;
}

AttentionItem whole(const AttentionGroup& group, const AttentionStep& step, int64_t sequence, int64_t first, int64_t queries) {
    const int64_t asked = step.starts[sequence + 1] - step.starts[sequence];
    const int64_t position = step.lengths[sequence] - asked + first;
    AttentionItem item{};
    item.sequence = static_cast<int32_t>(sequence);
    item.first_query = static_cast<int32_t>(first);
    item.queries = static_cast<int32_t>(queries);
    const int64_t begin = group.window ? std::max<int64_t>(0, position + 1 - group.window) : 0;
    item.first_tile = static_cast<int32_t>(begin / TILE);
    item.last_tile = static_cast<int32_t>((position + queries - 1) / TILE);
    return item;
}

// Cuts `count` wholes along their keys, where that gives threads more to share and results have room.
void cut(const AttentionGroup& group, AttentionStep& step, int64_t count, int64_t room) {
    int64_t all_tiles = 0, partial = 0;
    for (int64_t i = 0; i < count; ++i) {
        AttentionItem& item = step.items[i];
        item.partial = partial;
        all_tiles += tiles(item);
        partial += tiles(item) * item.queries * group.heads() * (group.padded() + 2);
    }
    if (all_tiles == count || partial > room) return;
    AttentionItem* pieces = step.items + count;
    const auto share = static_cast<int32_t>((all_tiles + PIECES_A_THREAD * group.threads - 1) / (PIECES_A_THREAD * group.threads));
    int64_t made = 0;
    for (int64_t i = 0; i < count; ++i) {
        const AttentionItem& item = step.items[i];
        for (int32_t tile = item.first_tile; tile <= item.last_tile; tile += share) {
            AttentionItem& piece = pieces[made++] = item;
            piece.first_tile = tile;
            piece.last_tile = std::min(item.last_tile, tile + share - 1);
            piece.partial += (tile - item.first_tile) * item.queries * group.heads() * (group.padded() + 2);
        }
    }
    std::rotate(step.items, pieces, pieces + made);
    step.count = made;
    step.whole_count = count;
    step.is_cut = 1;
}

struct Job {
    const AttentionGroup& group;
    const AttentionStep& step;
    const AttentionLayer& layer;
    const float* q;
    int64_t q_stride;
    float* out;
    int64_t out_stride;
    float* lse;
    mutable std::atomic<bool> taken[MOST_THREADS];

    // Memory that nobody else uses: there is some for each thread.
    int64_t claim() const {
        for (int64_t i = 0;; i = (i + 1) % std::min(group.threads, MOST_THREADS)) {
            if (!taken[i].exchange(true, std::memory_order_acquire)) return i;
        }
    }
    float* scratch(int64_t place) const { return step.scratch + place * AttentionScratch::floats(group); }
};

template <class T>
void attend(const Job& job, const AttentionItem& item, float* scratch) {
    Attending<T> one(job.group, job.step, job.layer, item, scratch);
    AttentionScratch& at = one.scratch();
    one.take(job.q, job.q_stride);
    one.begin_sums();
    for (int64_t tile = one.first_tile(); tile <= one.last_tile(); ++tile) {
        one.compute(tile, at.tile_most, at.tile_total, at.tile);
        one.put(tile, at.tile_most, at.tile_total, at.tile);
    }
    one.give(job.out, job.out_stride, job.lse);
}

template <class T>
void attend_part(const Job& job, const AttentionItem& item, float* scratch) {
    Attending<T> one(job.group, job.step, job.layer, item, scratch);
    one.take(job.q, job.q_stride);
    float* to = job.step.partials + item.partial;
    for (int64_t tile = item.first_tile; tile <= item.last_tile; ++tile, to += one.rows() * (one.width() + 2)) {
        one.compute(tile, to, to + one.rows(), to + 2 * one.rows());
    }
}

template <class T>
void join(const Job& job, const AttentionItem& item, float* scratch) {
    Attending<T> one(job.group, job.step, job.layer, item, scratch);
    one.begin_sums();
    const float* from = job.step.partials + item.partial;
    for (int64_t tile = item.first_tile; tile <= item.last_tile; ++tile, from += one.rows() * (one.width() + 2)) {
        one.put(tile, from, from + one.rows(), from + 2 * one.rows());
    }
    one.give(job.out, job.out_stride, job.lse);
}

using Do = void (*)(const Job&, const AttentionItem&, float*);
const Do WHOLES[] = {attend<float>, attend<Half>, attend<Brain>};
const Do PARTS[] = {attend_part<float>, attend_part<Half>, attend_part<Brain>};
const Do JOINS[] = {join<float>, join<Half>, join<Brain>};

void run_item(const void* of, int64_t piece) {
    const Job& job = *static_cast<const Job*>(of);
    const int64_t place = job.claim();
    (job.step.is_cut ? PARTS : WHOLES)[job.group.kv](job, job.step.items[piece], job.scratch(place));
    job.taken[place].store(false, std::memory_order_release);
}

void run_join(const void* of, int64_t piece) {
    const Job& job = *static_cast<const Job*>(of);
    const int64_t place = job.claim();
    JOINS[job.group.kv](job, job.step.items[job.step.count + piece], job.scratch(place));
    job.taken[place].store(false, std::memory_order_release);
}

struct Writing {
    const AttentionGroup& group;
    const AttentionStep& step;
    void* kv;
    const float *k, *v;
    int64_t k_stride, v_stride;
};

void narrow(const float* from, float* to, int64_t count) { std::memcpy(to, from, sizeof(float) * static_cast<size_t>(count)); }
void narrow(const float* from, Half* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i].bits = half_of(from[i]);
}
void narrow(const float* from, Brain* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i].bits = brain_of(from[i]);
}

template <class T>
void write(const Writing& job, int64_t first, int64_t last) {
    const AttentionGroup& group = job.group;
    const int64_t heads = group.kv_heads, head_dim = group.head_dim;
    for (int64_t token = first; token < last; ++token) {
        const int64_t slot = job.step.slots[token];
        if (slot < 0) continue;
        for (int64_t head = 0; head < heads; ++head) {
            T* to = static_cast<T*>(job.kv) + slot / group.block_size * group.block_stride() + head * group.head_stride() +
                    slot % group.block_size * head_dim;
            narrow(job.k + token * job.k_stride + head * head_dim, to, head_dim);
            if (group.is_latent) continue;
            narrow(job.v + token * job.v_stride + head * head_dim, to + group.side_stride(), head_dim);
        }
    }
}

void write_piece(const void* of, int64_t piece) {
    const Writing& job = *static_cast<const Writing*>(of);
    const int64_t first = piece * WRITTEN_TOKENS, last = std::min(job.step.tokens, first + WRITTEN_TOKENS);
    switch (job.group.kv) {
        case 0: write<float>(job, first, last); break;
        case 1: write<Half>(job, first, last); break;
        default: write<Brain>(job, first, last);
    }
}

}  // namespace
}  // namespace asyncpage

using namespace asyncpage;

// Bytes that steps of so many sequences and tokens need beside the cache.
EXPORTED int64_t asyncpage_attention_workspace(const AttentionGroup* group, int64_t sequences, int64_t tokens) {
    const int64_t items = most_items(*group, sequences, tokens) * static_cast<int64_t>(sizeof(AttentionItem));
    const int64_t scratch = group->threads * AttentionScratch::floats(*group) * static_cast<int64_t>(sizeof(float));
    return aligned(items) + scratch + PARTIAL_BYTES + 64;
}

// Cuts a step into pieces of work. Returns 0, or 1 where the workspace is too small for it.
EXPORTED int asyncpage_attention_plan(const AttentionGroup* group, AttentionStep* step) {
    const auto address = reinterpret_cast<uintptr_t>(step->workspace);
    const auto skipped = static_cast<int64_t>((64 - address % 64) % 64);
    const int64_t items = most_items(*group, step->sequences, step->tokens) * static_cast<int64_t>(sizeof(AttentionItem));
    const int64_t scratch = group->threads * AttentionScratch::floats(*group) * static_cast<int64_t>(sizeof(float));
    const int64_t room = step->workspace_bytes - skipped - aligned(items) - scratch;
    if (room < 0) return 1;
    uint8_t* at = step->workspace + skipped;
    step->items = reinterpret_cast<AttentionItem*>(at);
    step->scratch = reinterpret_cast<float*>(at + aligned(items));
    step->partials = reinterpret_cast<float*>(at + aligned(items) + scratch);
    int64_t count = 0;
    for (int64_t sequence = 0; sequence < step->sequences; ++sequence) {
        const int64_t asked = step->starts[sequence + 1] - step->starts[sequence];
        for (int64_t first = 0; first < asked; first += group->tile_queries()) {
            AttentionItem item = whole(*group, *step, sequence, first, std::min(group->tile_queries(), asked - first));
            for (int64_t head = 0; head < group->kv_heads; ++head) {
                item.kv_head = static_cast<int32_t>(head);
                step->items[count++] = item;
            }
        }
    }
    step->count = count;
    step->whole_count = step->is_cut = 0;
    if (group->threads == 1) return 0;
    if (count < 4 * group->threads) cut(*group, *step, count, room / static_cast<int64_t>(sizeof(float)));
    if (!step->is_cut && count < 64 * group->threads) {
        // The longest first: what comes last should be short.
        std::stable_sort(step->items, step->items + count, [](const AttentionItem& one, const AttentionItem& other) {
            return tiles(one) * one.queries > tiles(other) * other.queries;
        });
    }
    return 0;
}

// Puts keys [tokens, kv_heads, head_dim] and values into their slots of a layer's cache.
EXPORTED void asyncpage_attention_write(const AttentionGroup* group, const AttentionStep* step, const AttentionLayer* layer,
                                        const float* k, int64_t k_stride, const float* v, int64_t v_stride) {
    const Writing job{*group, *step, layer->kv, k, v, k_stride, v_stride};
    const int64_t pieces = (step->tokens + WRITTEN_TOKENS - 1) / WRITTEN_TOKENS;
    pool()(write_piece, &job, pieces, static_cast<int>(group->threads));
}

// From q [tokens, q_heads, head_dim] to out [tokens, q_heads, v_head_dim] and, where not null, lse [tokens, q_heads].
EXPORTED void asyncpage_attention_run(const AttentionGroup* group, const AttentionStep* step, const AttentionLayer* layer,
                                      const float* q, int64_t q_stride, float* out, int64_t out_stride, float* lse) {
    Job job{*group, *step, *layer, q, q_stride, out, out_stride, lse, {}};
    pool()(run_item, &job, step->count, static_cast<int>(group->threads));
    if (step->is_cut) pool()(run_join, &job, step->whole_count, static_cast<int>(group->threads));
}

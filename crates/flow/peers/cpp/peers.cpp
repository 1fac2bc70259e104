// Tables of C and C++ behind one interface. Keys have 16 bytes, as in the comparison; the hash is CRC32 without a key,
// as there.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nmmintrin.h>
#include <sys/mman.h>
#include <unordered_map>

#include <absl/container/flat_hash_map.h>
#include <libcuckoo/cuckoohash_map.hh>
#include <tbb/concurrent_hash_map.h>
#include <tsl/hopscotch_map.h>
#include <tsl/robin_map.h>

#include <rte_eal.h>
#include <rte_hash.h>
#include <rte_hash_crc.h>
#include <rte_memory.h>

#define _LGPL_SOURCE
#include <urcu-qsbr.h>
#include <urcu/rculfhash.h>

namespace {

constexpr uint32_t NONE = UINT32_MAX;

struct alignas(16) Key {
    uint64_t low, high;
    bool operator==(const Key &other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }
};

inline uint32_t crc(const Key &key) { return _mm_crc32_u64(_mm_crc32_u64(0xffffffff, key.low), key.high); }

struct Hash {
    // Two sums: tables that split the hash into parts need more than 32 bits.
    size_t operator()(const Key &key) const {
        return (uint64_t(_mm_crc32_u64(_mm_crc32_u64(0x12345678, key.high), key.low)) << 32) | crc(key);
    }
};

struct TbbHash {
    static size_t hash(const Key &key) { return Hash()(key); }
    static bool equal(const Key &a, const Key &b) { return a == b; }
};

struct Table {
    virtual ~Table() = default;
    // 0: inserted; 1: present, with *value set; 2: full.
    virtual int insert(const Key &key, uint32_t *value) = 0;
    virtual bool remove(const Key &key) = 0;
    virtual void each(const Key *keys, size_t count, uint32_t *values) = 0;
    virtual void batch(const Key *keys, size_t count, uint32_t *values) { each(keys, count, values); }
    virtual size_t size() = 0;
    virtual void quiescent() {}
    virtual void thread(bool) {}
};

// Maps of the standard's interface.
template <class Map> struct Mapped : Table {
    Map map;
    size_t capacity;
    explicit Mapped(size_t capacity) : capacity(capacity) {}
    int insert(const Key &key, uint32_t *value) override {
        auto [place, is_new] = map.try_emplace(key, *value);
        if (is_new) return 0;
        *value = place->second;
        return 1;
    }
    bool remove(const Key &key) override { return map.erase(key) != 0; }
    void each(const Key *keys, size_t count, uint32_t *values) override {
        for (size_t i = 0; i < count; i++) {
            auto found = map.find(keys[i]);
            values[i] = found == map.end() ? NONE : uint32_t(found->second);
        }
    }
    size_t size() override { return map.size(); }
};

using Robin = tsl::robin_map<Key, uint32_t, Hash, std::equal_to<Key>, std::allocator<std::pair<Key, uint32_t>>, true>;
using Hopscotch =
    tsl::hopscotch_map<Key, uint32_t, Hash, std::equal_to<Key>, std::allocator<std::pair<Key, uint32_t>>, 30, true>;
using Absl = absl::flat_hash_map<Key, uint32_t, Hash>;
using Std = std::unordered_map<Key, uint32_t, Hash>;

template <class Map> Table *mapped(size_t capacity, bool full) {
    auto table = new Mapped<Map>(capacity);
    if constexpr (std::is_same_v<Map, Robin> || std::is_same_v<Map, Hopscotch>) {
        if (full) table->map.max_load_factor(1.0f);
        table->map.rehash(capacity);
    } else {
        table->map.reserve(capacity);
    }
    return table;
}

struct Cuckoo : Table {
    libcuckoo::cuckoohash_map<Key, uint32_t, Hash> map;
    explicit Cuckoo(size_t capacity) : map(capacity) {}
    int insert(const Key &key, uint32_t *value) override {
        if (map.insert(key, *value)) return 0;
        map.find(key, *value);
        return 1;
    }
    bool remove(const Key &key) override { return map.erase(key); }
    void each(const Key *keys, size_t count, uint32_t *values) override {
        for (size_t i = 0; i < count; i++)
            if (!map.find(keys[i], values[i])) values[i] = NONE;
    }
    size_t size() override { return map.size(); }
};

struct Tbb : Table {
    using Map = tbb::concurrent_hash_map<Key, uint32_t, TbbHash>;
    Map map;
    explicit Tbb(size_t capacity) : map(capacity) {}
    int insert(const Key &key, uint32_t *value) override {
        Map::accessor place;
        if (map.insert(place, key)) {
            place->second = *value;
            return 0;
        }
        *value = place->second;
        return 1;
    }
    bool remove(const Key &key) override { return map.erase(key); }
    void each(const Key *keys, size_t count, uint32_t *values) override {
        for (size_t i = 0; i < count; i++) {
            Map::const_accessor place;
            values[i] = map.find(place, keys[i]) ? place->second : NONE;
        }
    }
    size_t size() override { return map.size(); }
};

struct Rte : Table {
    rte_hash *hash;
    bool lock_free;
    Rte(size_t capacity, bool lock_free, bool several) : lock_free(lock_free) {
        static int number = 0;
        char name[32];
        snprintf(name, sizeof name, "table%d", number++);
        rte_hash_parameters parameters = {};
        parameters.name = name;
        parameters.entries = capacity;
        parameters.key_len = sizeof(Key);
        parameters.hash_func = nullptr;
        if (lock_free) parameters.extra_flag = RTE_HASH_EXTRA_FLAGS_RW_CONCURRENCY_LF;
        if (several && !lock_free) parameters.extra_flag = RTE_HASH_EXTRA_FLAGS_RW_CONCURRENCY;
        if (several) parameters.extra_flag |= RTE_HASH_EXTRA_FLAGS_MULTI_WRITER_ADD;
        hash = rte_hash_create(&parameters);
    }
    ~Rte() override { rte_hash_free(hash); }
    int insert(const Key &key, uint32_t *value) override {
        uint32_t sum = rte_hash_hash(hash, &key);
        void *found;
        if (rte_hash_lookup_with_hash_data(hash, &key, sum, &found) >= 0) {
            *value = uint32_t(uintptr_t(found));
            return 1;
        }
        return rte_hash_add_key_with_hash_data(hash, &key, sum, (void *)uintptr_t(*value)) == 0 ? 0 : 2;
    }
    bool remove(const Key &key) override {
        int32_t position = rte_hash_del_key(hash, &key);
        if (position >= 0 && lock_free) rte_hash_free_key_with_position(hash, position);
        return position >= 0;
    }
    void each(const Key *keys, size_t count, uint32_t *values) override {
        for (size_t i = 0; i < count; i++) {
            void *found;
            values[i] = rte_hash_lookup_data(hash, &keys[i], &found) < 0 ? NONE : uint32_t(uintptr_t(found));
        }
    }
    void batch(const Key *keys, size_t count, uint32_t *values) override {
        for (size_t done = 0; done < count; done += 64) {
            uint32_t part = count - done < 64 ? count - done : 64;
            const void *pointers[64];
            void *data[64];
            uint64_t hits = 0;
            for (uint32_t i = 0; i < part; i++) pointers[i] = &keys[done + i];
            rte_hash_lookup_bulk_data(hash, pointers, part, &hits, data);
            for (uint32_t i = 0; i < part; i++)
                values[done + i] = hits >> i & 1 ? uint32_t(uintptr_t(data[i])) : NONE;
        }
    }
    size_t size() override { return rte_hash_count(hash); }
    void thread(bool begins) override {
        // Its caches are those of DPDK's threads.
        if (begins) rte_thread_register();
        else rte_thread_unregister();
    }
};

struct Urcu : Table {
    struct Node {
        cds_lfht_node node;
        rcu_head head;
        Key key;
        uint32_t value;
    };
    cds_lfht *map;
    explicit Urcu(size_t capacity) {
        size_t buckets = 1;
        while (buckets < capacity) buckets *= 2;
        map = cds_lfht_new(buckets, buckets, buckets, 0, nullptr);
    }
    static int match(cds_lfht_node *node, const void *key) {
        return caa_container_of(node, Node, node)->key == *static_cast<const Key *>(key);
    }
    int insert(const Key &key, uint32_t *value) override {
        Node *node = static_cast<Node *>(malloc(sizeof(Node)));
        node->key = key;
        node->value = *value;
        cds_lfht_node_init(&node->node);
        cds_lfht_node *there = cds_lfht_add_unique(map, crc(key), match, &key, &node->node);
        if (there == &node->node) return 0;
        free(node);
        *value = caa_container_of(there, Node, node)->value;
        return 1;
    }
    Node *find(const Key &key, cds_lfht_iter *at) {
        cds_lfht_lookup(map, crc(key), match, &key, at);
        cds_lfht_node *node = cds_lfht_iter_get_node(at);
        return node ? caa_container_of(node, Node, node) : nullptr;
    }
    bool remove(const Key &key) override {
        cds_lfht_iter at;
        Node *node = find(key, &at);
        if (!node || cds_lfht_del(map, &node->node) != 0) return false;
        call_rcu(&node->head, [](rcu_head *head) { free(caa_container_of(head, Node, head)); });
        return true;
    }
    void each(const Key *keys, size_t count, uint32_t *values) override {
        for (size_t i = 0; i < count; i++) {
            cds_lfht_iter at;
            Node *node = find(keys[i], &at);
            values[i] = node ? node->value : NONE;
        }
    }
    size_t size() override {
        long before, after;
        unsigned long count = 0;
        cds_lfht_count_nodes(map, &before, &count, &after);
        return count;
    }
    void quiescent() override { rcu_quiescent_state(); }
    void thread(bool begins) override {
        if (begins) rcu_register_thread();
        else rcu_unregister_thread();
    }
};

} // namespace

extern "C" {

// Starts DPDK without devices, with ordinary memory that may become huge pages.
int peers_start(const char *megabytes) {
    const char *arguments[] = {"flow",         "--no-huge",   "-m",         megabytes,       "--no-pci", "--no-telemetry",
                               "--no-shconf", "--log-level", "lib.eal:error", "--lcores", "0@0"};
    if (rte_eal_init(sizeof arguments / sizeof *arguments, const_cast<char **>(arguments)) < 0) return -1;
    rte_memseg_walk(
        [](const rte_memseg_list *list, const rte_memseg *, void *) {
            madvise(list->base_va, list->len, MADV_HUGEPAGE);
            // Linux 5.14; a kernel before it finds the memory later.
            madvise(list->base_va, list->len, 23 /* MADV_POPULATE_WRITE */);
            return 1;
        },
        nullptr);
    return 0;
}

Table *peers_new(int kind, size_t capacity) {
    switch (kind) {
    case 0: return new Rte(capacity, false, false);
    case 1: return new Rte(capacity, true, true);
    case 2: return new Rte(capacity, false, true);
    case 3: return mapped<Robin>(capacity, true);
    case 4: return mapped<Hopscotch>(capacity, true);
    case 5: return mapped<Absl>(capacity, false);
    case 6: return mapped<Std>(capacity, false);
    case 7: return new Cuckoo(capacity);
    case 8: return new Tbb(capacity);
    case 9: return new Urcu(capacity);
    default: return nullptr;
    }
}
void peers_free(Table *table) { delete table; }
int peers_insert(Table *table, const Key *key, uint32_t *value) { return table->insert(*key, value); }
bool peers_remove(Table *table, const Key *key) { return table->remove(*key); }
void peers_each(Table *table, const Key *keys, size_t count, uint32_t *values) { table->each(keys, count, values); }
void peers_batch(Table *table, const Key *keys, size_t count, uint32_t *values) { table->batch(keys, count, values); }
size_t peers_size(Table *table) { return table->size(); }
void peers_quiescent(Table *table) { table->quiescent(); }
void peers_thread(Table *table, bool begins) { table->thread(begins); }
}

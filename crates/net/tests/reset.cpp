// Failures of entries and receives: calls say which, with which syndrome; after a reset the queues work again, and other
// queues have not noticed.
#include <dirent.h>
#include <dlfcn.h>
#include <endian.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <thread>
#include <utility>

#include "outboard/net.cuh"

using namespace outboard::net;

// Time for what has to succeed, however busy the machine is.
constexpr uint64_t PATIENCE_NS = 60000000000;

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("line %d: %s\n", __LINE__, #what); \
        return 1; \
    }

void *pages(uint64_t bytes) { return std::memset(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), 0, bytes); }

// Two pairs of queues, and memory of theirs.
struct Four {
    outboard_net *net = nullptr;
    outboard_net_queue of[4];
    uint64_t *data = (uint64_t *)pages(4096);
    uint32_t key = 0;

    bool open(outboard_net_queue_options options)
    {
        uint64_t bytes = outboard_net_queue_bytes(&options);
        if (bytes == 0 || bytes % 4096 != 0) return false;
        if (outboard_net_open(nullptr, &net) != 0 || outboard_net_register(net, data, 4096, 15, &key) != 0) return false;
        for (outboard_net_queue &queue : of)
            if (outboard_net_queue_create(net, pages(bytes), bytes, &options, &queue) != 0) return false;
        return outboard_net_connect(net, of[0].qpn, of[1].qpn) == 0 && outboard_net_connect(net, of[2].qpn, of[3].qpn) == 0;
    }

    Local at(int word) const { return Local{(uint64_t)(data + word), key}; }
    Remote there(int word) const { return Remote{(uint64_t)(data + word), key}; }

    // Whether the second pair moves a word.
    bool others_work() const
    {
        Queue queue(of[2]);
        uint64_t ticket, before = data[500];
        return !queue.put_value(there(500), before + 1, PATIENCE_NS, &ticket) && !queue.wait(ticket, PATIENCE_NS) && data[500] == before + 1;
    }
};

// Whether an adapter executes entries of such a queue, and counts them; and the distance of two generations' tickets.
bool has_adapter(const outboard_net_queue &of) { return (of.flags & OUTBOARD_NET_DIRECT) == 0; }
uint64_t generation(const outboard_net_queue &of) { return has_adapter(of) ? 65536 : (uint64_t)1 << detail::GENERATION_BITS; }

bool is(Failure failure, Cause cause, uint32_t syndrome, Side side, uint64_t entry)
{
    return failure.cause == cause && failure.syndrome == syndrome && failure.side == side && failure.entry == entry;
}

// Whether there is an RDMA device: one that the program was started with.
bool has_device()
{
    const char *provider = std::getenv("OUTBOARD_NET_PROVIDER");
    return provider != nullptr && (std::strcmp(provider, "mlx5") == 0 || std::strcmp(provider, "proxy") == 0);
}

// Interrupts this process's threads of a name, as a profiler does. Returns how many there are.
int interrupt(const char *name)
{
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    sigaction(SIGUSR2, &action, nullptr);
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    while (dirent *task = readdir(tasks)) {
        char path[300], comm[32] = {};
        std::snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = std::fopen(path, "r");
        if (file == nullptr) continue;
        // A thread's name has 15 characters.
        bool is_it = std::fgets(comm, sizeof comm, file) != nullptr && std::strncmp(comm, name, 15) == 0;
        std::fclose(file);
        if (is_it) count += syscall(SYS_tgkill, getpid(), std::atoi(task->d_name), SIGUSR2) == 0;
    }
    closedir(tasks);
    return count;
}

// Whether a call has failed, and said this.
bool refused(int status, const char *why) { return status == -1 && std::strstr(outboard_net_message(), why) != nullptr; }

int failed_receives(uint32_t flags)
{
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 2, 8, flags, 0}));
    Queue from(four.of[0]), to(four.of[1]);
    for (int round = 0; round < 3; ++round) {
        uint64_t receives[4], ticket, sends[4];
        for (int i = 0; i < 4; ++i) EXPECT(!to.post_receive(four.at(i * 8), i == 1 ? 8 : 64, PATIENCE_NS, &receives[i]));
        // All four are posted: there is no room before one is taken.
        EXPECT(is(to.post_receive(four.at(0), 8, 1000000, &ticket), Cause::timeout, 0, Side::receive, receives[3] + 1));
        four.data[100] = 77 + round;
        EXPECT(!from.send_imm(four.at(100), 8, 5, PATIENCE_NS, &sends[0]));
        EXPECT(!from.send(four.at(100), 16, PATIENCE_NS, &sends[1]));
        Received received;
        EXPECT(!to.receive(PATIENCE_NS, &received));
        EXPECT(received.ticket == receives[0] && received.address == four.at(0).address && received.kind == Arrival::send_imm);
        EXPECT(received.bytes == 8 && received.imm == 5 && four.data[0] == 77u + round);
        EXPECT(!from.wait(sends[0], PATIENCE_NS));
        // The receive of 8 bytes is too short: an error of both, and the receives behind it are flushed.
        EXPECT(is(from.wait(sends[1], PATIENCE_NS), Cause::completion, 0x12, Side::send, sends[1]));
        EXPECT(is(from.send(four.at(100), 8, PATIENCE_NS, &sends[2]), Cause::completion, 0x12, Side::send, sends[1]));
        EXPECT(is(to.receive(PATIENCE_NS, &received), Cause::completion, 0x01, Side::receive, receives[1]));
        EXPECT(is(to.receive(PATIENCE_NS, &received), Cause::completion, 0x05, Side::receive, receives[2]));
        EXPECT(is(to.receive(PATIENCE_NS, &received), Cause::completion, 0x05, Side::receive, receives[3]));
        EXPECT(is(to.receive(1000000, &received), Cause::timeout, 0, Side::receive, receives[3] + 1));
        EXPECT(four.others_work());
        EXPECT(outboard_net_reset(four.net, four.of[0].qpn) == 0 && outboard_net_reset(four.net, four.of[1].qpn) == 0);
        EXPECT(to.receive(PATIENCE_NS, &received).cause == Cause::stale && from.wait(sends[0], PATIENCE_NS).cause == Cause::stale);
        EXPECT(to.post_receive(four.at(0), 8, PATIENCE_NS, &ticket).cause == Cause::completion);
        EXPECT(outboard_net_connect(four.net, four.of[0].qpn, four.of[1].qpn) == 0);
    }
    outboard_net_close(four.net);
    return 0;
}

// Sizes 0, 2 GiB, and more; words that are not aligned; a peer whose process is gone, seen from here as one that was reset.
int bad_input()
{
    Four four;
    uint64_t ticket;
    EXPECT(four.open(outboard_net_queue_options{6, 2, 0, OUTBOARD_NET_PLAIN, 0}));
    Queue queue(four.of[0]);
    EXPECT(!queue.put(four.there(0), four.at(8), 0, PATIENCE_NS, &ticket) && !queue.wait(ticket, PATIENCE_NS));
    EXPECT(!queue.get(four.at(8), four.there(0), 0, PATIENCE_NS, &ticket) && !queue.wait(ticket, PATIENCE_NS));
    for (uint64_t bytes : {(1ull << 31) + 1, (1ull << 31) + 8, 4ull << 30}) {
        EXPECT(queue.put(four.there(0), four.at(8), bytes, PATIENCE_NS, &ticket).cause == Cause::invalid);
        EXPECT(queue.get(four.at(8), four.there(0), bytes, PATIENCE_NS, &ticket).cause == Cause::invalid);
        EXPECT(queue.send_imm(four.at(8), bytes, 1, PATIENCE_NS, &ticket).cause == Cause::invalid);
        EXPECT(queue.post_receive(four.at(8), bytes, PATIENCE_NS, &ticket).cause == Cause::invalid);
    }
    EXPECT(!queue.nop(PATIENCE_NS, &ticket) && !queue.wait(ticket, PATIENCE_NS));
    for (int kind = 0; kind < 4; ++kind) {
        uint32_t syndrome[] = {0x04, 0x12, 0x13, 0x15};
        if (kind == 0) EXPECT(!queue.put(four.there(0), four.at(8), 1ull << 31, PATIENCE_NS, &ticket));
        if (kind == 1) EXPECT(!queue.fetch_add(Remote{four.there(0).address + 4, four.key}, 1, four.at(8), PATIENCE_NS, &ticket));
        if (kind == 2) EXPECT(!queue.put_imm(Remote{1, four.key}, four.at(8), 8, 1, PATIENCE_NS, &ticket));
        if (kind == 2) EXPECT(!Queue(four.of[1]).post_receive(Local{0, 0}, 0, PATIENCE_NS, &ticket));
        if (kind == 3) EXPECT(outboard_net_reset(four.net, four.of[1].qpn) == 0);
        // Nobody executes what was posted to nvlink later: a post that looks fails itself.
        if (kind == 3) EXPECT(!queue.put_value(four.there(0), 1, PATIENCE_NS, &ticket) || !has_adapter(four.of[0]));
        Failure failure = queue.flush(PATIENCE_NS);
        // A device may refuse a message of that length before it looks at keys.
        if (kind == 0 && has_device() && failure.syndrome == 0x01) syndrome[0] = 0x01;
        // The end of a peer of nvlink's comes behind all tickets.
        uint64_t entry = kind == 3 && !has_adapter(four.of[0]) ? 4 * generation(four.of[0]) - 1 : kind * generation(four.of[0]);
        EXPECT(is(failure, Cause::completion, syndrome[kind], Side::send, entry + (kind == 0 ? 3 : 0)));
        EXPECT(four.others_work());
        EXPECT(outboard_net_reset(four.net, four.of[0].qpn) == 0 && outboard_net_reset(four.net, four.of[1].qpn) == 0);
        EXPECT(outboard_net_connect(four.net, four.of[0].qpn, four.of[1].qpn) == 0);
    }
    outboard_net_close(four.net);
    return 0;
}

// A thread that was ended after it had reserved, as a killed kernel leaves it: what is posted after it is late, and
// waits for it end at their deadlines.
int ended_in_mid_post()
{
    Four four;
    uint64_t ticket;
    EXPECT(four.open(outboard_net_queue_options{5, 2, 0, 0, 0}));
    for (int counter : {detail::USED, detail::RESERVED}) detail::compare_exchange((uint64_t *)four.of[0].counters + counter, 0, 1);
    detail::compare_exchange((uint64_t *)four.of[1].counters + detail::RECEIVES_RESERVED, 0, 1);
    uint64_t begin = detail::now_ns();
    Queue queue(four.of[0]), receiver(four.of[1]);
    EXPECT(!queue.nop(1000000, &ticket) && ticket == 1);
    EXPECT(is(queue.wait(ticket, 1000000), Cause::timeout, 0, Side::send, 1));
    for (int i = 0; i < 30; ++i) EXPECT(!queue.nop(1000000, &ticket));
    EXPECT(is(queue.nop(1000000, &ticket), Cause::timeout, 0, Side::send, 32));
    EXPECT(is(receiver.post_receive(four.at(0), 8, 1000000, &ticket), Cause::timeout, 0, Side::receive, 1));
    EXPECT(detail::now_ns() - begin < PATIENCE_NS);
    EXPECT(four.others_work());
    EXPECT(outboard_net_reset(four.net, four.of[0].qpn) == -1 && std::strstr(outboard_net_message(), "were ended while they did") != nullptr);
    outboard_net_close(four.net);
    return 0;
}

// What only nvlink does: bytes at any alignment; tickets of two objects; what the other has seen of a failure; and what it
// has not: a network, a second connection.
int threads_without_an_adapter()
{
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 1, 0, 0, 0}));
    char *bytes = (char *)four.data;
    uint64_t ticket = 0, behind = 0;
    Queue queue(four.of[0]), second(four.of[0]);
    for (int from = 0; from < 17; ++from)
        for (int to = 0; to < 17; ++to)
            for (int size : {1, 7, 8, 9, 16, 31, 200}) {
                for (int i = 0; i < 256; ++i) bytes[1024 + i] = (char)(i * 7 + from + to), bytes[2048 + i] = 0;
                Local source{(uint64_t)bytes + 1024 + from, four.key};
                EXPECT(!queue.put(Remote{(uint64_t)bytes + 2048 + to, four.key}, source, size, PATIENCE_NS, &ticket));
                EXPECT(!queue.wait(ticket, 0) && std::memcmp(bytes + 2048 + to, bytes + 1024 + from, size) == 0);
                EXPECT(bytes[2048 + to + size] == 0 && (to == 0 || bytes[2048 + to - 1] == 0));
                EXPECT(!queue.get(Local{(uint64_t)bytes + 3072 + from, four.key}, Remote{(uint64_t)bytes + 2048 + to, four.key}, size, PATIENCE_NS, &ticket));
                EXPECT(!queue.wait(ticket, 0) && std::memcmp(bytes + 3072 + from, bytes + 2048 + to, size) == 0);
            }
    EXPECT(!second.put_value(four.there(0), 5, PATIENCE_NS, &behind) && behind < ticket);
    // A put that goes one byte beyond, and one without the right: neither writes anything.
    four.data[511] = 1;
    EXPECT(!second.put(Remote{(uint64_t)bytes + 4088, four.key}, four.at(0), 9, PATIENCE_NS, &behind) && four.data[511] == 1);
    EXPECT(is(second.wait(behind, 0), Cause::completion, 0x13, Side::send, behind));
    EXPECT(is(queue.wait(ticket, 0), Cause::completion, 0x13, Side::send, behind));
    EXPECT(is(queue.nop(PATIENCE_NS, &ticket), Cause::completion, 0x13, Side::send, behind) && four.others_work());
    EXPECT(refused(outboard_net_connect(four.net, four.of[2].qpn, four.of[3].qpn), "is connected: reset it first"));
    uint32_t key = 0;
    for (int i = 1; i < 56; ++i) EXPECT(outboard_net_register(four.net, four.data, 8, 4, &key) == 0);
    EXPECT(refused(outboard_net_register(four.net, four.data, 8, 4, &key), "56 registrations at most"));
    EXPECT(!Queue(four.of[2]).put(Remote{four.there(0).address, key}, four.at(0), 8, PATIENCE_NS, &ticket));
    EXPECT(is(Queue(four.of[2]).wait(ticket, 0), Cause::completion, 0x13, Side::send, ticket));
    outboard_net_close(four.net);
    outboard_net_options losing = {1, 0, 0, 0, 1, OUTBOARD_NET_NVLINK};
    EXPECT(refused(outboard_net_open(&losing, &four.net), "only nic has a network that loses, delays or limits"));
    return 0;
}

// Two endpoints that meet as processes do, without a GPU: they can offer nothing, have no messages, and see each other's end.
int strangers_to_each_other()
{
    Four four[2];
    for (Four &one : four) EXPECT(one.open(outboard_net_queue_options{6, 1, 0, 0, 0}));
    uint32_t qpn[2];
    outboard_net_queue queues[2];
    outboard_net_window none = {};
    outboard_net_queue_options options = {6, 1, 0, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options), ticket;
    for (int i = 0; i < 2; ++i) EXPECT(outboard_net_queue_create(four[i].net, pages(bytes), bytes, &options, &queues[i]) == 0);
    for (int i = 0; i < 2; ++i) qpn[i] = queues[i].qpn;
    char address[32];
    std::snprintf(address, sizeof address, "127.0.0.1:%d", 20000 + getpid() % 10000);
    outboard_net_window mine = {(uint64_t)four[0].data, 64, four[0].key, 0}, beyond = {(uint64_t)four[0].data, 4097, four[0].key, 0};
    EXPECT(refused(outboard_net_meet(four[0].net, qpn[0], address, 1, 1, &beyond, &none), "no memory is registered by key"));
    EXPECT(refused(outboard_net_meet(four[0].net, qpn[0], address, 1, 1, &mine, &none), "nvlink offers memory of GPUs"));
    EXPECT(refused(outboard_net_meet(four[0].net, four[0].of[0].qpn, address, 1, 1, nullptr, &none), "is connected"));
    for (int round = 0; round < 2; ++round) {
        int met[2];
        std::thread listens([&] { met[0] = outboard_net_meet(four[0].net, qpn[0], address, 1, 60000, nullptr, &none); });
        outboard_net_window theirs = {1, 1, 1, 0};
        met[1] = outboard_net_meet(four[1].net, qpn[1], address, 0, 60000, nullptr, &theirs);
        listens.join();
        EXPECT(met[0] == 0 && met[1] == 0 && theirs.bytes == 0);
        Queue queue(queues[0]);
        EXPECT(!queue.nop(PATIENCE_NS, &ticket) && !queue.wait(ticket, 0));
        uint64_t before = ticket;
        EXPECT(queue.send(four[0].at(0), 8, PATIENCE_NS, &ticket).cause == Cause::unsupported);
        // A signal to a thread that waits for the peer's end is not that.
        for (uint64_t until = detail::now_ns() + PATIENCE_NS; interrupt("outboard-net-peer") < 2; usleep(1000)) EXPECT(detail::now_ns() < until);
        usleep(100000);
        EXPECT(!queue.flush(0) && !Queue(queues[1]).flush(0));
        // A key of the other's that it has not offered.
        if (round == 1) EXPECT(!queue.put(Remote{(uint64_t)four[1].data, four[1].key}, four[0].at(0), 8, PATIENCE_NS, &ticket));
        if (round == 1) EXPECT(is(queue.wait(ticket, 0), Cause::completion, 0x13, Side::send, ticket));
        EXPECT(outboard_net_reset(four[1].net, qpn[1]) == 0);
        uint64_t until = detail::now_ns() + PATIENCE_NS;
        Failure failure{};
        while (!(failure = queue.flush(0)) && detail::now_ns() < until) sched_yield();
        EXPECT(failure.cause == Cause::completion && failure.syndrome == (round == 1 ? 0x13 : 0x15));
        // What was posted before the peer's end is done, and nothing is posted after it.
        EXPECT(!queue.wait(before, 0) && queue.nop(PATIENCE_NS, &ticket).syndrome == failure.syndrome);
        EXPECT(outboard_net_reset(four[0].net, qpn[0]) == 0);
    }
    for (Four &one : four) outboard_net_close(one.net);
    return 0;
}

// More messages and completions than their indices have numbers.
int wrapped(uint32_t flags)
{
    Four four;
    EXPECT(four.open(outboard_net_queue_options{10, 10, 200, flags, 0}));
    Queue from(four.of[0]), to(four.of[1]);
    uint64_t ticket = 0;
    Received received;
    for (uint64_t number = 0; number < 70000; number += 1000) {
        for (int i = 0; i < 1000; ++i) EXPECT(!to.post_receive(four.at(i % 99), 8, PATIENCE_NS, &ticket) && ticket == number + i);
        for (int i = 0; i < 1000; ++i) EXPECT(!from.send_imm(four.at(100), i % 2 * 8, (uint32_t)number + i, PATIENCE_NS, &ticket));
        for (int i = 0; i < 1000; ++i) {
            EXPECT(!to.receive(PATIENCE_NS, &received) && received.ticket == number + i && received.imm == number + i);
            EXPECT(received.bytes == i % 2 * 8u && received.address == four.at(i % 99).address);
        }
    }
    EXPECT(!from.flush(PATIENCE_NS));
    outboard_net_close(four.net);
    return 0;
}

int wrong_key()
{
    static_assert(sizeof(outboard_net_queue) == 96 && sizeof(outboard_net_queue_options) == 24 && sizeof(outboard_net_options) == 40 && sizeof(outboard_net_status) == 32, "as in capi.rs");
    outboard_net *net = nullptr;
    outboard_net_queue one, two;
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    outboard_net_queue_options five = {5, 0, 0, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&five);
    void *memory[3] = {std::aligned_alloc(4096, 16384), std::aligned_alloc(4096, 16384), std::aligned_alloc(4096, 4096)};
    std::memset(memory[2], 0, 4096);
    EXPECT(outboard_net_queue_create(net, memory[0], bytes, &five, &one) == 0);
    EXPECT(outboard_net_queue_create(net, memory[1], bytes, &five, &two) == 0);
    EXPECT(outboard_net_queue_create(net, nullptr, bytes, &five, &two) == -1);
    EXPECT(outboard_net_connect(net, one.qpn, two.qpn) == 0);
    EXPECT(refused(outboard_net_connect(net, two.qpn, one.qpn), "is connected: reset it first"));
    uint64_t *data = (uint64_t *)memory[2];
    uint32_t key = 0;
    EXPECT(outboard_net_register(net, data, 4096, 15, &key) == 0);
    for (int round = 0; round < 3; ++round) {
        Queue queue(one);
        uint64_t good = 0, bad = 0, behind = 0;
        EXPECT(!queue.put_value(Remote{(uint64_t)data, key}, 7 + round, PATIENCE_NS, &good));
        EXPECT(!queue.wait(good, PATIENCE_NS) && data[0] == 7u + round);
        EXPECT(!queue.put(Remote{(uint64_t)data, key + 1}, Local{(uint64_t)data, key}, 8, PATIENCE_NS, &bad));
        Failure failure = queue.wait(bad, PATIENCE_NS);
        EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x13 && failure.entry == bad && failure.qpn == one.qpn);
        failure = queue.nop(PATIENCE_NS, &behind);
        EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x13);
        EXPECT(!queue.wait(good, PATIENCE_NS));
        outboard_net_status status;
        EXPECT(outboard_net_status_of(net, one.qpn, &status) == 0);
        EXPECT(status.succeeded == has_adapter(one) && status.failed_index == 1 && status.syndrome == 0x13);
        EXPECT(outboard_net_reset(net, one.qpn) == 0 && outboard_net_reset(net, two.qpn) == 0);
        EXPECT(queue.wait(good, PATIENCE_NS).cause == Cause::stale);
        EXPECT(queue.nop(PATIENCE_NS, &behind).cause == Cause::completion);
        EXPECT(outboard_net_connect(net, one.qpn, two.qpn) == 0);
        // A failed one is connected, too, until it is put back.
        EXPECT(refused(outboard_net_connect(net, one.qpn, one.qpn), "is connected: reset it first"));
    }
    outboard_net_close(net);
    return 0;
}

// Programs that were built with another header than the library's.
int other_headers()
{
    outboard_net_layout layout = {OUTBOARD_NET_VERSION,         sizeof(outboard_net_queue),  sizeof(outboard_net_queue_options),
                                  sizeof(outboard_net_options), sizeof(outboard_net_status), sizeof(outboard_net_window)};
    outboard_net *net = nullptr;
    layout.queue_options_bytes -= 8;
    EXPECT(outboard_net_open_as(&layout, nullptr, &net) == -1 && net == nullptr);
    EXPECT(std::strstr(outboard_net_message(), "was built with another net.h") != nullptr);
    EXPECT(outboard_net_open_as(nullptr, nullptr, &net) == -1);
    auto old = (int (*)(const outboard_net_options *, outboard_net **))dlsym(RTLD_DEFAULT, "outboard_net_open");
    EXPECT(old != nullptr && old(nullptr, &net) == -1 && net == nullptr);
    EXPECT(std::strstr(outboard_net_message(), "was built with an older net.h") != nullptr);
    return 0;
}

int nonsense_of_networks()
{
    outboard_net *net = nullptr;
    for (auto [options, why] : {std::pair{outboard_net_options{1, 0, 0, 0, 1000001, 0}, "1000001 of a million"},
                                std::pair{outboard_net_options{1, 5, 4, 0, 0, 0}, "take 5 to 4 ns"},
                                std::pair{outboard_net_options{1, 0, UINT64_MAX, 0, 0, 0}, "above 3600000000000"},
                                std::pair{outboard_net_options{1, 0, 0, 0, 0, 5}, "there is no provider 5: auto, mlx5, nic, nvlink, proxy are there"}})
        EXPECT(refused(outboard_net_open(&options, &net), why) && net == nullptr);
    // Without a device, and with one that has no network of ours.
    for (uint32_t provider : {OUTBOARD_NET_MLX5, OUTBOARD_NET_PROXY}) {
        outboard_net_options options = {1, 0, 0, 0, has_device(), provider};
        EXPECT(refused(outboard_net_open(&options, &net), has_device() ? "only nic has a network" : " is not possible here: ") && net == nullptr);
    }
    uint32_t provider = 0;
    EXPECT(outboard_net_provider_named("proxy", &provider) == 0 && provider == OUTBOARD_NET_PROXY);
    EXPECT(refused(outboard_net_provider_named("NIC", &provider), "there is no provider NIC"));
    outboard_net_options all_lost = {1, 4, 4, 1, 1000000, OUTBOARD_NET_NIC};
    EXPECT(outboard_net_open(&all_lost, &net) == 0);
    outboard_net_close(net);
    return 0;
}

// Memory that is not there, or not for that; queues in memory of others, and of sizes that there are not.
int nonsense_of_memory()
{
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 0, 0, 0, 0}));
    uint32_t key = 0;
    char *data = (char *)four.data, *constant = (char *)mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(refused(outboard_net_register(four.net, data, 0, 15, &key), "0 bytes"));
    EXPECT(refused(outboard_net_register(four.net, data, UINT64_MAX, 15, &key), "beyond the end of all addresses"));
    EXPECT(refused(outboard_net_register(four.net, data, 1ull << 46, 15, &key), "are mapped here and may be written"));
    EXPECT(refused(outboard_net_register(four.net, data, 8, 16, &key), "no access 0x10"));
    EXPECT(refused(outboard_net_register(four.net, (void *)0x1000, 8, 0, &key), "are mapped here"));
    EXPECT(refused(outboard_net_register(four.net, constant, 8, 2, &key), "and may be written"));
    EXPECT(key == 0 && outboard_net_register(four.net, constant, 4096, 4, &key) == 0);
    outboard_net_queue_options options = {5, 0, 0, 0, 0}, receives = {5, 16, 0, 0, 0}, far = {5, 0, 0, 0, UINT64_MAX - 63};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    char *memory = (char *)pages(2 * bytes);
    outboard_net_queue queue;
    EXPECT(refused(outboard_net_queue_create(four.net, memory, UINT64_MAX, &options, &queue), "beyond the end of all addresses"));
    EXPECT(refused(outboard_net_queue_create(four.net, memory, 1ull << 46, &options, &queue), "are mapped here"));
    EXPECT(refused(outboard_net_queue_create(four.net, memory, bytes, &receives, &queue), "2^1 to 2^15 receives, or none"));
    EXPECT(refused(outboard_net_queue_create(four.net, memory, bytes, &far, &queue), "beyond the end of all addresses"));
    EXPECT(outboard_net_queue_create(four.net, memory, bytes, &options, &queue) == 0);
    EXPECT(refused(outboard_net_queue_create(four.net, memory, bytes, &options, &queue), "already lies there"));
    outboard_net *other = nullptr;
    EXPECT(outboard_net_open(nullptr, &other) == 0);
    EXPECT(refused(outboard_net_queue_create(other, memory + bytes - 4096, bytes, &options, &queue), "already lies there"));
    EXPECT(outboard_net_queue_create(other, memory + bytes, bytes, &options, &queue) == 0);
    EXPECT(refused(outboard_net_reset_counters(other, queue.qpn, data), "are in its own memory"));
    EXPECT(four.others_work());
    outboard_net_close(other);
    outboard_net_close(four.net);
    // What was closed gives its memory back.
    EXPECT(outboard_net_open(nullptr, &other) == 0);
    EXPECT(outboard_net_queue_create(other, memory, bytes, &options, &queue) == 0);
    outboard_net_close(other);
    return 0;
}

// Queues whose messages nobody answers: of the adapter in software, and of one process.
int unreliable(bool is_adapter)
{
    outboard_net *net = nullptr;
    EXPECT(outboard_net_open(nullptr, &net) == 0);
    outboard_net_queue_options options = {6, 0, 0, OUTBOARD_NET_UNRELIABLE, 0}, reliable = {6, 0, 0, 0, 0};
    uint64_t bytes = outboard_net_queue_bytes(&options);
    outboard_net_queue one, two, other;
    outboard_net_window none;
    if (!is_adapter) {
        EXPECT(refused(outboard_net_queue_create(net, pages(bytes), bytes, &options, &one), "one process with the provider nic"));
        outboard_net_close(net);
        return 0;
    }
    EXPECT(outboard_net_queue_create(net, pages(bytes), bytes, &options, &one) == 0 && outboard_net_queue_create(net, pages(bytes), bytes, &options, &two) == 0);
    EXPECT(outboard_net_queue_create(net, pages(bytes), bytes, &reliable, &other) == 0);
    EXPECT(refused(outboard_net_connect(net, one.qpn, other.qpn), "is unreliable, and the other is not"));
    EXPECT(refused(outboard_net_meet(net, one.qpn, "127.0.0.1:9", 1, 1, nullptr, &none), "one process with the provider nic"));
    EXPECT(outboard_net_connect(net, one.qpn, two.qpn) == 0);
    uint64_t *words = (uint64_t *)pages(4096), ticket;
    uint32_t key;
    EXPECT(outboard_net_register(net, words, 4096, 15, &key) == 0);
    Queue queue(one);
    words[0] = 7;
    EXPECT(!queue.put(Remote{(uint64_t)(words + 8), key}, Local{(uint64_t)words, key}, 8, PATIENCE_NS, &ticket));
    EXPECT(!queue.put(Remote{(uint64_t)(words + 8), key + 1}, Local{(uint64_t)words, key}, 8, PATIENCE_NS, &ticket));
    EXPECT(!queue.wait(ticket, PATIENCE_NS) && words[8] == 7);
    EXPECT(!queue.get(Local{(uint64_t)words, key}, Remote{(uint64_t)(words + 8), key}, 8, PATIENCE_NS, &ticket));
    Failure failure = queue.wait(ticket, PATIENCE_NS);
    EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x02 && failure.entry == ticket);
    outboard_net_close(net);
    return 0;
}

// A signal that a program waits for, blocked in its own threads, comes to no thread of an endpoint.
int signals()
{
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 2, 0, 0, 0}));
    sigset_t waited, before;
    sigemptyset(&waited);
    sigaddset(&waited, SIGUSR1);
    EXPECT(pthread_sigmask(SIG_BLOCK, &waited, &before) == 0 && !sigismember(&before, SIGUSR1) && kill(getpid(), SIGUSR1) == 0);
    // Time for another thread to take it.
    usleep(100000);
    const timespec patience = {60, 0};
    EXPECT(sigtimedwait(&waited, nullptr, &patience) == SIGUSR1 && four.others_work());
    EXPECT(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
    outboard_net_close(four.net);
    return 0;
}

// A wrong entry of two blocks, written out: it fails as one, and the entry behind it is flushed as one.
int wrong_of_two_blocks()
{
    // Nobody here counts what an adapter of hardware flushes.
    const char *provider = std::getenv("OUTBOARD_NET_PROVIDER");
    if (provider != nullptr && std::strcmp(provider, "mlx5") == 0) return 0;
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 2, 0, OUTBOARD_NET_PLAIN, 0}));
    const outboard_net_queue &of = four.of[0];
    uint32_t *ring = (uint32_t *)of.ring;
    auto begin = [&](uint32_t index, uint32_t opcode, uint32_t segments) {
        ring[index * 16] = htobe32(index << 8 | opcode), ring[index * 16 + 1] = htobe32(of.qpn << 8 | segments);
    };
    begin(0, 0x42, 5), begin(2, 0, 1);
    __atomic_store_n((uint32_t *)of.record + 1, htobe32(3), __ATOMIC_RELEASE);
    __atomic_store_n((uint64_t *)of.doorbell, htobe64(3ull << 40 | of.qpn << 8), __ATOMIC_RELEASE);
    outboard_net_rouse(of.doorbell);
    outboard_net_status status = {};
    uint64_t until = detail::now_ns() + PATIENCE_NS;
    while (outboard_net_status_of(four.net, of.qpn, &status) == 0 && status.flushed == 0 && detail::now_ns() < until) sched_yield();
    EXPECT(status.failed_index == 0 && status.syndrome == 0x02 && status.flushed == 1 && four.others_work());
    outboard_net_close(four.net);
    return 0;
}

// A forked child has none of the endpoint's threads: it may close it, or open one of its own, and the parent goes on.
int forked()
{
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 2, 0, 0, 0}));
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(60);
        const char *why = "from which this one was forked";
        outboard_net *net = four.net, *own = nullptr;
        outboard_net_queue_options options = {6, 2, 0, 0, 0};
        uint64_t bytes = outboard_net_queue_bytes(&options);
        outboard_net_queue queue;
        outboard_net_status status;
        outboard_net_window none;
        uint32_t key, qpn = four.of[0].qpn;
        bool is_refused = refused(outboard_net_reset(net, qpn), why) && refused(outboard_net_register(net, four.data, 64, 15, &key), why) &&
                          refused(outboard_net_queue_create(net, pages(bytes), bytes, &options, &queue), why) &&
                          refused(outboard_net_connect(net, qpn, qpn), why) && refused(outboard_net_status_of(net, qpn, &status), why) &&
                          refused(outboard_net_reset_counters(net, qpn, four.data), why) &&
                          refused(outboard_net_meet(net, qpn, "127.0.0.1:9", 1, 1, nullptr, &none), why);
        bool has_none = outboard_net_provider_of(net) == nullptr && outboard_net_way_of(net, qpn) == nullptr && outboard_net_place_of(net) == nullptr;
        outboard_net_close(net);
        // Devices of nic run are not for forked children.
        bool is_own = has_device() || (outboard_net_open(nullptr, &own) == 0 && outboard_net_queue_create(own, pages(bytes), bytes, &options, &queue) == 0);
        if (own != nullptr) outboard_net_close(own);
        _exit(!is_refused ? 1 : !has_none ? 2 : !is_own ? 3 : 0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    if (status != 0) std::printf("the child has ended with %#x\n", status);
    EXPECT(status == 0 && four.others_work());
    outboard_net_close(four.net);
    return 0;
}

// An adapter that takes no commands has its completions in a ring, asked for or not.
int by_verbs_alone()
{
    const char *commands = std::getenv("OUTBOARD_NIC_COMMANDS"), *provider = std::getenv("OUTBOARD_NET_PROVIDER");
    if (commands == nullptr || std::strcmp(provider, "mlx5") != 0) return 0;
    Four four;
    EXPECT(four.open(outboard_net_queue_options{6, 2, 0, 0, 0}));
    EXPECT(((four.of[0].flags & OUTBOARD_NET_PLAIN) != 0) == (std::strcmp(commands, "0") == 0));
    outboard_net_close(four.net);
    return 0;
}

int main()
{
    if (by_verbs_alone() || other_headers() || nonsense_of_networks() || nonsense_of_memory()) return 1;
    for (uint32_t flags : {0u, (uint32_t)OUTBOARD_NET_PLAIN})
        if (failed_receives(flags) || wrapped(flags)) return 1;
    if (wrong_key() || bad_input() || forked() || signals()) return 1;
    const char *provider = std::getenv("OUTBOARD_NET_PROVIDER");
    if (unreliable(provider == nullptr || std::strcmp(provider, "nic") == 0)) return 1;
    return provider != nullptr && std::strcmp(provider, "nvlink") == 0 ? threads_without_an_adapter() || strangers_to_each_other()
                                                                        : ended_in_mid_post() || wrong_of_two_blocks();
}

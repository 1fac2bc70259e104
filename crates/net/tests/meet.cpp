// Two processes with an adapter each: every operation between them, failures, a second meeting, a peer that dies, and one
// that is killed in the midst of its writes.
//   meet PORT WAY [DEVICE]    WAY is none of devices
// With DEVICE, as OUTBOARD_RDMA names one, the process that is written to uses that.
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "outboard/net.cuh"

using namespace outboard::net;

constexpr uint64_t PATIENCE_NS = 60000000000;
static const char *way;
constexpr uint64_t WORDS = 32768, BYTES = WORDS * 8;

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("%s, line %d: %s (%s)\n", name, __LINE__, #what, outboard_net_message()); \
        std::fflush(stdout); \
        return 1; \
    }

// What a process offers: words, counters, a flag.
struct Area {
    uint64_t words[WORDS], sum, swap, flag, results[2], late, message[8];
};

struct End {
    outboard_net *net = nullptr;
    outboard_net_queue of;
    Area *area = nullptr;
    uint32_t key = 0;
    outboard_net_window theirs = {};

    Local here(const void *at) const { return Local{(uint64_t)at, key}; }
    Remote there(size_t offset) const { return Remote{theirs.address + offset, theirs.key}; }

    bool open()
    {
        outboard_net_queue_options options = {6, 2, 4, OUTBOARD_NET_PATIENT, 0};
        uint64_t bytes = outboard_net_queue_bytes(&options), whole = (sizeof(Area) + 4095) / 4096 * 4096;
        area = (Area *)std::memset(std::aligned_alloc(4096, whole), 0, whole);
        void *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        return outboard_net_open(nullptr, &net) == 0 && outboard_net_register(net, area, whole, 15, &key) == 0 &&
               outboard_net_queue_create(net, memory, bytes, &options, &of) == 0;
    }

    // Devices have no such way.
    bool is_by_way() const
    {
        const char *by = outboard_net_way_of(net, of.qpn);
        return std::strcmp(by ? by : "none", way) == 0;
    }

    bool meet(const char *address, bool listens)
    {
        outboard_net_window mine = {(uint64_t)area, sizeof(Area), key, 0};
        return outboard_net_meet(net, of.qpn, address, listens, 60000, &mine, &theirs) == 0 && theirs.bytes == sizeof(Area) &&
               is_by_way();
    }
};

// Writes until the other does not answer, which takes a bounded time.
static Failure gone(Queue &queue, Remote to)
{
    Failure failure{};
    uint64_t ticket, begin = detail::now_ns();
    while (!failure && detail::now_ns() - begin < PATIENCE_NS) {
        failure = queue.put_value(to, 1, PATIENCE_NS, &ticket);
        if (!failure) failure = queue.wait(ticket, PATIENCE_NS);
    }
    return failure;
}

// The process that is written to: it answers each message by one with the sum of its words.
static int serve(const char *address)
{
    const char *name = "server";
    End end;
    EXPECT(end.open());
    for (uint64_t meeting = 1;; ++meeting) {
        EXPECT(end.meet(address, true));
        Queue queue(end.of);
        uint64_t ticket;
        EXPECT(!queue.post_receive(end.here(end.area->message), 64, PATIENCE_NS, &ticket));
        Received received;
        EXPECT(!queue.receive(PATIENCE_NS, &received) && received.kind == Arrival::send_imm && received.imm == meeting && received.bytes == 16);
        EXPECT(end.area->flag == meeting && end.area->message[0] == meeting);
        uint64_t sum = 0;
        for (uint64_t word : end.area->words) sum += word;
        EXPECT(!queue.put_value(end.there(offsetof(Area, flag)), sum, PATIENCE_NS, &ticket));
        EXPECT(!queue.wait(ticket, PATIENCE_NS));
        if (meeting == 2) {
            EXPECT(poll_slot(&end.area->flag, meeting + 100, PATIENCE_NS));
            _exit(0);
        }
        // The client's queue fails and is reset: it does not answer any more.
        Failure failure = gone(queue, end.there(offsetof(Area, late)));
        EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x15);
        EXPECT(outboard_net_reset(end.net, end.of.qpn) == 0);
    }
}

static int use(const char *address)
{
    const char *name = "client";
    End end;
    EXPECT(end.open());
    EXPECT(outboard_net_meet(end.net, end.of.qpn, "192.0.2.1:9", 0, 10, nullptr, &end.theirs) == -1);
    EXPECT(std::strstr(outboard_net_message(), "loopback") != nullptr);
    Area *area = end.area;
    for (uint64_t meeting = 1; meeting <= 2; ++meeting) {
        EXPECT(end.meet(address, false));
        Queue queue(end.of);
        uint64_t ticket, sum = 0;
        for (uint64_t i = 0; i < WORDS; ++i) sum += area->words[i] = (i + 1) * 0x9e3779b97f4a7c15u * meeting;
        EXPECT(!queue.put(end.there(0), end.here(area->words), BYTES, PATIENCE_NS, &ticket));
        for (uint64_t i = 0; i < 100; ++i) {
            EXPECT(!queue.fetch_add(end.there(offsetof(Area, sum)), 3, end.here(area->results), PATIENCE_NS, &ticket));
            EXPECT(!queue.wait(ticket, PATIENCE_NS) && area->results[0] == ((meeting - 1) * 100 + i) * 3);
        }
        EXPECT(!queue.compare_swap(end.there(offsetof(Area, swap)), meeting - 1, meeting, end.here(area->results), PATIENCE_NS, &ticket));
        EXPECT(!queue.compare_swap(end.there(offsetof(Area, swap)), 99, 0, end.here(area->results + 1), PATIENCE_NS, &ticket));
        EXPECT(!queue.signal_set(end.there(offsetof(Area, flag)), meeting, PATIENCE_NS, &ticket));
        area->message[0] = meeting;
        EXPECT(!queue.send_imm(end.here(area->message), 16, (uint32_t)meeting, PATIENCE_NS, &ticket));
        EXPECT(!queue.wait(ticket, PATIENCE_NS) && area->results[0] == meeting - 1 && area->results[1] == meeting);
        EXPECT(poll_slot(&area->flag, sum, PATIENCE_NS));
        std::memset(area->words, 0, BYTES);
        EXPECT(!queue.get(end.here(area->words), end.there(0), BYTES, PATIENCE_NS, &ticket) && !queue.wait(ticket, PATIENCE_NS));
        for (uint64_t i = 0; i < WORDS; ++i) EXPECT(area->words[i] == (i + 1) * 0x9e3779b97f4a7c15u * meeting);
        if (meeting == 2) {
            EXPECT(!queue.signal_set(end.there(offsetof(Area, flag)), meeting + 100, PATIENCE_NS, &ticket));
            break;
        }
        // More than a message between processes has.
        outboard_net_window whole = {};
        char *large = (char *)std::calloc(1, (16 << 20) + 8);
        EXPECT(outboard_net_register(end.net, large, (16 << 20) + 8, 0, &whole.key) == 0);
        EXPECT(!queue.put(end.there(0), Local{(uint64_t)large, whole.key}, (16 << 20) + 8, PATIENCE_NS, &ticket));
        Failure failure = queue.wait(ticket, PATIENCE_NS);
        EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x01 && failure.entry == ticket);
        EXPECT(outboard_net_reset(end.net, end.of.qpn) == 0);
    }
    // The server is gone, between a doorbell and its completion or before.
    Queue queue(end.of);
    Failure failure = gone(queue, end.there(offsetof(Area, words)));
    EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x15);
    outboard_net_close(end.net);
    return 0;
}

// The process that writes and reads without end.
static int write_on(const char *address)
{
    const char *name = "writer";
    End end;
    EXPECT(end.open() && end.meet(address, false));
    Queue queue(end.of);
    for (uint64_t generation = 1;; ++generation) {
        uint64_t ticket;
        EXPECT(!queue.put(end.there(0), end.here(end.area->words), BYTES, PATIENCE_NS, &ticket));
        EXPECT(!queue.get(end.here(end.area->words), end.there(0), BYTES, PATIENCE_NS, &ticket));
        EXPECT(!queue.signal_set(end.there(offsetof(Area, flag)), generation, PATIENCE_NS, &ticket) && !queue.wait(ticket, PATIENCE_NS));
    }
}

// The process that kills it.
static int kill_it(const char *address, pid_t child)
{
    const char *name = "killer";
    End end;
    EXPECT(end.open() && end.meet(address, true));
    Queue queue(end.of);
    // The writer does not wait to be seen: single generations may be missed.
    uint64_t begin = detail::now_ns();
    while (detail::load_acquire(&end.area->flag) < 3 && detail::now_ns() - begin < PATIENCE_NS) sched_yield();
    EXPECT(detail::load_acquire(&end.area->flag) >= 3);
    uint64_t ticket;
    EXPECT(!queue.put(end.there(0), end.here(end.area->words), BYTES, PATIENCE_NS, &ticket));
    kill(child, SIGKILL);
    Failure failure = gone(queue, end.there(offsetof(Area, late)));
    EXPECT(failure.cause == Cause::completion && failure.syndrome == 0x15);
    outboard_net_close(end.net);
    return 0;
}

int main(int count, char **values)
{
    const char *name = "both";
    std::string address = std::string("127.0.0.1:") + values[1];
    way = values[2];
    // All begin before a device is used, which a child of fork would not have. The writer waits for its turn.
    int turn[2];
    EXPECT(pipe(turn) == 0);
    pid_t writer = fork();
    EXPECT(writer >= 0);
    if (writer == 0) {
        char begins = 0;
        close(turn[1]);
        _exit(read(turn[0], &begins, 1) == 1 ? write_on(address.c_str()) : 1);
    }
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) close(turn[1]);
    if (child == 0 && count > 3) setenv("OUTBOARD_RDMA", values[3], 1);
    if (child == 0) _exit(serve(address.c_str()));
    int failed = use(address.c_str()), status = 0;
    if (failed) return 1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(write(turn[1], "", 1) == 1);
    failed = kill_it(address.c_str(), writer);
    if (failed) kill(writer, SIGKILL);
    EXPECT(waitpid(writer, &status, 0) == writer && WIFSIGNALED(status));
    return failed;
}

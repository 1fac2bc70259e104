// Two processes, and entries that the one or the other side refuses: each has its syndrome, what is posted behind it is
// flushed and executed nowhere, and after resets both queues work again. Memory that is registered after the meeting has
// a key, too.
//   refused PORT [KIND [DEVICE]]    KIND: endless, nobody gives a missing receive up; unseen, what nobody has looked at is not
//                                      counted; device, what receivers find is as software RoCE says it
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
static std::string kind;

#define EXPECT(what) \
    if (!(what)) { \
        std::printf("%s, case %d, line %d: %s (%s)\n", name, number, __LINE__, #what, outboard_net_message()); \
        std::fflush(stdout); \
        return 1; \
    }

enum Case { RIGHT, KEY, RANGE, RIGHTS, LOCAL_KEY, ALIGNMENT, LENGTH, RECEIVE_KEY, NO_RECEIVE, CASES };
static const uint32_t expected[CASES] = {0, 0x13, 0x13, 0x13, 0x04, 0x12, 0x12, 0x14, 0x16};

struct Area {
    uint64_t words[16], behind, flag;
};

struct Told {
    uint64_t address;
    uint32_t key;
};

struct End {
    outboard_net *net = nullptr;
    // One that waits for receives without end, as peers may post them late, and one that does not.
    outboard_net_queue queues[2], of;
    Area *area = nullptr, *late = nullptr;
    uint32_t key = 0, read_key = 0;
    outboard_net_window theirs = {};

    static void *pages(uint64_t bytes) { return std::memset(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), 0, bytes); }

    bool open()
    {
        outboard_net_queue_options options = {6, 2, 1, OUTBOARD_NET_PLAIN | OUTBOARD_NET_PATIENT, 0};
        uint64_t bytes = outboard_net_queue_bytes(&options);
        outboard_net_queue_options hasty = options;
        hasty.flags = OUTBOARD_NET_PLAIN;
        area = (Area *)pages(sizeof(Area));
        late = (Area *)pages(sizeof(Area));
        return outboard_net_open(nullptr, &net) == 0 && outboard_net_register(net, area, sizeof(Area), 15, &key) == 0 &&
               outboard_net_register(net, area, sizeof(Area), OUTBOARD_NET_REMOTE_READ, &read_key) == 0 &&
               outboard_net_queue_create(net, pages(bytes), bytes, &options, &queues[0]) == 0 &&
               outboard_net_queue_create(net, pages(bytes), bytes, &hasty, &queues[1]) == 0;
    }

    bool meet(int number, const char *address, bool listens, uint32_t offered)
    {
        of = queues[number == NO_RECEIVE];
        outboard_net_window mine = {(uint64_t)area, sizeof(Area), offered, 0};
        return outboard_net_meet(net, of.qpn, address, listens, 60000, &mine, &theirs) == 0;
    }

    uint64_t flushed() const
    {
        outboard_net_status status;
        return outboard_net_status_of(net, of.qpn, &status) == 0 ? status.flushed : 0;
    }
};

static int serve(const char *address, int from, int to)
{
    const char *name = "server";
    int number = 0;
    End end;
    EXPECT(end.open());
    for (number = 0; number < CASES; ++number) {
        if (number == NO_RECEIVE && kind == "endless") continue;
        EXPECT(end.meet(number, address, true, number == RIGHTS ? end.read_key : end.key));
        Queue queue(end.of);
        uint64_t ticket;
        Local into{(uint64_t)end.area->words, number == RECEIVE_KEY ? end.key + 0x5500 : end.key};
        if (number != NO_RECEIVE) EXPECT(!queue.post_receive(into, 8, PATIENCE_NS, &ticket));
        Told told = {(uint64_t)end.late, 0};
        if (number == RIGHT) EXPECT(outboard_net_register(end.net, end.late, sizeof(Area), 15, &told.key) == 0);
        EXPECT(write(to, &told, sizeof told) == sizeof told);
        char done;
        EXPECT(read(from, &done, 1) == 1);
        EXPECT(end.area->behind == 0);
        if (number == RIGHT) EXPECT(poll_slot(&end.late->flag, 7, PATIENCE_NS) && end.late->words[3] == 5);
        if (number == LENGTH || number == RECEIVE_KEY) {
            Received received;
            Failure failure = queue.receive(PATIENCE_NS, &received);
            EXPECT(failure.cause == Cause::completion && failure.side == Side::receive);
            EXPECT(kind == "device" || failure.syndrome == (number == LENGTH ? 0x01u : 0x04u));
        }
        EXPECT(outboard_net_reset(end.net, end.of.qpn) == 0);
    }
    outboard_net_close(end.net);
    return 0;
}

static Failure wrong(Queue &queue, End &end, int number, uint64_t *ticket)
{
    Local here{(uint64_t)end.area->words, end.key};
    Remote there{end.theirs.address, end.theirs.key};
    switch (number) {
    case KEY: return queue.put({there.address, there.key + 0x5500}, here, 8, PATIENCE_NS, ticket);
    case RANGE: return queue.put({there.address + sizeof(Area) - 4, there.key}, here, 8, PATIENCE_NS, ticket);
    case RIGHTS: return queue.put(there, here, 8, PATIENCE_NS, ticket);
    case LOCAL_KEY: return queue.put(there, {here.address, here.key + 0x5500}, 8, PATIENCE_NS, ticket);
    case ALIGNMENT: return queue.fetch_add({there.address + 4, there.key}, 1, here, PATIENCE_NS, ticket);
    case LENGTH: return queue.send(here, 16, PATIENCE_NS, ticket);
    default: return queue.send(here, 8, PATIENCE_NS, ticket);
    }
}

static int use(const char *address, int from, int to)
{
    const char *name = "client";
    int number = 0;
    End end;
    EXPECT(end.open());
    for (number = 0; number < CASES; ++number) {
        if (number == NO_RECEIVE && kind == "endless") continue;
        EXPECT(end.meet(number, address, false, end.key));
        Told told;
        EXPECT(read(from, &told, sizeof told) == sizeof told);
        Queue queue(end.of);
        uint64_t ticket, later;
        if (number == RIGHT) {
            end.area->words[0] = 5;
            Remote late{told.address, told.key};
            EXPECT(!queue.put({late.address + 24, late.key}, {(uint64_t)end.area->words, end.key}, 8, PATIENCE_NS, &ticket));
            EXPECT(!queue.signal_set({late.address + offsetof(Area, flag), late.key}, 7, PATIENCE_NS, &ticket));
            EXPECT(!queue.wait(ticket, PATIENCE_NS));
        } else {
            // Behind one that is right, and before three.
            Remote behind{end.theirs.address + offsetof(Area, behind), end.theirs.key};
            queue.hold();
            EXPECT(!queue.nop(PATIENCE_NS, &ticket));
            EXPECT(!wrong(queue, end, number, &ticket));
            for (int i = 0; i < 3; ++i) EXPECT(!queue.put_value(behind, 9, PATIENCE_NS, &later));
            queue.ring();
            Failure failure = queue.wait(later, PATIENCE_NS);
            // Software RoCE says of a receive that is too short what it says of a wrong one.
            bool is_rough = kind == "device" && number == LENGTH && failure.syndrome == expected[RECEIVE_KEY];
            if (failure.syndrome != expected[number]) std::printf("syndrome %02x\n", failure.syndrome);
            EXPECT(failure.cause == Cause::completion && failure.entry == ticket);
            EXPECT(failure.syndrome == expected[number] || is_rough);
            uint64_t begin = detail::now_ns();
            while (end.flushed() < 3 && kind != "unseen" && detail::now_ns() - begin < PATIENCE_NS) usleep(100);
            EXPECT(kind == "unseen" || end.flushed() == 3);
        }
        EXPECT(write(to, "", 1) == 1);
        EXPECT(outboard_net_reset(end.net, end.of.qpn) == 0);
        EXPECT(queue.wait(ticket, PATIENCE_NS).cause == Cause::stale);
    }
    outboard_net_close(end.net);
    return 0;
}

int main(int count, char **values)
{
    const char *name = "both";
    int number = 0, there[2], back[2], status = 0;
    std::string address = std::string("127.0.0.1:") + values[1];
    if (count > 2) kind = values[2];
    EXPECT(pipe(there) == 0 && pipe(back) == 0);
    // Both begin before a device is used, which a child of fork would not have.
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        close(there[1]);
        if (count > 3) setenv("OUTBOARD_RDMA", values[3], 1);
        _exit(serve(address.c_str(), there[0], back[1]));
    }
    close(back[1]);
    int failed = use(address.c_str(), back[0], there[1]);
    close(there[1]);
    EXPECT(waitpid(child, &status, 0) == child);
    return failed || status != 0;
}

// Two processes, each with verbs' own queues on the adapter: every operation, errors by their names, a peer that writes
// rubbish into the memory of both, and a peer's death.
//   queues shm|tcp      how entries travel: by memory of both, or over the socket
//   queues unlike       each process wants another way
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define CHECK(is) \
    if (!(is)) { \
        printf("%s, line %d: %s, errno %d\n", role, __LINE__, #is, errno); \
        fflush(stdout); \
        _exit(1); \
    }
#define FAILS(call, number) CHECK((errno = 0, !(call)) && errno == (number))

enum { BYTES = 4096, DEPTH = 4, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

struct end {
    uint32_t qpn, rkey;
    uint64_t address;
};

static const char *role = "parent";
static int peer_socket, retries = 7;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qp;
static struct end there;
static union ibv_gid gid;
static uint64_t *words;

static int modify(int state, int mask, int access)
{
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qp_access_flags = access, .path_mtu = IBV_MTU_4096, .dest_qp_num = there.qpn};
    attr.ah_attr.is_global = 1, attr.ah_attr.port_num = 1, attr.ah_attr.grh.dgid = gid;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4, attr.timeout = 14, attr.retry_cnt = retries, attr.rnr_retry = 1;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static const int INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int RTR = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int RTS = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

static void meet(void)
{
    char ready = 0;
    CHECK(write(peer_socket, &ready, 1) == 1 && read(peer_socket, &ready, 1) == 1);
}

static void make(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    words = aligned_alloc(4096, BYTES);
    memset(words, 0, BYTES);
    CHECK(context && (pd = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(pd, words, BYTES, ALL)) && ibv_query_gid(context, 1, 0, &gid) == 0);
    CHECK((channel = ibv_create_comp_channel(context)) && (cq = ibv_create_cq(context, 16, &gid, channel, 0)) && cq->cqe >= 16);
    FAILS(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {DEPTH, DEPTH, 2, 1, 100}};
    FAILS(ibv_create_qp(pd, &asked), EOPNOTSUPP);
    asked.qp_type = IBV_QPT_RC, asked.cap.max_recv_sge = 2;
    FAILS(ibv_create_qp(pd, &asked), EINVAL);
    asked.cap.max_recv_sge = 1;
    CHECK((qp = ibv_create_qp(pd, &asked)) && asked.cap.max_send_wr >= DEPTH && asked.cap.max_inline_data >= 100);
    CHECK(ibv_qp_to_qp_ex(qp) == NULL && ibv_destroy_cq(cq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    struct ibv_device_attr_ex more;
    struct ibv_cq_init_attr_ex other = {.cqe = 1, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN}, plain = {.cqe = 3};
    CHECK(ibv_query_device_ex(context, NULL, &more) == 0 && more.orig_attr.max_sge == 1 && more.phys_port_cnt_ex == 1);
    FAILS(ibv_create_cq_ex(context, &other), EOPNOTSUPP);
    struct ibv_poll_cq_attr from = {0};
    struct ibv_cq_ex *polled = ibv_create_cq_ex(context, &plain);
    CHECK(polled && polled->cqe == 3 && ibv_start_poll(polled, &from) == EOPNOTSUPP && ibv_destroy_cq(ibv_cq_ex_to_cq(polled)) == 0);
}

// Both ends come to ready, after the reset of both.
static void join(int access)
{
    struct end here = {qp->qp_num, mr->rkey, (uint64_t)words};
    meet();
    CHECK(write(peer_socket, &here, sizeof here) == sizeof here && read(peer_socket, &there, sizeof there) == sizeof there);
    CHECK(modify(IBV_QPS_RTR, RTR, 0) == EINVAL);  // not from reset
    CHECK(modify(IBV_QPS_INIT, INIT & ~IBV_QP_PORT, access) == EINVAL && modify(IBV_QPS_INIT, INIT, access) == 0);
    CHECK(modify(IBV_QPS_RTR, RTR, 0) == 0 && modify(IBV_QPS_RTS, RTS, 0) == 0 && qp->state == IBV_QPS_RTS);
    meet();
}

static void ready(void)
{
    CHECK(modify(IBV_QPS_INIT, INIT, ALL) == 0 && modify(IBV_QPS_RTR, RTR, 0) == 0 && modify(IBV_QPS_RTS, RTS, 0) == 0);
}

static void reset(void)
{
    struct ibv_wc completion;
    meet();
    CHECK(modify(IBV_QPS_RESET, 0, 0) == 0 && ibv_poll_cq(cq, 1, &completion) == 0);
}

static int receive(uint64_t id, int word, uint32_t bytes)
{
    struct ibv_sge into = {(uint64_t)&words[word], bytes, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &into, .num_sge = bytes > 0}, *bad = NULL;
    int failed = ibv_post_recv(qp, &wr, &bad);
    CHECK(!failed == !bad);
    return failed;
}

struct request {
    int opcode, flags, word;
    uint32_t bytes, lkey, rkey;
    uint64_t remote, first, second;
};

static int post(uint64_t id, struct request of)
{
    struct ibv_sge from = {(uint64_t)&words[of.word], of.bytes, of.lkey ? of.lkey : mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &from, .num_sge = 1, .opcode = of.opcode, .send_flags = of.flags, .imm_data = 0x01020304}, *bad = NULL;
    uint32_t rkey = of.rkey ? of.rkey : there.rkey;
    uint64_t remote = there.address + of.remote;
    if (of.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || of.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = remote, wr.wr.atomic.rkey = rkey, wr.wr.atomic.compare_add = of.first, wr.wr.atomic.swap = of.second;
    } else {
        wr.wr.rdma.remote_addr = remote, wr.wr.rdma.rkey = rkey;
    }
    int failed = ibv_post_send(qp, &wr, &bad);
    CHECK(!failed == !bad);
    return failed;
}

static struct ibv_wc completion(void)
{
    struct ibv_wc next;
    time_t end = time(NULL) + 30;
    int polled;
    while ((polled = ibv_poll_cq(cq, 1, &next)) == 0) CHECK(time(NULL) < end);
    CHECK(polled == 1 && next.qp_num == qp->qp_num);
    return next;
}

static void expect(uint64_t id, int status, int opcode)
{
    struct ibv_wc next = completion();
    if (next.wr_id != id || (int)next.status != status || (status == 0 && (int)next.opcode != opcode)) {
        printf("%s: request %lu has status %d (%s), opcode %d; request %lu with %d, %d was expected\n", role, next.wr_id, next.status,
               ibv_wc_status_str(next.status), next.opcode, id, status, opcode);
        fflush(stdout);
        _exit(1);
    }
}

static void exchange_as_parent(void)
{
    CHECK(modify(IBV_QPS_INIT, INIT, ALL) == EINVAL);
    words[0] = 11, words[1] = 22;
    CHECK(post(1, (struct request){IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 16}) == 0);
    CHECK(post(2, (struct request){IBV_WR_RDMA_WRITE, 0, 0, 16, .remote = 64}) == 0);
    CHECK(post(3, (struct request){IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 0, 16, .remote = 128}) == 0);
    expect(1, 0, IBV_WC_SEND);
    expect(3, 0, IBV_WC_RDMA_WRITE);
    CHECK(post(4, (struct request){IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 8, 24, .remote = 128}) == 0);
    expect(4, 0, IBV_WC_RDMA_READ);
    CHECK(words[8] == 11 && words[9] == 22 && words[10] == 77);
    CHECK(post(5, (struct request){IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED | IBV_SEND_FENCE, 8, 8, .remote = 144, .first = 3}) == 0);
    expect(5, 0, IBV_WC_FETCH_ADD);
    CHECK(words[8] == 77);
    CHECK(post(6, (struct request){IBV_WR_ATOMIC_CMP_AND_SWP, IBV_SEND_SIGNALED, 9, 8, .remote = 144, .first = 80, .second = 5}) == 0);
    expect(6, 0, IBV_WC_COMP_SWAP);
    CHECK(words[9] == 80);
    CHECK(post(7, (struct request){IBV_WR_LOCAL_INV}) == EOPNOTSUPP && post(7, (struct request){IBV_WR_SEND, IBV_SEND_IP_CSUM}) == EOPNOTSUPP);
    CHECK(post(7, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 0, 1024}) == EINVAL);
    meet();
}

static void exchange_as_child(void)
{
    struct ibv_cq *of = NULL;
    void *about = NULL;
    words[18] = 77;
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    FAILS(!ibv_get_cq_event(channel, &of, &about), EAGAIN);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    CHECK(receive(50, 0, 32) == 0 && receive(51, 0, 0) == 0);
    struct pollfd event = {channel->fd, POLLIN, 0};
    CHECK(poll(&event, 1, 30000) == 1 && ibv_get_cq_event(channel, &of, &about) == 0 && of == cq && about == &gid);
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc next = completion();
    CHECK(next.wr_id == 50 && next.opcode == IBV_WC_RECV && next.byte_len == 16 && next.wc_flags == 0 && words[0] == 11 && words[1] == 22);
    next = completion();
    CHECK(next.wr_id == 51 && next.opcode == IBV_WC_RECV_RDMA_WITH_IMM && next.wc_flags == IBV_WC_WITH_IMM && next.imm_data == 0x01020304);
    CHECK(words[8] == 11 && words[9] == 22 && words[16] == 11 && next.byte_len == 16);
    meet();
    CHECK(words[18] == 5);
}

// Who waits for what is solicited alone is not told of other messages.
static void solicit(int is_parent)
{
    struct request one = {IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 8};
    if (is_parent) {
        meet();
        CHECK(post(60, one) == 0);
        expect(60, 0, IBV_WC_SEND);
        meet();
        one.flags |= IBV_SEND_SOLICITED;
        CHECK(post(61, one) == 0);
        expect(61, 0, IBV_WC_SEND);
        return meet();
    }
    struct ibv_cq *of;
    void *about;
    CHECK(receive(60, 0, 8) == 0 && receive(61, 0, 8) == 0 && ibv_req_notify_cq(cq, 1) == 0);
    meet();
    expect(60, 0, IBV_WC_RECV);
    FAILS(!ibv_get_cq_event(channel, &of, &about), EAGAIN);
    meet();
    struct pollfd event = {channel->fd, POLLIN, 0};
    CHECK(poll(&event, 1, 30000) == 1 && ibv_get_cq_event(channel, &of, &about) == 0 && of == cq);
    ibv_ack_cq_events(cq, 1);
    expect(61, 0, IBV_WC_RECV);
    meet();
}

// What the parent asks for wrongly, with the status that it gets.
static const struct {
    int status, access;
    struct request of;
} WRONG[] = {
    {IBV_WC_REM_ACCESS_ERR, ALL, {IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8, .rkey = 0x7700}},
    {IBV_WC_REM_ACCESS_ERR, ALL, {IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0, 8, .remote = BYTES - 4}},
    {IBV_WC_LOC_PROT_ERR, ALL, {IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8, .lkey = 0x7700}},
    {IBV_WC_REM_INV_REQ_ERR, ALL, {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, 0, 8, .remote = 4}},
    {IBV_WC_REM_INV_REQ_ERR, IBV_ACCESS_REMOTE_WRITE, {IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0, 8}},
    {IBV_WC_REM_INV_REQ_ERR, IBV_ACCESS_REMOTE_READ, {IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8}},
    {IBV_WC_RNR_RETRY_EXC_ERR, ALL, {IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 8}},
};
enum { WRONGS = sizeof WRONG / sizeof *WRONG };

static void go_wrong(int is_parent)
{
    for (int i = 0; i < WRONGS; ++i) {
        reset();
        join(WRONG[i].access);
        if (!is_parent) continue;
        CHECK(receive(90, 0, 8) == 0);
        CHECK(post(10, WRONG[i].of) == 0 && post(11, (struct request){IBV_WR_RDMA_WRITE, 0, 0, 8}) == 0);
        expect(10, WRONG[i].status, 0);
        // What is behind it is flushed, not signalled or not, and the receive as well.
        uint64_t flushed = 0;
        for (int one = 0; one < 2; ++one) {
            struct ibv_wc next = completion();
            CHECK(next.status == IBV_WC_WR_FLUSH_ERR);
            flushed += next.wr_id;
        }
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        CHECK(flushed == 11 + 90 && ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR && init.send_cq == cq);
    }
    reset();
}

// More is not posted than there is room for, until the first are complete.
static void fill(void)
{
    int posted = 0;
    while (posted < 64 && receive(posted, 0, 8) == 0) ++posted;
    CHECK(posted == DEPTH && receive(0, 0, 8) == ENOMEM);
    CHECK(modify(IBV_QPS_ERR, 0, 0) == 0);
    for (int at = 0; at < posted; ++at) expect(at, IBV_WC_WR_FLUSH_ERR, 0);
    CHECK(receive(7, 0, 8) == 0);
    expect(7, IBV_WC_WR_FLUSH_ERR, 0);
    // Of requests as many as were said to fit.
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init) == 0);
    struct request one = {IBV_WR_RDMA_WRITE, 0, 0, 8};
    for (posted = 0; posted < 64 && post(posted, one) == 0; ++posted) {}
    CHECK(posted == (int)init.cap.max_send_wr && attr.cap.max_send_wr == init.cap.max_send_wr && post(9, one) == ENOMEM);
    for (int at = 0; at < posted; ++at) expect(at, IBV_WC_WR_FLUSH_ERR, 0);
    CHECK(post(8, one) == 0);
    expect(8, IBV_WC_WR_FLUSH_ERR, 0);
}

// The memory of both processes, as this one has it mapped, and how many there are; NULL if there is none.
static char *common(size_t *bytes, int *count)
{
    char line[512], *at = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    *count = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (strstr(line, "/memfd:outboard-net ") && sscanf(line, "%lx-%lx", &from, &to) == 2) at = (char *)from, *bytes = to - from, ++*count;
    }
    fclose(maps);
    return at;
}

// Of more connections than have memory the rest travel over their sockets, though all come at once.
static void crowd(int is_parent, int shares)
{
    enum { MANY = 72, SHARED_MAX = 64 };
    static struct ibv_qp *all[MANY];
    static uint32_t here[MANY], peers[MANY];
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *own = qp;
    for (int i = 0; i < MANY; ++i) {
        CHECK(all[i] = ibv_create_qp(pd, &asked));
        here[i] = all[i]->qp_num;
    }
    CHECK(write(peer_socket, here, sizeof here) == sizeof here && recv(peer_socket, peers, sizeof peers, MSG_WAITALL) == sizeof peers);
    for (int i = 0; i < MANY; ++i) qp = all[i], there.qpn = peers[i], ready();
    for (int i = 0; i < MANY && is_parent; ++i) {
        qp = all[i];
        CHECK(post(i, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8, .remote = 256}) == 0);
        expect(i, 0, IBV_WC_RDMA_WRITE);
    }
    meet();
    size_t bytes = 0;
    int count = 0;
    common(&bytes, &count);
    if (count > SHARED_MAX) printf("%s: %d connections have memory\n", role, count);
    CHECK(count <= SHARED_MAX && !count == !shares);
    meet();
    for (int i = 0; i < MANY; ++i) CHECK(ibv_destroy_qp(all[i]) == 0);
    qp = own;
    meet();
}

// A process whose entries travel by memory alone does not connect to one whose do not.
static void disagree(int is_parent)
{
    retries = 0;
    join(ALL);
    if (!is_parent) pause();
    CHECK(post(40, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8}) == 0);
    expect(40, IBV_WC_RETRY_EXC_ERR, 0);
}

// The child writes rubbish into the memory, counts that cannot be among it: the connection ends, and nothing else changes.
static void suffer(int is_parent, int shares)
{
    struct request one = {IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8};
    size_t bytes = 0;
    join(ALL);
    words[40] = 4711;
    if (is_parent) {
        CHECK(post(12, one) == 0);
        expect(12, 0, IBV_WC_RDMA_WRITE);
    }
    meet();
    int count;
    char *memory = common(&bytes, &count);
    CHECK(!memory == !shares && (!memory || bytes >= 2 << 20));
    meet();
    time_t end = time(NULL) + 30;
    if (shares && is_parent) {
        struct ibv_wc next = {0};
        while (next.status == 0) {
            CHECK(time(NULL) < end && post(13, one) == 0);
            next = completion();
        }
        CHECK(next.status == IBV_WC_RETRY_EXC_ERR);
    } else if (shares) {
        char *rubbish = malloc(bytes);
        memset(rubbish, 0xa5, bytes);
        struct iovec from = {rubbish, bytes}, to = {memory, bytes};
        struct pollfd over = {peer_socket, POLLIN, 0};
        CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) > 0);
        // Once the connection is over the memory may be gone, which is no matter here.
        while (poll(&over, 1, 1) == 0) {
            CHECK(time(NULL) < end);
            process_vm_writev(getpid(), &from, 1, &to, 1, 0);
        }
        free(rubbish);
    }
    meet();
    CHECK(words[40] == 4711);
    reset();
}

static void end(void)
{
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

// The peer is stopped, and killed between a doorbell and its completion.
static void outlive(pid_t child)
{
    CHECK(kill(child, SIGSTOP) == 0);
    while (waitpid(child, NULL, WUNTRACED) < 0) {}
    CHECK(post(20, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8}) == 0);
    struct ibv_wc next;
    usleep(20000);
    CHECK(ibv_poll_cq(cq, 1, &next) == 0);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    expect(20, IBV_WC_RETRY_EXC_ERR, 0);
    CHECK(post(21, (struct request){IBV_WR_RDMA_WRITE, 0, 0, 8}) == 0);
    expect(21, IBV_WC_WR_FLUSH_ERR, 0);
}

// The peer's process is not there: a try lasts a second, and there is one.
static void wait_in_vain(void)
{
    there = (struct end){.qpn = 0xff0001, .rkey = mr->rkey};
    retries = 0;
    ready();
    CHECK(post(25, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8}) == 0);
    expect(25, IBV_WC_RETRY_EXC_ERR, 0);
    CHECK(modify(IBV_QPS_RESET, 0, 0) == 0);
}

// A length with the highest bit would be the inline flag of an entry, and more than a port's longest message is an error.
static void refuse_lengths(void)
{
    static const int OPCODES[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD};
    static const uint32_t LENGTHS[] = {0x80000000, 0x80000001, 0x80000008, 0x80000010, 0xffffffff};
    struct ibv_port_attr port;
    struct ibv_srq_init_attr sizes = {.attr = {4, 1, 0}};
    struct ibv_srq *srq = ibv_create_srq(pd, &sizes);
    char before[BYTES];
    memcpy(before, words, BYTES);
    CHECK(srq && ibv_query_port(context, 1, &port) == 0 && port.max_msg_sz == 16 << 20);
    for (int i = 0; i < 5; ++i) {
        for (int one = 0; one < 4; ++one) CHECK(post(50, (struct request){OPCODES[one], IBV_SEND_SIGNALED, 0, LENGTHS[i], .remote = 64}) == EINVAL);
        struct ibv_sge second[] = {{(uint64_t)words, 8, mr->lkey}, {(uint64_t)words, LENGTHS[i], mr->lkey}};
        struct ibv_send_wr wr = {.sg_list = second, .num_sge = 2, .opcode = IBV_WR_SEND}, *bad = NULL;
        CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
        struct ibv_recv_wr into = {.sg_list = second + 1, .num_sge = 1}, *refused = NULL;
        CHECK(receive(51, 0, LENGTHS[i]) == EINVAL && ibv_post_srq_recv(srq, &into, &refused) == EINVAL && refused == &into);
    }
    CHECK(ibv_destroy_srq(srq) == 0);
    for (int one = 0; one < 3; ++one) {
        CHECK(post(52, (struct request){OPCODES[one], IBV_SEND_SIGNALED, 0, port.max_msg_sz + 1}) == 0);
        expect(52, IBV_WC_LOC_LEN_ERR, 0);
        CHECK(modify(IBV_QPS_RESET, 0, 0) == 0);
        ready();
    }
    CHECK(memcmp(words, before, BYTES) == 0);
}

// Completions that nobody has polled go with a reset, and both queues take as many as before.
static void forget(void)
{
    CHECK(modify(IBV_QPS_RESET, 0, 0) == 0);
    ready();
    for (int at = 0; at < DEPTH; ++at) CHECK(receive(at, 0, 8) == 0 && post(at, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8}) == 0);
    CHECK(modify(IBV_QPS_ERR, 0, 0) == 0);
    usleep(20000);
    CHECK(modify(IBV_QPS_RESET, 0, 0) == 0);
    ready();
    CHECK(post(31, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8}) == 0);
    expect(31, 0, IBV_WC_RDMA_WRITE);
}

int main(int count, char **values)
{
    const char *way = count == 2 ? values[1] : "shm";
    int sockets[2], shares = strcmp(way, "shm") == 0, is_unlike = strcmp(way, "unlike") == 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    int is_parent = child != 0;
    role = is_parent ? "parent" : "child";
    peer_socket = sockets[is_parent];
    close(sockets[!is_parent]);
    if (!is_parent) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_unlike) setenv("OUTBOARD_NET_WAY", is_parent ? "shm" : "tcp", 1);
    make();
    if (is_unlike) {
        disagree(is_parent);
        CHECK(kill(child, SIGKILL) == 0);
        puts("right");
        return 0;
    }
    join(ALL);
    is_parent ? exchange_as_parent() : exchange_as_child();
    solicit(is_parent);
    go_wrong(is_parent);
    crowd(is_parent, shares);
    suffer(is_parent, shares);
    join(ALL);
    if (!is_parent) pause();
    outlive(child);
    CHECK(modify(IBV_QPS_RESET, 0, 0) == 0);
    wait_in_vain();
    // The queue pair is of use again, with one of this process: itself.
    there = (struct end){qp->qp_num, mr->rkey, (uint64_t)words};
    ready();
    words[0] = 99;
    CHECK(post(30, (struct request){IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8, .remote = 8}) == 0);
    expect(30, 0, IBV_WC_RDMA_WRITE);
    CHECK(words[1] == 99);
    refuse_lengths();
    fill();
    forget();
    fill();
    end();
    puts("right");
    return 0;
}

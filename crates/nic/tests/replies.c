// Two processes that send to each other in turns, of which the first looks in which order its completions come: that of
// its send before the reply to it, which its peer's program sends after it has seen the message.
//   replies events|polls     by one channel of both queues, or by looking
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define CHECK(is) \
    if (!(is)) { \
        printf("%s, line %d: %s\n", role, __LINE__, #is); \
        fflush(stdout); \
        _exit(1); \
    }

enum { ROUNDS = 1500, DEPTH = 16 };

static const char *role = "parent";
static struct ibv_cq *sends, *receives;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qp;
static struct ibv_sge word;

static void receive(void)
{
    struct ibv_recv_wr wr = {.sg_list = &word, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void send_word(void)
{
    struct ibv_send_wr wr = {.sg_list = &word, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void take(struct ibv_cq *from)
{
    struct ibv_wc of;
    int count;
    while ((count = ibv_poll_cq(from, 1, &of)) == 0) {}
    CHECK(count == 1 && of.status == IBV_WC_SUCCESS);
}

// Takes the next event of the channel, and asks for one more of its queue.
static struct ibv_cq *next_event(void)
{
    struct ibv_cq *of;
    void *about;
    struct pollfd readable = {channel->fd, POLLIN, 0};
    CHECK(poll(&readable, 1, 30000) == 1 && ibv_get_cq_event(channel, &of, &about) == 0);
    ibv_ack_cq_events(of, 1);
    CHECK(ibv_req_notify_cq(of, 0) == 0);
    return of;
}

static void join(struct ibv_context *context, int peer)
{
    struct end {
        uint32_t qpn;
        union ibv_gid gid;
    } here = {.qpn = qp->qp_num}, there;
    CHECK(ibv_query_gid(context, 1, 0, &here.gid) == 0);
    CHECK(write(peer, &here, sizeof here) == sizeof here && recv(peer, &there, sizeof there, MSG_WAITALL) == sizeof there);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = there.qpn, .max_dest_rd_atomic = 1};
    attr.ah_attr.is_global = 1, attr.ah_attr.port_num = 1, attr.ah_attr.grh.dgid = there.gid;
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                            IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

// Returns how often the reply came first.
static int ask(int by_events)
{
    int early = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        send_word();
        if (by_events) {
            early += next_event() != sends;
            CHECK(next_event());
            take(receives);
        } else {
            struct ibv_wc of;
            take(receives);
            if (ibv_poll_cq(sends, 1, &of) == 1) goto next;
            ++early;
        }
        take(sends);
    next:
        receive();
    }
    return early;
}

static void answer(void)
{
    for (int round = 0; round < ROUNDS; ++round) {
        take(receives);
        receive();
        send_word();
        take(sends);
    }
}

int main(int count, char **values)
{
    int by_events = count > 1 && strcmp(values[1], "events") == 0, sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) role = "child", prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(sockets[child == 0]);
    int peer = sockets[child != 0];
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    static uint64_t data;
    struct ibv_mr *mr = ibv_reg_mr(pd, &data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr && (channel = ibv_create_comp_channel(context)));
    word = (struct ibv_sge){(uint64_t)&data, sizeof data, mr->lkey};
    CHECK((sends = ibv_create_cq(context, 2 * DEPTH, NULL, channel, 0)) && (receives = ibv_create_cq(context, 2 * DEPTH, NULL, channel, 0)));
    struct ibv_qp_init_attr asked = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC, .cap = {DEPTH, DEPTH, 1, 1, 0}};
    CHECK(qp = ibv_create_qp(pd, &asked));
    CHECK(ibv_req_notify_cq(sends, 0) == 0 && ibv_req_notify_cq(receives, 0) == 0);
    join(context, peer);
    for (int i = 0; i < DEPTH; ++i) receive();
    if (child == 0) {
        answer();
        char over;
        CHECK(read(peer, &over, 1) == 1);
        return 0;
    }
    int early = ask(by_events);
    if (early > 0) printf("%d of %d replies came before what they reply to\n", early, ROUNDS);
    CHECK(write(peer, "", 1) == 1 && waitpid(child, NULL, 0) == child);
    puts(early == 0 ? "right" : "wrong");
    return 0;
}

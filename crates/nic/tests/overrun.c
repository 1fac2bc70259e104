// A queue pair that is connected to itself completes more than its completion queue has room for, and nobody takes it: an
// asynchronous event says which queue. It stays until the event is acknowledged, and has none if it goes before.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ENTRIES = 3, WRITES = 8, TRIES = 64 };

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s, errno %d\n", __LINE__, #what, errno); \
            exit(1); \
        } \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct pollfd waiting;
static long words[2];
static atomic_int step;

static void overrun(void)
{
    CHECK(cq = ibv_create_cq(context, ENTRIES, words, NULL, 0));
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {16, 1, 1, 1, 0}};
    CHECK(qp = ibv_create_qp(pd, &asked));
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
    to.ah_attr.is_global = to.ah_attr.port_num = 1;
    CHECK(ibv_query_gid(context, 1, 0, &to.ah_attr.grh.dgid) == 0);
    int mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | mask) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | mask) == 0);
    struct ibv_sge from = {(uint64_t)words, sizeof *words, mr->lkey};
    for (int i = 0; i < WRITES; i++) {
        struct ibv_send_wr *bad, request = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
        request.wr.rdma.remote_addr = (uint64_t)(words + 1), request.wr.rdma.rkey = mr->rkey;
        CHECK(ibv_post_send(qp, &request, &bad) == 0);
    }
    struct ibv_qp_attr now = {0};
    struct ibv_qp_init_attr same;
    for (int tries = 0; now.qp_state != IBV_QPS_ERR; tries++) {
        CHECK(tries < 10000 && ibv_query_qp(qp, &now, IBV_QP_STATE, &same) == 0);
        usleep(1000);
    }
}

static void *acknowledge(void *unused)
{
    struct ibv_async_event event;
    CHECK(poll(&waiting, 1, 10000) == 1 && ibv_get_async_event(context, &event) == 0);
    step = 1;
    usleep(20000);
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq && cq->cq_context == words);
    step = 2;
    ibv_ack_async_event(&event);
    return unused;
}

static int is_silent(void)
{
    struct ibv_async_event event;
    return ibv_get_async_event(context, &event) == -1 && errno == EAGAIN;
}

int main(void)
{
    pthread_t other;
    CHECK((context = ibv_open_device(ibv_get_device_list(NULL)[0])) && (pd = ibv_alloc_pd(context)));
    CHECK(mr = ibv_reg_mr(pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    waiting = (struct pollfd){context->async_fd, POLLIN, 0};
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    CHECK(is_silent() && poll(&waiting, 1, 0) == 0);
    overrun();
    CHECK(pthread_create(&other, NULL, acknowledge, NULL) == 0 && ibv_destroy_qp(qp) == 0);
    while (step == 0) usleep(1000);
    CHECK(ibv_destroy_cq(cq) == 0 && step == 2 && pthread_join(other, NULL) == 0 && is_silent());
    // A queue that is gone has no event, nor has one that is where it was.
    overrun();
    CHECK(poll(&waiting, 1, 10000) == 1 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    struct ibv_cq *gone = cq, *made[TRIES];
    int count = 0;
    do {
        CHECK(count < TRIES && (made[count] = ibv_create_cq(context, ENTRIES, NULL, NULL, 0)));
    } while (made[count++] != gone);
    CHECK(is_silent());
    while (count > 0) CHECK(ibv_destroy_cq(made[--count]) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("right");
    return 0;
}

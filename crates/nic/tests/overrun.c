// A queue pair that is connected to itself completes more than its completion queue has room for, and nobody takes it: an
// asynchronous event says which queue.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ENTRIES = 3, WRITES = 8 };

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s\n", __LINE__, #what); \
            return 1; \
        } \
    } while (0)

int main(void)
{
    struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct pollfd waiting = {context->async_fd, POLLIN, 0};
    struct ibv_async_event event;
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN && poll(&waiting, 1, 0) == 0);
    struct ibv_cq *cq = ibv_create_cq(context, ENTRIES, NULL, NULL, 0);
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {16, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(pd, &asked);
    long *words = calloc(2, sizeof *words);
    struct ibv_mr *mr = ibv_reg_mr(pd, words, 2 * sizeof *words, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(qp && mr);
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
    CHECK(poll(&waiting, 1, 10000) == 1 && ibv_get_async_event(context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
    ibv_ack_async_event(&event);
    CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
    // A queue that is gone has none.
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    puts("right");
    return 0;
}

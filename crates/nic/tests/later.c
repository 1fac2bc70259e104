// A program that loads a library, whose functions need what the stand-ins do not serve: each fails, and the program goes on.
//   later LIBRARY
#include <errno.h>
#include <stdio.h>

#ifdef LATER
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

int later(void)
{
    struct ibv_cq_init_attr_ex asked = {.cqe = 1};
    struct mlx5dv_cq_init_attr more = {0};
    struct mlx5dv_devx_async_event_hdr event;
    errno = 0;
    if (mlx5dv_create_cq(NULL, &asked, &more) || errno != EOPNOTSUPP) return 1;
    if (mlx5dv_devx_qp_query(NULL, NULL, 0, NULL, 0) != EOPNOTSUPP) return 2;
    // The bytes of an event, and the descriptor of a file.
    if (mlx5dv_devx_get_event(NULL, &event, sizeof event) >= 0) return 3;
    if (ibv_query_qp_data_in_order(NULL, IBV_WR_RDMA_WRITE, 0) != 0) return 4;
    return ibv_import_mr(NULL, 1) ? 5 : 0;
}
#else
#include <dlfcn.h>

int main(int count, char **values)
{
    void *library = count > 1 ? dlopen(values[1], RTLD_NOW) : NULL;
    int (*later)(void) = library ? (int (*)(void))dlsym(library, "later") : NULL;
    if (!later) return fprintf(stderr, "%s\n", dlerror()), 1;
    int failed = later();
    if (failed) return printf("call %d\n", failed), 1;
    puts("right");
    return 0;
}
#endif

#!/usr/bin/env bash
# Makes sure that rdma-core's headers and tools are there: entries of send queues are compared with what they make, and
# the tools run without an adapter.
set -euo pipefail
if [ -e /usr/include/infiniband/mlx5dv.h ] && command -v ibv_devinfo ib_write_bw >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "rdma-core's headers or tools are missing: installing them"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libibverbs-dev ibverbs-utils perftest
else
  echo "rdma-core's headers or tools are missing. Install them:" >&2
  echo "  sudo apt-get install libibverbs-dev ibverbs-utils perftest" >&2
  exit 1
fi

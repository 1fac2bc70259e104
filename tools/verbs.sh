#!/usr/bin/env bash
# Makes sure that rdma-core's headers are there: entries of send queues are compared with what they make.
set -euo pipefail
if [ -e /usr/include/infiniband/mlx5dv.h ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "rdma-core's headers are missing: installing them"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libibverbs-dev
else
  echo "rdma-core's headers are missing. Install them:" >&2
  echo "  sudo apt-get install libibverbs-dev" >&2
  exit 1
fi

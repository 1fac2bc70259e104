#!/usr/bin/env bash
# Makes sure that clang is there: Triton links what it makes of include/outboard/net_calls.cu.
set -euo pipefail
if command -v clang >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "clang is missing: installing it"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang
else
  echo "clang is missing, and kernels of Triton that use the network cannot be tested without it. Install it:" >&2
  echo "  sudo apt-get install clang" >&2
  exit 1
fi

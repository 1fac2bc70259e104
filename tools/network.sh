#!/usr/bin/env bash
# Makes sure that the balancer can be measured beside others: what these do, and the tools that make networks. Where
# nothing can be installed, bench_balance.py says what it leaves out.
set -euo pipefail
missing=()
need() { command -v "$1" >/dev/null || missing+=("${@:2}"); }
need ip iproute2
need nft nftables
need ethtool ethtool
need nginx nginx-light libnginx-mod-stream
need haproxy haproxy
need iperf3 iperf3
need wrk wrk
if [ ${#missing[@]} = 0 ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then exit 0; fi
echo "${missing[*]} are missing: installing them"
# Nothing is started: the measurements have their own.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
  echo "NOT INSTALLED: ${missing[*]}" >&2

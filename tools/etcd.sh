#!/usr/bin/env bash
# Makes sure that etcd and promtool are there: several managers are never left untested for want of them.
set -euo pipefail
missing=()
command -v etcd >/dev/null || missing+=(etcd-server)
command -v promtool >/dev/null || missing+=(prometheus)
if [ ${#missing[@]} = 0 ]; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "${missing[*]} are missing: installing them"
  # Nothing is started: the tests have their own.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
  echo "${missing[*]} are missing, and the pool cannot be tested without them. Install them:" >&2
  echo "  sudo apt-get install ${missing[*]}" >&2
  exit 1
fi

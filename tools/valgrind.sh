#!/usr/bin/env bash
# Makes sure that valgrind is there: the instruction counts must never go untested for want of it.
set -euo pipefail
if command -v valgrind >/dev/null; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "valgrind is missing: installing it"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind
else
  echo "valgrind is missing, and the instruction counts cannot be tested without it. Install it:" >&2
  echo "  sudo apt-get install valgrind" >&2
  exit 1
fi

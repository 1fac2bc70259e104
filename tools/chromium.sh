#!/usr/bin/env bash
# Makes sure that a Chromium is there: reports and the pool's page are looked at by a real browser, never skipped for want of one.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "chromium is missing: installing it"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
else
  echo "chromium is missing, and reports cannot be tested without it. Install it:" >&2
  echo "  sudo apt-get install chromium" >&2
  exit 1
fi

#!/bin/sh
# Compiles a crate of the workspace with a counter for each region of its code: RUSTC_WORKSPACE_WRAPPER of
# tools/fuzz_coverage.py.
exec "$@" -C instrument-coverage

#!/bin/sh
# Regenerates the PTX beside the CUDA sources. Needs nvcc (CUDA 13.0) on PATH; NVCC_FLAGS adds include paths.
# Compiles in a fixed place and drops folders from .file lines, so that the result does not depend on the machine.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
place=/tmp/ptx-test-data
rm -rf "$place" && mkdir "$place" && cp "$here"/*.cu "$place" && cd "$place"
compile() {
  out=$1 src=$2
  shift 2
  nvcc --ptx -arch=compute_80 ${NVCC_FLAGS:-} "$@" -o "$out" "$src"
  sed -E 's|(\.file\s+[0-9]+ ")[^"]*/|\1|' "$out" > "$here/$out"
}
for f in basics warp math functions half softmax mma; do compile "$f.ptx" "$f.cu"; done
compile math_fast.ptx math.cu --use_fast_math
compile check.ptx check.cu -lineinfo
compile basics_debug.ptx basics.cu -G
compile functions_debug.ptx functions.cu -G
rm -rf "$place"

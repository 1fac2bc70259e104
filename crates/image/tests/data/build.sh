#!/bin/sh
# Rebuilds the committed test data with the nvcc of CUDA 13.0 on PATH. Arguments: the ptxas of CUDA 12.4, for the older cubin layout.
set -eu
old_ptxas=${1:?path of the ptxas of CUDA 12.4}
here=$(cd "$(dirname "$0")" && pwd)

# Debug information names the folder: the same one everywhere.
rm -rf /tmp/outboard-image-data && mkdir /tmp/outboard-image-data && cd /tmp/outboard-image-data
cp "$here"/*.cu .

# Every target kind: plain, arch-specific and family, as cubin and as PTX.
targets="-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90
  -gencode arch=compute_90a,code=[sm_90a,compute_90a] -gencode arch=compute_100f,code=[sm_100f,compute_100f]"
nvcc -fatbin --compress-mode=size $targets kernels.cu -o targets.fatbin

nvcc -fatbin --compress-mode=size -G -gencode arch=compute_80,code=[sm_80,compute_80] kernels.cu -o debug.fatbin
nvcc -dc -fatbin -gencode arch=compute_80,code=lto_80 small.cu -o lto.fatbin
nvcc -dc -cubin -arch=sm_80 small.cu -o relocatable.cubin
for mode in none speed balance size; do
  nvcc -fatbin -Xfatbin -compress-all --compress-mode=$mode -gencode arch=compute_80,code=[sm_80,compute_80] small.cu -o $mode.fatbin
done

for arch in 80 90 90a 100; do
  nvcc -cubin -arch=sm_$arch kernels.cu -o sm_$arch.cubin
done
nvcc -ptx -arch=compute_80 kernels.cu -o compute_80.ptx
nvcc -ptx -arch=compute_90 kernels.cu -o compute_90.ptx

for arch in 80 90a; do
  nvcc -ptx -arch=compute_$arch small.cu -o old.ptx
  sed -i 's/^\.version .*/.version 8.4/' old.ptx
  "$old_ptxas" -arch=sm_$arch old.ptx -o cuda12_sm_$arch.cubin
done
rm old.ptx

# A static library: a text, an object with PTX, one with PTX and machine code.
echo text >notes.txt
for name in twice:2 thrice:3; do
  echo "extern \"C\" __device__ unsigned ${name%:*}(unsigned value) { return ${name#*:} * value; }" >"${name%:*}.cu"
done
nvcc -rdc=true -arch=compute_80 -c twice.cu
nvcc -rdc=true -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90,code=sm_90 -c thrice.cu
for object in twice.o thrice.o; do objcopy --strip-unneeded -R .eh_frame -R .comment -R .note.GNU-stack $object; done
ar rcD device_functions.a notes.txt twice.o thrice.o
cp *.fatbin *.cubin *.ptx *.a "$here"
rm -r /tmp/outboard-image-data

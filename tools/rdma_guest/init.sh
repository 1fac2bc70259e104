#!/bin/sh
# The guest's first process: the host's root, read-only, below a layer in memory; then agent.sh on top of it.
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order
nine_p=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o "$nine_p,ro,cache=loose" host /host || exit 1
# Uncached: the host reads and writes these files while the guest runs.
mount -t 9p -o "$nine_p,cache=none" share /share || exit 1
mount -t tmpfs layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root || exit 1
mkdir -p /root/share
for folder in proc dev share; do mount --move "/$folder" "/root/$folder"; done
exec switch_root /root /bin/bash /share/agent.sh

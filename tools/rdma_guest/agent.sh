#!/bin/bash
# In the guest: makes its RDMA devices, then runs what the host asks for.
#
# /share/config, written by the host, sets FOLDER (where the host has this /share), MODULES, HAS_RDMA and, of two guests, NUMBER.
# Over the serial port come lines, `run ID` and `kill ID`; `ended ID STATUS` goes back. What a run prints is in ID.out.
set -euo pipefail
trap 'echo "the guest failed in line $LINENO of agent.sh"' ERR
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8
. /share/config

load() { modprobe -d "$MODULES" "$@"; }

mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /dev/shm /dev/pts "$FOLDER"
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
ln -s /proc/self/fd /dev/fd
# Both sides know a file here by one name.
mount --bind /share "$FOLDER"
ulimit -l unlimited

# Addresses are usable at once: nobody else has them here.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
if [ -z "$HAS_RDMA" ]; then
	load -a virtio_console tls
	ip link set lo up
else
	load -a virtio_console crc32_generic rdma_rxe ib_uverbs rdma_ucm ib_umad sch_netem virtio_net veth
fi
if [ -z "$HAS_RDMA" ]; then
	:
elif [ -n "$NUMBER" ]; then
	ip -batch - <<-END
		link set lo up
		addr add 10.213.78.$NUMBER/24 dev eth0
		link set eth0 mtu 4200 up
	END
	rdma link add rxe0 type rxe netdev eth0
else
	# Between two addresses of one machine packets would go over lo, where no RDMA device is: what one end sends to the
	# other takes the cable, and may come from it.
	echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
	ip -batch - <<-END
		link set lo up
		link add veth0 address 52:54:00:0d:4e:01 type veth peer name veth1 address 52:54:00:0d:4e:02
		addr add 10.213.78.1/24 dev veth0
		addr add 10.213.78.2/24 dev veth1
		link set veth0 mtu 4200 up
		link set veth1 mtu 4200 up
		route add 10.213.78.2 dev veth0 table 101
		route add 10.213.78.1 dev veth1 table 102
		neigh add 10.213.78.2 lladdr 52:54:00:0d:4e:02 dev veth0
		neigh add 10.213.78.1 lladdr 52:54:00:0d:4e:01 dev veth1
		rule add pref 101 iif lo from 10.213.78.1 to 10.213.78.2 table 101
		rule add pref 102 iif lo from 10.213.78.2 to 10.213.78.1 table 102
		rule add pref 200 table local
		rule del pref 0
	END
	rdma link add rxe0 type rxe netdev veth0
	rdma link add rxe1 type rxe netdev veth1
fi

run() {
	setsid bash "/share/$1.sh" </dev/null >"/share/$1.out" 2>&1 3>&- &
	echo $! >"/run/$1.pid"
	local status=0
	wait $! || status=$?
	# What it started and left behind ends with it.
	kill -KILL -- "-$!" 2>/dev/null || true
	echo "ended $1 $status" >&3
}

end() {
	for _ in {1..50}; do
		[ -s "/run/$1.pid" ] && break
		sleep 0.1
	done
	kill -KILL -- "-$(cat "/run/$1.pid")" || true
}

# Numbered among all virtio devices.
exec 3<>"$(echo /dev/vport*p1)"
echo ready >&3
while read -r verb id <&3; do
	case $verb in
	run) run "$id" & ;;
	kill) end "$id" & ;;
	esac
done
# The host is gone.
echo o >/proc/sysrq-trigger
sleep 60

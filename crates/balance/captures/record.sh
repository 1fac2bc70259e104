#!/bin/sh
# Records programs.pcap: curl, dig and iperf3 at 198.51.100.1 with nginx, dnsmasq and iperf3 on two servers, through
# `outboard balance` at 192.0.2.10 by NAT. Each packet is there twice: as the balancer gets it, and as it sends it on.
# Run as root: unshare -nm sh crates/balance/captures/record.sh
#
# Connections: 10 requests of curl, 1 with five requests, 5 queries of dig, and two of iperf3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
outboard=${OUTBOARD:-$here/../../../target/debug/outboard}
work=$(mktemp -d)
pids=
trap 'kill $pids 2>/dev/null; rm -rf "$work"' EXIT
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link add br0 type bridge forward_delay 0
ip link set br0 up
host() {
    ip netns add "$1"
    ip link add "v$1" type veth peer name eth0 netns "$1"
    ip link set "v$1" master br0 up
    # Segments and checksums as they would be on a wire.
    ip netns exec "$1" ethtool -K eth0 tso off gso off gro off tx off >/dev/null
    ip -n "$1" link set lo up
    ip -n "$1" address add "$2" dev eth0
    ip -n "$1" link set eth0 up
}
host balancer 192.0.2.5/24
host one 192.0.2.11/24
host two 192.0.2.12/24
host client 198.51.100.1/32
ip -n client route add 192.0.2.10 dev eth0 src 198.51.100.1
for server in one two; do
    ip -n $server route add default via 192.0.2.5
    cat >"$work/$server.conf" <<CONF
pid $work/$server.pid;
error_log stderr;
events {}
http { access_log off; server { listen 80; location / { return 200 "$server\n"; } } }
CONF
    ip netns exec $server nginx -p "$work" -c "$work/$server.conf" -g 'daemon off;' &
    pids="$pids $!"
    ip netns exec $server dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file= \
        --user=root --bind-interfaces --interface=eth0 --address=/web.example/198.51.100.80 &
    pids="$pids $!"
    ip netns exec $server iperf3 --server >/dev/null 2>&1 &
    pids="$pids $!"
done
sed "s|^api = .*|api = \"$work/api\"|" "$here/balance.toml" >"$work/balance.toml"
ip netns exec balancer "$outboard" balance run "$work/balance.toml" &
pids="$pids $!"
sleep 3
ip netns exec balancer tcpdump -q -U -Z root -i eth0 -w "$here/programs.pcap" 'ip and host 198.51.100.1' 2>/dev/null &
dump=$!
pids="$pids $dump"
sleep 1
for _ in 1 2 3 4 5 6 7 8 9 10; do
    ip netns exec client curl --silent --fail http://192.0.2.10/ >/dev/null
done
ip netns exec client curl --silent --fail 'http://192.0.2.10/[1-5]' >/dev/null
for _ in 1 2 3 4 5; do
    [ "$(ip netns exec client dig +short @192.0.2.10 web.example)" = 198.51.100.80 ]
done
ip netns exec client iperf3 --client 192.0.2.10 --length 4K --bytes 32K >/dev/null
sleep 1
kill $dump
wait $dump || true

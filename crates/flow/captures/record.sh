#!/bin/sh
# Records programs.pcap: curl, dig and iperf3 with nginx, dnsmasq and iperf3 in a network namespace of their own, from
# 192.0.2.1 to 198.51.100.1. Run as root: unshare -n crates/flow/captures/record.sh
#
# Connections: 20 requests of curl, 1 with five requests, 1 to a port where nobody listens, 10 queries of dig, and two
# of iperf3. Checksums are as the loopback device leaves them: not filled in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
ip link set lo up mtu 1500
ip address add 192.0.2.1/32 dev lo
ip address add 198.51.100.1/32 dev lo
# Segments as they would be on a wire.
ethtool -K lo tso off gso off gro off >/dev/null
cat >"$work/nginx.conf" <<CONF
pid $work/nginx.pid;
error_log stderr;
events {}
http { access_log off; server { listen 198.51.100.1:80; location / { return 200 "hello\n"; } } }
CONF
tcpdump -q -U -Z root -i lo -s 96 -w "$here/programs.pcap" host 192.0.2.1 2>/dev/null &
dump=$!
nginx -p "$work" -c "$work/nginx.conf" -g 'daemon off;' &
web=$!
dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file= --user=root --bind-interfaces \
    --listen-address=198.51.100.1 --address=/web.example/198.51.100.1 &
names=$!
iperf3 --server --one-off --bind 198.51.100.1 >/dev/null &
rate=$!
trap 'kill $dump $web $names $rate 2>/dev/null; rm -rf "$work"' EXIT
sleep 2
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    curl --silent --fail --interface 192.0.2.1 http://198.51.100.1/ >/dev/null
done
curl --silent --fail --interface 192.0.2.1 'http://198.51.100.1/[1-5]' >/dev/null
curl --silent --interface 192.0.2.1 http://198.51.100.1:81/ >/dev/null || true
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(dig +short -b 192.0.2.1 @198.51.100.1 web.example)" = 198.51.100.1 ]
done
iperf3 --client 198.51.100.1 --bind 192.0.2.1 --bytes 256K >/dev/null
sleep 1
kill $dump
wait $dump || true

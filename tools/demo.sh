#!/usr/bin/env bash
# Starts a server, runs a program through it, prints what the program printed and what its calls cost.
# usage: tools/demo.sh OUTBOARD PROGRAM
set -euo pipefail
outboard=$1
program=$2
folder=$(mktemp -d)
server=
trap '[ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; rm -rf "$folder"' EXIT

"$outboard" serve --listen "shm://$folder/gpu.sock" --listen tcp://127.0.0.1:0 >"$folder/urls" 2>"$folder/log" &
server=$!
for _ in $(seq 100); do
	[ "$(wc -l <"$folder/urls")" -ge 2 ] && break
	kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
	sleep 0.1
done
for url in $(sed -n 's/^listening on //p' "$folder/urls"); do
	echo
	echo "\$ outboard run --gpu $url --stats -- $program"
	"$outboard" run --gpu "$url" --stats -- "$program"
done

# Which network a program needs, from a recording of it: no GPU is asked.
recording=recordings/h200/bert_infer_b1.trace
echo
echo "\$ outboard require $recording --budget 5%"
"$outboard" require "$recording" --budget 5%

# Several servers behind one address.
"$(dirname "$0")/demo_balance.py" "$outboard" "$program"

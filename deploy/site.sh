#!/bin/sh
# Start the node of a site and start it again when it ends: a server that is away, or a life of this node that still
# counts there, is no reason to give up. SUPERLINK is the server, host:port. Further arguments go to flower-supernode.
set -u
: "${SUPERLINK:?set SUPERLINK to the address of the server, for example server.example.org:8000}"
umask 077

node=
trap 'kill "$node" 2>/dev/null; wait; exit 0' INT TERM # docker stop
while :; do
  flower-supernode --superlink "$SUPERLINK" --root-certificates /keys/ca.crt --auth-supernode-private-key /keys/site \
    --node-config "${NODE_CONFIG:-data=\"/data\" keep=\"/keep\"}" "$@" &
  node=$!
  wait "$node"
  echo "the node has ended with status $?; it is started again in 10 s" >&2
  sleep 10 &
  wait $!
done

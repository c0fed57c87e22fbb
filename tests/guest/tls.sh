#!/bin/bash
# limit: 300
# A stock host by TLS 1.3 to our target: keys of nvme-cli's and ours, for both hash functions, by each form of identity; a file system
# and I/O; who has no key, another's, or comes without TLS; handshakes that nobody ends; keys that change.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_tls.sh"

HOST=nqn.2026-11.com.example:host
OTHER=nqn.2026-11.com.example:other
PLAIN=4421
trap tls_end EXIT
# from_now; then logged REGEX: whether the server has said so since
SEEN=0
from_now() { SEEN=$(wc -l <"$WORK/serve.log"); }
logged() { [[ $(tail -n +$((SEEN + 1)) "$WORK/serve.log" | grep -cE "$1") != 0 ]]; }
# serves [OPTION]...: the volume, by TLS at $PORT, and without at $PLAIN
serves() { PORT=$PLAIN serve mem:256M --listen "tls://127.0.0.1:$PORT" --host-tls-key "$HOST=$WORK/host.tls" --allow-host "$OTHER" --log target=debug,info "$@"; }
encrypted() {
    ctl controller list -o json >"$WORK/list.json"
    expect_json "$WORK/list.json" 'map([.host_nqn, .tls] | join(" ")) | join(";")' "$HOST true"
}

"$NVLANE" key new --tls "$WORK/host.tls"
"$NVLANE" key new --tls --hash sha384 "$WORK/long.tls"
"$NVLANE" key new --tls "$WORK/wrong.tls"
expect "the mode of a new key" "$(stat -c %a "$WORK/host.tls")" 600
key=$(<"$WORK/host.tls")
serves
logged NVMeTLSkey-1 && die "a key stands in the log"

# connects IDENTITY: the host comes by a key of that identity, with several queues; what it writes it reads again
connects() {
    local device
    tls_connect "$HOST" -i 2 >/dev/null
    device=$(namespace 1)
    encrypted
    expect_match "the sessions of the kernel" "$(grep TlsCurrTxSw /proc/net/tls_stat)" '[1-9]'
    device=$(tls_keeps_file "$device" "$HOST")
    fsck.ext4 -fn "$device" >/dev/null
    verified_io "$device" 16M
    disconnect
    echo "$1"
}
for tools in "${TLS_EACH[@]}"; do
    tls_tools "$tools"
    tls_nvme version
    tls_begin
    tls_insert "$HOST" "$NQN" "$key" --identity=0
    connects "identity 0"
    tls_insert "$HOST" "$NQN" "$key"
    connects "identity 1"
    tls_forget
    if [[ $tools == "${TLS_TOOLS_NEWER:-}" ]]; then
        ctl host set-key "$HOST" --tls-key "$WORK/long.tls"
        tls_insert "$HOST" "$NQN" "$(<"$WORK/long.tls")"
        connects "SHA-384"
        tls_forget
        ctl host set-key "$HOST" --tls-key "$WORK/host.tls"
    fi
    tls_end
done

# Both are offered, one by TLS.
"$NVLANE" discover -a 127.0.0.1 -s $PLAIN -q "$OTHER" -o json >"$WORK/discovery.json"
expect_json "$WORK/discovery.json" '[.records[] | select(.subtype == "nvme subsystem") | [.trsvcid, .treq, .sectype] | join(" ")] | join(";")' \
    "$PLAIN not specified, sq flow control disable supported none;$PORT required, sq flow control disable supported tls13"

tls_begin
# Another key by the same name, a key for another subsystem, a host without one.
tls_insert "$HOST" "$NQN" "$(<"$WORK/wrong.tls")" --identity=0
from_now
fails tls_connect "$HOST"
await 20 logged 'host refused: no TLS session.*the other end has another key for .*NVMe0R01'
tls_forget
tls_insert "$HOST" "$NQN" "$(<"$WORK/wrong.tls")"
from_now
fails tls_connect "$HOST"
await 20 logged 'host refused: no TLS session.*there is no key for .*NVMe1R01'
tls_forget
tls_insert "$OTHER" "$NQN" "$key"
from_now
fails tls_connect "$OTHER"
await 20 logged 'host refused: no TLS session.*there is no key for .*other'
tls_forget
expect_match "what metrics tell" "$(ctl metrics)" 'nvlane_refused_total\{why="tls"\} [3-9]'
# Without TLS: the host that has a key is not let in, and others are; at the other listener nobody is.
from_now
PORT=$PLAIN fails connect -q "$HOST" -i 1
await 20 logged 'host refused.*it has a key for TLS, and comes without'
from_now
fails connect -q "$OTHER" -i 1
await 20 logged 'host refused: no TLS session.*not TLS 1.3'
PORT=$PLAIN connect -q "$OTHER" -i 1
namespace 1 >/dev/null
disconnect
expect_json <(ctl controller list -o json) length 0

# A host of OpenSSL's that knows the key and no NVMe/TCP, and one that says that it goes.
if [[ -n ${TLS_TOOLS_NEWER:-} ]]; then
    tls_tools "$TLS_TOOLS_NEWER"
    tls_insert "$HOST" "$NQN" "$key"
    read -r serial identity < <(tls_identities)
    speaks() {
        timeout 20 openssl s_client -connect "127.0.0.1:$PORT" -quiet -tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256 \
            -psk "$(tls_psk "$serial")" -psk_identity "$identity" "$@" >"$WORK/heard" 2>&1 || true
    }
    from_now
    { head -c 4096 /dev/zero; pause 3; } | speaks
    await 20 logged 'ending a connection.*fault='
    from_now
    pause 2 | speaks -no_ign_eof
    await 20 logged 'connection ends error=unexpected end of file'
    logged 'Input/output error' && die "a goodbye is taken for an error"
    # One that has not said who it is when its key is taken away: it is nobody's any more.
    from_now
    speaks </dev/null &
    silent=$!
    await 20 logged 'connection is encrypted'
    ctl host set-key "$HOST" --tls-key "$WORK/wrong.tls"
    await 15 logged 'its key was changed before its Connect'
    await 15 eval '[[ -z $(ss -Htn state established "sport = :$PORT") ]]'
    ctl host set-key "$HOST" --tls-key "$WORK/host.tls"
    wait "$silent"
    tls_forget
fi

# Connections that never say anything, or half of a record, keep nobody out; their time is over in the end.
python3 - "$PORT" <<'PYTHON' >"$WORK/silent" &
import socket, sys, time
held = []
for number in range(300):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    one.sendall(b"\x16\x03\x01\x02\x00\x01"[:number % 7])
    held.append(one)
print("held", flush=True)
ended = 0
until = time.time() + 120
for one in held:
    one.settimeout(max(0.1, until - time.time()))
    try:
        ended += one.recv(64) == b""
    except ConnectionError:
        ended += 1
assert ended == len(held), ended
PYTHON
silent=$!
await 60 says "$WORK/silent" held
tls_insert "$HOST" "$NQN" "$key"
tls_connect "$HOST" -i 2 >/dev/null
device=$(namespace 1)
verified_io "$device" 8M
wait "$silent" || die "connections without a handshake stay"
encrypted

# A key that is replaced: the host comes by either, in both forms of identity.
"$NVLANE" key new --tls "$WORK/new.tls"
cat "$WORK/new.tls" >>"$WORK/host.tls"
expect_match "a file with two keys" "$(ctl host set-key "$HOST" --tls-key "$WORK/host.tls")" 'holds two keys, and either will do'
disconnect
for which in new=1 new=0 old=0 old=1; do
    tls_forget
    secret=$key
    [[ $which == new* ]] && secret=$(<"$WORK/new.tls")
    tls_insert "$HOST" "$NQN" "$secret" --identity="${which#*=}"
    tls_connect "$HOST" -i 2 >/dev/null
    device=$(namespace 1)
    encrypted
    [[ $which == old=1 ]] || disconnect
done
# Which of two keys in its own keyring Linux takes it does not say: both will do.
tls_insert "$HOST" "$NQN" "$(<"$WORK/new.tls")"
disconnect
tls_connect "$HOST" -i 2 >/dev/null
encrypted
disconnect
tls_forget
tls_insert "$HOST" "$NQN" "$key"
tls_connect "$HOST" -i 2 >/dev/null
device=$(namespace 1)

# A key that changes: who is connected stays, and comes back by the new one alone. The server is started again, and still wants it.
controller=$(controllers)
cp "$WORK/new.tls" "$WORK/host.tls"
ctl host set-key "$HOST" --tls-key "$WORK/host.tls"
verified_io "$device" 4M
is_live "$controller" || die "what is connected stays"
stop
await 60 eval '! is_live "$controller"'
drop
serves
fails tls_connect "$HOST"
tls_forget
tls_insert "$HOST" "$NQN" "$(<"$WORK/new.tls")"
tls_connect "$HOST" -i 2 >/dev/null
controller=$(controllers)
device=$(namespace 1)
verified_io "$device" 4M

# A target that was killed: the host comes back by itself, by a handshake each time.
kill_server
await 60 eval '! is_live "$controller"'
serves
await 90 is_live "$controller"
verified_io "$device" 4M
disconnect

# A TLS listener that is taken away, and one that is added.
ctl listener remove "127.0.0.1:$PORT"
fails tls_connect "$HOST"
ctl listener add "tls://127.0.0.1:$PORT"
ctl listener list
tls_connect "$HOST" -i 1 >/dev/null
namespace 1 >/dev/null
encrypted
disconnect
# By discovery, over TLS: with the key of this host for the discovery subsystem.
tls_insert "$HOST" nqn.2014-08.org.nvmexpress.discovery "$(<"$WORK/new.tls")"
tls_nvme discover -t tcp -a 127.0.0.1 -s "$PORT" -q "$HOST" --tls -o json >"$WORK/discovery.json" || die "discovery by TLS"
expect_json "$WORK/discovery.json" '[.records[] | select(.subnqn == "'"$NQN"'")] | length' 2
stop
tls_forget

#!/bin/bash
# limit: 300
# Our host by TLS 1.3: to the kernel's own target, whose keys nvme-cli has derived in each of its ways, and to ours; who has another
# key, or is met without TLS; connections that are lost under I/O, with keys that change; discovery.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_tls.sh"

HOST=nqn.2026-11.com.example:host
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery
# volume [OPTION]: by the host's key, and what the option says
volume() { echo "tcp://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST&tls_key=$WORK/host.tls&reconnect_delay=200ms${1:+&$1}"; }
# refused WORDS COMMAND...: it fails, and says so in one line
refused() {
    fails "${@:2}" >"$WORK/said" 2>&1 || die "it was let in: ${*:2}"
    expect_match "what is said" "$(<"$WORK/said")" "$1"
    grep -q 'NVMeTLSkey-1:' "$WORK/said" && die "a key is said: $(<"$WORK/said")"
    expect "lines" "$(wc -l <"$WORK/said")" 1
}
"$NVLANE" key new --tls "$WORK/host.tls"
"$NVLANE" key new --tls "$WORK/wrong.tls"
key=$(<"$WORK/host.tls")
head -c 4M /dev/urandom >"$WORK/bytes"

# --- The kernel's target --------------------------------------------------------------------------
kernel_serve "file:$SCRATCH/a.img?size=64M&create"
plain="tcp://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST"
# A listener without TLS takes what is said for something else.
refused 'no TLS session: ' "$NVLANE" cat "$(volume)" --length 4k
kernel_tls_port
trap 'tls_end; kernel_stop' EXIT
from=0
for tools in "${TLS_EACH[@]}"; do
    tls_tools "$tools"
    tls_begin
    for form in --identity=0 --identity=1; do
        tls_insert "$HOST" "$NQN" "$key" "$form"
        from=$((from + 4))
        head -c 4M /dev/urandom >"$WORK/bytes"
        "$NVLANE" write "$(volume)" --offset ${from}M --input "$WORK/bytes"
        "$NVLANE" cat "$(volume "hdr_digest&data_digest")" --offset ${from}M --length 4M | cmp - "$WORK/bytes"
        cmp -n $((4 << 20)) "$WORK/bytes" <(tail -c +$(((from << 20) + 1)) "$SCRATCH/a.img") || die "the target's file has something else"
        "$NVLANE" id-ctrl "$plain" --tls-key "$WORK/host.tls" >/dev/null
        tls_forget
        echo "$tools $form"
    done
    tls_end
done
if [[ ${tools} == "${TLS_TOOLS_NEWER:-}" ]]; then
    "$NVLANE" key new --tls --hash sha384 "$WORK/long.tls"
    tls_begin
    tls_insert "$HOST" "$NQN" "$(<"$WORK/long.tls")"
    "$NVLANE" cat "$plain&tls_key=$WORK/long.tls" --offset ${from}M --length 4M | cmp - "$WORK/bytes"
    expect_match "the cipher" "$(<"$TLS_LOG")" AES-256-GCM
    tls_end
    tls_forget
fi
tls_tools "$TLS_TOOLS"
tls_begin
tls_insert "$HOST" "$NQN" "$key"
tls_insert "$HOST" "$DISCOVERY" "$key"
refused 'no TLS session: ' "$NVLANE" cat "$plain&tls_key=$WORK/wrong.tls" --length 4k
refused 'no TLS session: ' "$NVLANE" id-ctrl "$plain" --tls-key "$WORK/wrong.tls"
refused 'closed the connection|Connection reset|reset by the peer' "$NVLANE" cat "$plain" --length 4k
refused 'cannot read the key .*none.tls' "$NVLANE" cat "$plain&tls_key=$WORK/none.tls" --length 4k
"$NVLANE" discover -a 127.0.0.1 -s "$PORT" -q "$HOST" --tls-key "$WORK/host.tls" -o json >"$WORK/discovery.json"
expect_json "$WORK/discovery.json" "[.records[] | select(.subnqn == \"$NQN\") | .sectype] | join(\" \")" tls13
"$NVLANE" cat "discovery://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST&tls_key=$WORK/host.tls" --offset ${from}M --length 4M | cmp - "$WORK/bytes"

# written: what fio writes has come to the target's file since it was emptied there
written() { (($(data_bytes "$IMAGE") > IMAGE_BYTES)); }
# in_use VOLUME CHANGE...: fio goes on by our NBD door while the commands are carried out that take its connections away
in_use() {
    fallocate -p -o 8M -l 16M "$IMAGE"
    IMAGE_BYTES=$(data_bytes "$IMAGE")
    # Here, since the one in the background may come to it after we have looked.
    : >"$WORK/nbd.log"
    "$NVLANE" nbd "$1" --socket "$WORK/nbd.sock" --log info >"$WORK/nbd.log" 2>&1 </dev/null &
    door=$!
    await 60 says "$WORK/nbd.log" ready
    fio --name=lost --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/nbd.sock" --rw=randrw --bssplit=4k/60:64k/30:1M/10 --iodepth=8 \
        --size=16M --offset=8M --time_based --runtime=14 --verify=crc32c --verify_fatal=1 --verify_backlog=64 --serialize_overlap=1 \
        --randseed=1 --output-format=json --output="$WORK/lost.json" &
    fio=$!
    await 60 written
    "${@:2}"
    wait "$fio" || die "fio: $(tail -n 20 "$WORK/lost.json") $(tail -n 20 "$WORK/nbd.log")"
    expect_json "$WORK/lost.json" '[.jobs[].error] | add' 0
    kill -TERM "$door"
    wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/nbd.log")"
    rm -f "$WORK/nbd.sock"
}
# times WORDS: how often the door has said so
times() { grep -c "$1" "$WORK/nbd.log" || true; }
back() { (($(times 'path is live') > 1)); }
# The kernel's target forgets its connections, and knows another key from then on.
kernel_loses() {
    rm "$NVMET/ports/1/subsystems/$NQN"
    tls_forget
    "$NVLANE" key new --tls "$WORK/new.tls"
    tls_insert "$HOST" "$NQN" "$(<"$WORK/new.tls")"
    ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"
    sleep 2
    expect "times that it is live, with the old key" "$(times 'path is live')" 1
    cp "$WORK/new.tls" "$WORK/host.tls"
    await 30 back
}
IMAGE=$SCRATCH/a.img
in_use "$(volume "keep_alive_tmo=30s&ctrl_loss_tmo=120s")" kernel_loses
tls_forget
tls_end
kernel_stop
trap - EXIT

# --- Our target -----------------------------------------------------------------------------------
PLAIN=4421
serves() { PORT=$PLAIN serve "file:$SCRATCH/b.img?size=64M&create" --cores 2 --listen "tls://127.0.0.1:$PORT" --host-tls-key "$HOST=$WORK/host.tls"; }
serves
plain="tcp://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST"
for options in "" "hdr_digest&data_digest"; do
    head -c 8M /dev/urandom >"$WORK/bytes"
    "$NVLANE" write "$(volume "$options")" --input "$WORK/bytes"
    "$NVLANE" cat "$(volume "$options")" --length 8M | cmp - "$WORK/bytes"
done
"$NVLANE" paths "$(volume)" >/dev/null
expect_match "what info tells" "$("$NVLANE" info "$(volume)")" 'encrypted \(TLS 1.3\)'
refused 'no TLS session: .*refuses' "$NVLANE" cat "$plain&tls_key=$WORK/wrong.tls" --length 4k
refused 'no TLS session: .*refuses' "$NVLANE" id-ctrl "$plain" --tls-key "$WORK/wrong.tls"
PORT=$PLAIN refused 'no TLS session: ' "$NVLANE" cat "$(PORT=$PLAIN volume)" --length 4k
refused 'Invalid Host' "$NVLANE" cat "tcp://127.0.0.1:$PLAIN/$NQN?ns=1&hostnqn=$HOST" --length 4k
"$NVLANE" cat "discovery://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST&tls_key=$WORK/host.tls" --length 8M | cmp - "$WORK/bytes"
# A controller of OpenSSL's, which sends two tickets that nobody wants after the handshake: they are passed by, and what follows is read.
# It says that the connection is initialized (ICResp), and then nothing.
if [[ -n ${TLS_TOOLS_NEWER:-} ]]; then
    tls_tools "$TLS_TOOLS_NEWER"
    tls_insert "$HOST" "$NQN" "$(<"$WORK/host.tls")"
    read -r serial identity < <(tls_identities)
    {
        printf '\x01\x00\x80\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'
        head -c 112 /dev/zero
        pause 60
    } | openssl s_server -accept 4430 -quiet -nocert -tls1_3 -num_tickets 2 -ciphersuites TLS_AES_128_GCM_SHA256 \
        -psk "$(tls_psk "$serial")" -psk_identity "$identity" >"$WORK/heard" 2>&1 &
    await 20 eval '[[ -n $(ss -Hltn "sport = :4430") ]]'
    refused 'Connect to .*: no answer within' "$NVLANE" id-ctrl "tcp://127.0.0.1:4430/$NQN?hostnqn=$HOST" --tls-key "$WORK/host.tls" --timeout 8000
    grep -aqF "$HOST" "$WORK/heard" || die "its Connect was not heard: $(head -c 400 "$WORK/heard")"
    # The server alone: what speaks to it ends by itself.
    kill "$(ss -Hltnp 'sport = :4430' | grep -o 'pid=[0-9]*' | cut -d= -f2)"
    await 20 eval '[[ -z $(ss -Hltn "sport = :4430") ]]'
    # One that changes its keys (KeyUpdate) once it has heard a Connect: that is said, and nobody waits for what comes by the new ones.
    : >"$WORK/heard"
    {
        printf '\x01\x00\x80\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'
        head -c 112 /dev/zero
        until grep -aqF "$HOST" "$WORK/heard"; do sleep 0.2; done
        echo k
        pause 30
    } | openssl s_server -accept 4430 -nocert -tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256 \
        -psk "$(tls_psk "$serial")" -psk_identity "$identity" >"$WORK/heard" 2>&1 &
    await 20 eval '[[ -n $(ss -Hltn "sport = :4430") ]]'
    refused 'changes its TLS keys' "$NVLANE" id-ctrl "tcp://127.0.0.1:4430/$NQN?hostnqn=$HOST" --tls-key "$WORK/host.tls" --timeout 20000
    kill "$(ss -Hltnp 'sport = :4430' | grep -o 'pid=[0-9]*' | cut -d= -f2)"
    tls_forget
fi
killed() {
    kill_server
    sleep 1
    serves
    await 30 back
}
IMAGE=$SCRATCH/b.img
in_use "$(volume "keep_alive_tmo=30s&ctrl_loss_tmo=120s")" killed
# Both queues of a copy, and a gateway: what it serves itself is another connection.
"$NVLANE" copy "$(volume)" "$WORK/copied.img" --create
cmp "$WORK/copied.img" "$SCRATCH/b.img"
stop

# What has not arrived of a lost connection is not sent any more, once its host has given it up: no old write follows newer ones.
ip netns add away
ip link add near type veth peer name far netns away
ip addr add 198.51.100.1/24 dev near
ip link set near up
ip -n away addr add 198.51.100.2/24 dev far
ip -n away link set far up
ip netns exec away "$NVLANE" serve "file:$SCRATCH/c.img?size=64M&create" --listen "tls://198.51.100.2:$PORT" --nqn "$NQN" \
    --host-tls-key "$HOST=$WORK/host.tls" --socket "$WORK/away.sock" --data-dir "$WORK/away" >"$WORK/away.log" 2>&1 </dev/null &
away=$!
await 60 says "$WORK/away.log" 'nvme connect'
: >"$WORK/nbd.log"
"$NVLANE" nbd "tcp://198.51.100.2:$PORT/$NQN?ns=1&hostnqn=$HOST&tls_key=$WORK/host.tls&keep_alive_tmo=2s&ctrl_loss_tmo=8s" --socket "$WORK/nbd.sock" \
    --log info >"$WORK/nbd.log" 2>&1 </dev/null &
door=$!
await 60 says "$WORK/nbd.log" ready
fio --name=away --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/nbd.sock" --rw=randwrite --bs=256k --iodepth=16 --size=32M \
    --time_based --runtime=60 --output="$WORK/away.fio" &
fio=$!
IMAGE=$SCRATCH/c.img IMAGE_BYTES=0
await 60 written
# queued: bytes that the kernel has for the target, and would send again; not of connections that are being made
queued() { ss -Htn state connected exclude syn-sent "dport = :$PORT and dst 198.51.100.2" | awk '{ sum += $3 } END { print sum + 0 }'; }
tc qdisc add dev near root netem loss 100%
ip netns exec away tc qdisc add dev far root netem loss 100%
await 20 eval '(($(queued) > 0))'
await 30 says "$WORK/nbd.log" 'path is (lost|gone)'
gone() { (($(queued) == 0)); }
await 60 gone
wait "$fio" && die "writes succeeded without a target"
kill -TERM "$door"
wait "$door" || true
kill -KILL "$away"
wait "$away" 2>/dev/null || true
ip netns del away

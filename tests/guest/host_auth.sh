#!/bin/bash
# limit: 300
# Our host proves who it is to the kernel's own target, by DH-HMAC-CHAP: each hash function and group, one way and both, without a
# key and with wrong ones; keys that change while they are in use.
. "$(dirname "$0")/harness.sh"

HOST=nqn.2026-11.com.example:host
# makes FILE HMAC LENGTH: a key of nvme-cli's
makes() {
    nvme gen-dhchap-key --hmac="$2" --key-length="$3" --nqn="$HOST" >"$1"
    chmod 600 "$1"
}
# demands [NAME VALUE]...: sets attributes of the host in the kernel's target
demands() {
    while (($#)); do
        echo "$2" >"$NVMET/hosts/$HOST/dhchap_$1"
        shift 2
    done
}
# volume [OPTION]: by the host's key, and what the option says
volume() {
    echo "tcp://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST&dhchap_key=$WORK/host.key&reconnect_delay=200ms${1:+&$1}"
}
both=dhchap_ctrl_key=$WORK/ctrl.key
# refused WORDS COMMAND...: it fails, and says so in one line
refused() {
    fails "${@:2}" >"$WORK/said" 2>&1 || die "it was let in: ${*:2}"
    expect_match "what is said" "$(<"$WORK/said")" "$1"
    grep -q 'DHHC-1:' "$WORK/said" && die "a key is said: $(<"$WORK/said")"
    expect "lines" "$(wc -l <"$WORK/said")" 1
}
# forget: the target knows the host no longer, and stops
forget() {
    rm "$NVMET/subsystems/$NQN/allowed_hosts/$HOST"
    rmdir "$NVMET/hosts/$HOST"
    kernel_stop
}

modprobe nvme-auth 2>/dev/null || true
kernel_serve "file:$SCRATCH/a.img?size=64M&create"
trap forget EXIT
mkdir "$NVMET/hosts/$HOST"
[[ -e $NVMET/hosts/$HOST/dhchap_key ]] || die "this kernel's target has no authentication"
echo 0 >"$NVMET/subsystems/$NQN/attr_allow_any_host"
ln -s "$NVMET/hosts/$HOST" "$NVMET/subsystems/$NQN/allowed_hosts/$HOST"
makes "$WORK/host.key" 0 32
makes "$WORK/ctrl.key" 2 48
makes "$WORK/wrong.key" 1 32
demands key "$(<"$WORK/host.key")"
head -c 4M /dev/urandom >"$WORK/data"

# The kernel closes the connection at times before its refusal has gone out.
differ='refused authentication: the keys differ|during authentication: do the keys differ|authentication: it closed the connection|authentication: Connection reset'
# Whoever has none, another's, or is to be proved more than there is.
plain="tcp://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST"
refused 'demands authentication: give.*dhchap_key' "$NVLANE" cat "$plain" --length 4k
refused 'demands authentication: give.*--dhchap-key' "$NVLANE" id-ctrl "$plain"
refused "$differ" "$NVLANE" cat "$plain&dhchap_key=$WORK/wrong.key" --length 4k
refused "$differ" "$NVLANE" id-ctrl "$plain" --dhchap-key "$WORK/wrong.key"
refused 'cannot read the key .*none.key' "$NVLANE" cat "$plain&dhchap_key=$WORK/none.key" --length 4k
refused 'authentication' "$NVLANE" cat "$(volume "$both")" --length 4k
"$NVLANE" write "$(volume)" --input "$WORK/data"
cmp -n $((4 << 20)) "$WORK/data" "$SCRATCH/a.img" || die "the target's file has something else"

# Each hash function and group, both ways: all of them in the full run.
demands ctrl_key "$(<"$WORK/ctrl.key")"
at=0
for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
    for hash in sha256 sha384 sha512; do
        at=$((at + 1))
        ((FULL || at % 4 == 1)) || continue
        makes "$WORK/host.key" $((at % 4)) $((at % 4 == 3 ? 64 : at % 4 == 2 ? 48 : 32))
        demands key "$(<"$WORK/host.key")" hash "hmac($hash)" dhgroup "$group"
        "$NVLANE" cat "$(volume)" --length 4M | cmp - "$WORK/data" || die "$hash $group, the host alone"
        "$NVLANE" cat "$(volume "$both&hdr_digest&data_digest")" --length 4M | cmp - "$WORK/data" || die "$hash $group, both"
        "$NVLANE" id-ctrl "$plain" --dhchap-key "$WORK/host.key" --dhchap-ctrl-key "$WORK/ctrl.key" >/dev/null
        echo "proved by $hash and $group"
    done
done
refused 'did not prove who it is' "$NVLANE" cat "$(volume "dhchap_ctrl_key=$WORK/wrong.key")" --length 4k
"$NVLANE" list "$(volume "$both")" >"$WORK/list"
grep -q "$NQN" "$WORK/list" || grep -q tcp:// "$WORK/list" || die "$(<"$WORK/list")"
refused 'asks for no authentication' "$NVLANE" discover -a 127.0.0.1 -s "$PORT" -q "$HOST" --dhchap-key "$WORK/host.key" --dhchap-ctrl-key "$WORK/ctrl.key"
"$NVLANE" cat "discovery://127.0.0.1:$PORT/$NQN?ns=1&hostnqn=$HOST&dhchap_key=$WORK/host.key&$both" --length 4M | cmp - "$WORK/data"

# A volume that is in use stays in use while the key changes, and comes back with the new one.
demands hash 'hmac(sha512)' dhgroup ffdhe4096
: >"$WORK/nbd.log"
"$NVLANE" nbd "$(volume "$both&keep_alive_tmo=30s&ctrl_loss_tmo=120s")" --socket "$WORK/nbd.sock" --log info >"$WORK/nbd.log" 2>&1 </dev/null &
door=$!
await 60 says "$WORK/nbd.log" ready
fio --name=keys --ioengine=nbd --uri="nbd+unix:///?socket=$WORK/nbd.sock" --rw=randrw --bs=16k --iodepth=8 --size=16M --offset=8M \
    --time_based --runtime=20 --verify=crc32c --verify_fatal=1 --verify_backlog=64 --serialize_overlap=1 --randseed=1 \
    --output-format=json --output="$WORK/keys.json" &
fio=$!
sleep 3
makes "$WORK/new.key" 3 64
demands key "$(<"$WORK/new.key")"
# times WORDS: how often the door has said so
times() { grep -c "$1" "$WORK/nbd.log" || true; }
lives=$(times 'path is live') losses=$(times 'path is lost')
is_lost() { (($(times 'path is lost') > losses)); }
# The kernel ends the connections itself: no silence is waited for.
rm "$NVMET/ports/1/subsystems/$NQN"
await 30 is_lost
ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"
sleep 3
expect "times that it is live, with the old key" "$(times 'path is live')" "$lives"
cp "$WORK/new.key" "$WORK/host.key"
back() { (($(times 'path is live') > lives)); }
await 30 back
wait "$fio" || die "fio: $(tail -n 20 "$WORK/keys.json") $(tail -n 20 "$WORK/nbd.log")"
expect_json "$WORK/keys.json" '[.jobs[].error] | add' 0
kill -TERM "$door"
wait "$door" || die "the door did not end well: $(tail -n 20 "$WORK/nbd.log")"
grep -q 'DHHC-1:' "$WORK/nbd.log" && die "a key stands in the log"

# What everybody may read is warned about, once for each file.
chmod 644 "$WORK/host.key"
"$NVLANE" cat "$(volume)" --length 4k 2>"$WORK/said" >/dev/null
expect "warnings" "$(grep -c "everybody may read the key $WORK/host.key" "$WORK/said")" 1

#!/bin/bash
# limit: 300
# processors: 2
# In-band authentication (DH-HMAC-CHAP) of a stock host, and of the subsystem to it: each hash function and group, keys of other
# tools and our own, a wrong key, none, a name that has none, keys that change while they are in use.
. "$(dirname "$0")/harness.sh"

HOST=nqn.2026-11.com.example:host
ID=5f6b9f0e-3a3c-4b8e-9d1f-0c6a1d2e3f40
# What both take if nothing is said.
AGREED='qid 0: authenticated with hash hmac\(sha512\) dhgroup ffdhe2048'
said() { [[ $(kernel_said) =~ $1 ]]; }
logged() { grep -qE "$1" "$WORK/serve.log"; }
# as_host SECRET [OPTION]...: connects under its name
as_host() { connect -q "$HOST" -I "$ID" --dhchap-secret="$1" "${@:2}"; }
# makes FILE HMAC LENGTH: a key of nvme-cli's
makes() {
    nvme gen-dhchap-key --hmac="$2" --key-length="$3" --nqn="$HOST" >"$1"
    chmod 600 "$1"
}

modprobe nvme-auth 2>/dev/null || true
cd "$WORK"
makes "$WORK/host.key" 1 32
"$NVLANE" key new --hash sha384 "$WORK/ctrl.key"
expect "the mode of a new key" "$(stat -c %a "$WORK/ctrl.key")" 600
key=$(<"$WORK/host.key")
ctrl=$(<"$WORK/ctrl.key")
"$NVLANE" key check "$WORK/host.key"
serve mem:64M --host-key "$HOST=$WORK/host.key"
logged 'DHHC-1' && die "a key stands in the log"

# Without a key, with another, and under another name.
fails connect -q "$HOST" -I "$ID"
makes "$WORK/wrong.key" 0 32
fails as_host "$(<"$WORK/wrong.key")"
await 30 logged "host refused: authentication has failed.*$HOST.*why=the keys differ"
logged 'host connected' && die "somebody was let in"
expect_match "what metrics tell" "$(ctl metrics)" 'nvlane_refused_total\{why="authentication"\} [1-9]'
expect_json <(ctl controller list -o json) length 0

# With it, by one queue and several; the kernel says by what.
as_host "$key" -i 2
await 30 said "$AGREED"
await 30 logged "host connected.*$HOST"
device=$(namespace 1)
verified_io "$device" 8M
ctl controller list -o json >"$WORK/list.json"
expect_json "$WORK/list.json" '.[0].authentication' 'sha512 ffdhe2048'
disconnect

# Both ways, and each hash function and group: all of them in the full run.
hashes=(sha256 sha384 sha512)
at=0
for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
    for hash in "${hashes[@]}"; do
        at=$((at + 1))
        ((FULL || at % 4 == 1)) || continue
        ctl host set-key "$HOST" --dhchap-key "$WORK/host.key" --dhchap-ctrl-key "$WORK/ctrl.key" \
            --dhchap-hash "$hash" --dhchap-dhgroup "$group"
        kernel_from_now
        as_host "$key" --dhchap-ctrl-secret="$ctrl" -i 1
        await 30 said "qid 0: authenticated with hash hmac\\($hash\\) dhgroup $group"
        await 30 said 'qid 0: controller authenticated'
        dd if="$(namespace 1)" of=/dev/null bs=64k count=16 iflag=direct status=none
        disconnect
    done
done
# A subsystem that cannot prove who it is.
fails as_host "$key" --dhchap-ctrl-secret="$(<"$WORK/wrong.key")"

# While a key is replaced the host comes by either.
makes "$WORK/next.key" 2 48
cat "$WORK/host.key" "$WORK/next.key" >"$WORK/both.key"
chmod 600 "$WORK/both.key"
expect_match "a file with two keys" "$(ctl host set-key "$HOST" --dhchap-key "$WORK/both.key")" 'holds two keys, and either will do'
for secret in "$(<"$WORK/next.key")" "$key"; do
    as_host "$secret" -i 1
    dd if="$(namespace 1)" of=/dev/null bs=64k count=4 iflag=direct status=none
    disconnect
done
fails as_host "$(<"$WORK/wrong.key")"

# A new key, and a host that proves by it who it is while it is connected, I/O going on.
ctl host set-key "$HOST" --dhchap-key "$WORK/host.key"
as_host "$key" -i 2
controller=$(controllers)
device=$(namespace 1)
makes "$WORK/new.key" 3 64
dd if="$device" of=/dev/null bs=64k count=4 iflag=direct status=none
fio --name=beside --filename="$device" --direct=1 --rw=randread --bs=4k --runtime=15 --time_based --size=8M \
    --ioengine=libaio --iodepth=4 --output="$WORK/beside" &
beside=$!
kernel_from_now
cp "$WORK/new.key" "$WORK/host.key"
ctl host set-key "$HOST" --dhchap-key "$WORK/host.key"
is_live "$controller" || die "what is connected stays"
cat "$WORK/new.key" >"/sys/class/nvme/$controller/dhchap_secret"
await 20 said "$AGREED"
is_live "$controller" || die "it has proved who it is"
wait "$beside" || die "I/O failed meanwhile: $(tail -n 20 "$WORK/beside")"
# Started again, the server still wants it, and the host comes back by it; who has the old one does not.
stop
await 30 eval '! is_live "$controller"'
kernel_from_now
serve mem:64M --host-key "$HOST=$WORK/host.key"
await 60 is_live "$controller"
await 30 said "$AGREED"
dd if="$(namespace 1)" of=/dev/null bs=64k count=4 iflag=direct status=none
ctl host list
disconnect
fails as_host "$key" -i 1

# No key any more: nothing to prove.
ctl host clear-key "$HOST"
connect -q "$HOST" -I "$ID" -i 1
dd if="$(namespace 1)" of=/dev/null bs=64k count=4 iflag=direct status=none
disconnect
stop

#!/bin/bash
# limit: 240
# Volumes that cannot be served: one clear line, exit status 1, and nothing is touched.
. "$(dirname "$0")/harness.sh"

# refused WORD OPTION...: WORD is in the line
refused() {
    local word=$1 status=0
    shift
    timeout 120 "$NVLANE" serve --listen 127.0.0.1:4450 --socket "$WORK/refused.sock" \
        --data-dir "$WORK/refused" "$@" >"$WORK/said" 2>&1 </dev/null || status=$?
    expect "exit status of: serve $*" $status 1
    expect "lines said about: serve $*" "$(grep -c . "$WORK/said")" 1
    expect_match "what is said about: serve $*" "$(<"$WORK/said")" "$word"
    echo "$(<"$WORK/said")"
}

refused does-not-exist "$SCRATCH/does-not-exist"
[[ ! -e $SCRATCH/does-not-exist ]] || die "a missing volume was created"
printf 'tiny' >"$SCRATCH/tiny"
refused tiny "$SCRATCH/tiny"
expect "the tiny file" "$(<"$SCRATCH/tiny")" tiny
refused "$SCRATCH" "$SCRATCH"
refused mem "mem:notasize"
refused nosuch "nosuch:thing(mem:1M)"

# Not readable for whom it is served as.
truncate -s 1M "$SCRATCH/secret"
chmod 600 "$SCRATCH/secret"
mkdir -m 777 "$WORK/nobody"
status=0
setpriv --reuid 65534 --regid 65534 --clear-groups timeout 120 "$NVLANE" serve \
    --listen 127.0.0.1:4450 --socket "$WORK/nobody/ctl" --data-dir "$WORK/nobody/data" \
    "$SCRATCH/secret" >"$WORK/said" 2>&1 </dev/null || status=$?
expect "exit status with an unreadable volume" $status 1
expect_match "what is said about an unreadable volume" "$(<"$WORK/said")" secret

# Already served: the second server is refused, the first goes on.
truncate -s 64M "$SCRATCH/served"
serve "$SCRATCH/served"
refused served "$SCRATCH/served"
connect
verified_io "$(namespace 1)" 8M
disconnect
# The port is taken.
status=0
timeout 120 "$NVLANE" serve --listen "127.0.0.1:$PORT" --socket "$WORK/x.sock" --data-dir "$WORK/x" \
    mem:1M >"$WORK/said" 2>&1 </dev/null || status=$?
expect "exit status when the port is taken" $status 1
expect_match "what is said when the port is taken" "$(<"$WORK/said")" "$PORT"
stop

# A block device that is mounted; and one that another server has, by whatever name.
truncate -s 64M "$SCRATCH/disk.img"
loop=$(losetup -f --show "$SCRATCH/disk.img")
mkfs.ext4 -q "$loop"
mount "$loop" /mnt/test
echo here >/mnt/test/file
refused "$loop is in use [(]mounted, or part of another device[)]; unmount it, or add [?]ro" "$loop"
expect "a file on the mounted device" "$(</mnt/test/file)" here
# Nor is it shared with other servers then.
shared=(--shared --nqn nqn.2026-11.com.example:shared --uuid b0c2a1f6-7d8e-4f3a-9b1c-2d3e4f5a6b7c)
refused "$loop is in use [(]mounted, or part of another device[)]" "$loop" "${shared[@]}" --cntlid 1-9
expect "a file on the mounted device" "$(</mnt/test/file)" here
umount /mnt/test
serve "$loop" "${shared[@]}" --cntlid 10-19
"$NVLANE" serve "$loop" "${shared[@]}" --cntlid 20-29 --listen 127.0.0.1:4451 --socket "$WORK/second.sock" \
    --data-dir "$WORK/second" >"$WORK/second.log" 2>&1 </dev/null &
second=$!
await 60 grep -q 'nvme connect' "$WORK/second.log"
kill "$second"
wait "$second" || die "the second server that shares the device: $(<"$WORK/second.log")"
stop
serve "$loop"
refused "$loop is in use" "$loop"
node=$WORK/other-node
mknod "$node" b $((0x$(stat -c %t "$loop"))) $((0x$(stat -c %T "$loop")))
refused "$node is in use" "$node"
fails mount "$loop" /mnt/test
connect
mount "$(namespace 1)" /mnt/test
expect "the file, as the host reads it" "$(</mnt/test/file)" here
umount /mnt/test
disconnect
stop
rm "$node"
losetup -d "$loop"

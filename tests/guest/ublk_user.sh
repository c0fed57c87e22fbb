#!/bin/bash
# limit: 180
# A device of a user who is not root: its nodes are given to him as udev would, he makes it, verifies what he
# writes, and takes it away; other users, and what he may not have, are refused.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
has_feature UNPRIVILEGED_DEV || lacks "this kernel has no devices of users"
id owner >/dev/null 2>&1 || useradd -M -s /bin/bash owner
id other >/dev/null 2>&1 || useradd -M -s /bin/bash other
chmod 666 /dev/ublk-control
mkdir -p "$SCRATCH/owned"
chown owner "$SCRATCH/owned"
as() { setpriv --reuid "$1" --regid "$1" --clear-groups -- "${@:2}"; }

# What a rule of udev does when a node appears.
(
    until [[ -e "$WORK/over" ]]; do
        for node in /dev/ublk[bc]*; do
            [[ -e $node ]] && chown owner "$node" 2>/dev/null || true
        done
        sleep 0.02
    done
) &
rule=$!

is_owners() { [[ $(stat -c %U "$DEVICE") == owner ]]; }
# his WORDS [OPTION]...: he makes a device, of which it says WORDS, and only he takes it away
his() {
    local words=$1 said status=0
    shift
    : >"$WORK/ublk.log"
    as owner "$NVLANE" ublk add "$SCRATCH/owned/disk.img?size=64M&create" -d 16 "$@" >"$WORK/ublk.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/ublk.log"
    expect_match "what it says" "$(<"$WORK/ublk.log")" "$words"
    await 30 is_owners
    verified_io "$DEVICE" 8M
    said=$(as other "$NVLANE" ublk del "$ID" 2>&1) && die "another user has deleted it: $said"
    expect "the device is there" "$(ls "$DEVICE")" "$DEVICE"
    as owner "$NVLANE" ublk del "$ID"
    wait "$UBLK_SERVER" || status=$?
    expect "the server's exit status after del" $status 0
}

his ', copy( in batches)?, from' -q 2
! has_feature PER_IO_DAEMON || his ' with 2 threads each, copy, from' -q 1 --threads 2
said=$(fails as owner "$NVLANE" ublk add "$SCRATCH/owned/disk.img" --user-copy)
expect_match "user copy without root" "$said" 'other than root go by copy'
said=$(fails as owner "$NVLANE" ublk add "$SCRATCH/owned/disk.img" --recover)
expect_match "recovery without root" "$said" 'end with their server'
touch "$WORK/over"
wait $rule
modprobe -r ublk_drv

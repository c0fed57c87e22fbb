#!/bin/bash
# limit: 180
# kernel: newest
# devices: usual
# Who may pass what to an NVMe device: a user without permission, one who may read, one who may write;
# each refusal says what would mend it.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)
controller=/dev/$(controller_of "$plain")
head -c 4096 /dev/urandom >"$WORK/a"
chmod 755 "$WORK"
chmod 644 "$WORK/a"

# as_nobody PROGRAM...: without any capability
as_nobody() {
    setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all "$@"
}

# nobody_is_refused WORDS URI io|admin ...
nobody_is_refused() {
    local words=$1
    shift
    if as_nobody "$EXAMPLE" "$@" >"$WORK/out" 2>"$WORK/said"; then die "succeeded: $*"; fi
    expect_match "what $* is told" "$(tr '\n' ' ' <"$WORK/said")" "$words"
}

# told CNS [PROGRAM...]: the status of Identify of that kind by our ring, whoever asks; its data is in $WORK/out
told() {
    local cns=$1
    shift
    "$@" "$EXAMPLE" "$plain" admin 0x06 nsid=1 cdw10="$cns" read=4096 >"$WORK/out" 2>"$WORK/said" || true
    grep '^status ' "$WORK/said" || die "$(<"$WORK/said")"
}

give "$plain" io 0x01 cdw10=0 cdw12=7 data="$WORK/a"

# Nothing.
chmod 600 "$plain"
nobody_is_refused "$plain: Permission denied.*chmod.*[?]ro" "$plain" io 0x02 cdw12=7 read=4096
expect_match "info" "$(fails as_nobody "$NVLANE" info "$plain")" 'Permission denied.*run as root'

# What the user's doctor says would mend it does: root's part of it by root.
own=$NVLANE
of_nobody() { as_nobody "$own" "$@"; }
NVLANE=of_nobody
id() { echo nobody; }
mend char_device missing echo "$plain"
expect "writing then" "$(state char_device_write "$plain")" ok
unset -f id
NVLANE=$own
as_nobody "$EXAMPLE" "$plain" io 0x02 cdw12=7 read=4096 2>"$WORK/said" | cmp - "$WORK/a" || die "$(<"$WORK/said")"
chown root "$plain"
if command -v setfacl >/dev/null; then setfacl -b "$plain"; fi

# Reading.
chmod 604 "$plain"
nobody_is_refused "[?]ro" "$plain" io 0x02 cdw12=7 read=4096
as_nobody "$EXAMPLE" "$plain?ro" io 0x02 cdw12=7 read=4096 2>"$WORK/said" >"$WORK/out" ||
    die "$(<"$WORK/said")"
cmp "$WORK/a" "$WORK/out"
nobody_is_refused 'Write Protected' "$plain?ro" io 0x01 cdw12=7 data="$WORK/a"
as_nobody "$NVLANE" info "$plain?ro" >/dev/null

# Writing: what the effects log says changes blocks at most.
chmod 606 "$plain"
as_nobody "$EXAMPLE" "$plain" io 0x01 cdw10=8 cdw12=7 data="$WORK/a" 2>"$WORK/said" || die "$(<"$WORK/said")"
as_nobody "$EXAMPLE" "$plain" io 0x02 cdw10=8 cdw12=7 read=4096 2>/dev/null | cmp - "$WORK/a"
as_nobody "$EXAMPLE" "$plain" io 0x00 2>/dev/null
# A vendor's command takes CAP_SYS_ADMIN, whatever the permissions are.
nobody_is_refused 'CAP_SYS_ADMIN.*Operation Denied' "$plain" io 0x82 read=512
# said_by CHECK PROGRAM...: its state, as that doctor says
said_by() {
    local name=$1
    shift
    "$@" -o json | jq -r --arg name "$name" '.checks[] | select(.name == $name) | .state'
}
expect "vendor commands below a layer" "$(said_by vendor_commands as_nobody "$NVLANE" doctor "delay:1ms($plain)")" absent
expect "root's vendor commands" "$(said_by vendor_commands "$NVLANE" doctor "$plain")" ok
expect "root's controller" "$(said_by admin "$NVLANE" doctor "$controller")" ok
# Admin commands go by the controller's device.
nobody_is_refused "$controller: Permission denied.*Operation Denied" "$plain" admin 0x02 cdw10=0x007f0002 nsid=0xffffffff read=512
for cns in 0 1 5 6 8; do
    nobody_is_refused "$controller: Permission denied.*Operation Denied" "$plain" admin 0x06 nsid=1 cdw10=$cns read=4096
done
expect_match "admin then" "$(fails as_nobody "$NVLANE" admin "$controller" -O 6 -l 4096 --cdw10 1 -r -b)" 'Permission denied'
# The kernel asks for no more than reading there: five kinds of Identify are for everyone, whatever else is not.
for mode in 604 606; do
    chmod $mode "$controller"
    as_nobody "$EXAMPLE" "$plain" admin 0x06 cdw10=1 read=4096 2>"$WORK/said" >"$WORK/out" || die "$mode: $(<"$WORK/said")"
    nvme id-ctrl "$controller" -b | cmp - "$WORK/out"
    as_nobody "$NVLANE" admin "$controller" -O 6 -l 4096 --cdw10 1 -r -b 2>"$WORK/said" >"$WORK/out" || die "$mode: $(<"$WORK/said")"
    nvme id-ctrl "$controller" -b | cmp - "$WORK/out"
    for cns in 0 1 5 6 8; do
        wanted=$(told $cns)
        mv "$WORK/out" "$WORK/root"
        # The last one not every emulator knows.
        [[ $cns == 8 ]] || expect_match "root's Identify $cns" "$wanted" '^status 0x0 '
        expect "Identify $cns of nobody with $mode" "$(told $cns as_nobody)" "$wanted"
        cmp "$WORK/root" "$WORK/out"
    done
    nobody_is_refused 'CAP_SYS_ADMIN.*Operation Denied' "$plain" admin 0x06 cdw10=2 read=4096
    nobody_is_refused 'CAP_SYS_ADMIN.*Operation Denied' "$plain" admin 0x02 cdw10=0x007f0002 nsid=0xffffffff read=512
    expect "the node's admin commands with $mode" "$(as_nobody "$NVLANE" doctor "$plain" -o json |
        jq -r '.checks[] | select(.name == "admin").found')" \
        "$controller opens, but admin commands other than Identify need CAP_SYS_ADMIN"
done

# Root has everything but what the driver lives by: Number of Queues, Autonomous Power State Transition, Host Memory Buffer, the
# keep alive timer and Host Behavior Support.
for feature in 0x07 0x0c 0x0d 0x0f 0x16; do
    expect_match "root's feature $feature" "$(fails "$NVLANE" admin "$plain" -O 0x09 --cdw10 $feature)" \
        'the kernel does not let this user pass.*Set Features: Operation Denied'
    expect_match "root's feature $feature at the controller" \
        "$(fails "$NVLANE" admin "$controller" -O 0x09 --cdw10 $feature)" \
        "$controller: Permission denied.*the kernel does not let this user pass"
done

# What is no NVMe namespace.
expect_match "another device" "$(fails "$NVLANE" info nvme:/dev/null)" 'no NVMe namespace'
expect_match "a controller" "$(fails "$NVLANE" info "nvme:$controller")" 'no NVMe namespace'
expect_match "nothing" "$(fails "$NVLANE" info /dev/ng99n1)" 'nvme list'

# Read-only stops root as well, though his descriptor lets everything pass.
expect_match "a write" "$(fails "$EXAMPLE" "$plain?ro" io 0x01 cdw12=7 data="$WORK/a")" 'Write Protected'
# One block, from block 0 to block 8.
head -c 32 /dev/zero >"$WORK/range"
expect_match "a copy" "$(fails "$EXAMPLE" "$plain?ro" io 0x19 cdw10=8 data="$WORK/range")" 'Write Protected'
expect_match "a vendor's command" "$(fails "$EXAMPLE" "$plain?ro" io 0x81 data="$WORK/a")" 'Write Protected'
expect_match "format" "$(fails "$EXAMPLE" "$plain?ro" admin 0x80 nsid=1)" 'Write Protected'
# Below a layer as well.
expect_match "a write below" "$(fails "$EXAMPLE" "linear:($plain?ro)" io 0x01 cdw12=7 data="$WORK/a")" 'Write Protected'

#!/bin/bash
# limit: 180
# `doctor` and `ublk features` say of each kernel what its version has, and what doctor names as a mend mends it.
. "$(dirname "$0")/harness.sh"

release=$(uname -r)
IFS=. read -r major minor _ <<<"$release"
at_least() {
    local wanted_major=${1%.*} wanted_minor=${1#*.}
    ((major > wanted_major || (major == wanted_major && minor >= wanted_minor)))
}

# What each kernel has is known.
state io_uring >"$WORK/first"
expect "io_uring" "$(<"$WORK/first")" ok
while read -r name since; do
    wanted=absent
    if at_least "$since"; then wanted=ok; fi
    found=$(jq -r --arg name "$name" '.checks[] | select(.name == $name) | "\(.state)"' "$WORK/doctor.json")
    expect "$name on $release" "$found" "$wanted"
done <<'END'
registered_buffers 6.1
registered_files 6.1
big_entries 6.1
iopoll 6.1
sqpoll 6.1
locked_memory 6.1
bpf 6.1
aio 6.1
hybrid_iopoll 6.13
mixed_entries 6.19
bpf_ring 7.1
END

# Each mend mends.
modprobe -r ublk_drv nbd null_blk 2>/dev/null || true
has_ublk=1
if modinfo ublk_drv >"$WORK/modinfo" 2>&1; then
    mend ublk absent
else
    has_ublk=0
    expect "ublk without its module" "$(state ublk)" absent
    expect_json "$WORK/doctor.json" '.checks[] | select(.name == "ublk") | .mend' null
    expect_json "$WORK/doctor.json" '.checks[] | select(.name == "ublk") | .found' \
        "there is no /dev/ublk-control, and this kernel ($release) comes without the module ublk_drv"
fi
modprobe -r nbd 2>/dev/null || true
mend nbd absent
modprobe null_blk poll_queues=0
await 20 test -b /dev/nullb0
mend poll_queues absent echo /dev/nullb0
before=$(sysctl -n fs.aio-max-nr)
sysctl -qw fs.aio-max-nr=0
mend aio absent
sysctl -qw fs.aio-max-nr="$before"
if [[ -e /proc/sys/kernel/io_uring_disabled ]]; then
    sysctl -qw kernel.io_uring_disabled=2
    mend io_uring absent
fi

# A user's program that may load BPF programs by its file's capabilities.
sysctl -qw kernel.unprivileged_bpf_disabled=2 2>/dev/null || true
mkdir -m 755 "$SCRATCH/bin"
cp "$NVLANE" "$SCRATCH/bin/nvlane"
chmod 755 "$SCRATCH" "$SCRATCH/bin/nvlane"
own=$NVLANE
as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$SCRATCH/bin/nvlane" "$@"; }
NVLANE=as_user
mend bpf absent

# The same user's limit of locked memory, which only root can raise.
ulimit -l 64
mend locked_memory absent
ulimit -l 64
mend registered_buffers absent
NVLANE=$own

# Without ublk each of its commands says so in a line, and touches nothing.
if ((!has_ublk)); then
    truncate -s 1M "$WORK/disk.img"
    for words in features "add $WORK/disk.img" list "recover 0"; do
        # shellcheck disable=SC2086 # several words
        if "$NVLANE" ublk $words >"$WORK/out" 2>"$WORK/err"; then die "ublk $words succeeds without a driver"; fi
        expect "lines of ublk $words" "$(wc -l <"$WORK/err")" 1
        grep -F 'this machine has no ublk' "$WORK/err" >/dev/null || die "ublk $words says: $(<"$WORK/err")"
    done
    modprobe -r nbd null_blk
    echo "$release: no ublk, and said so"
    exit 0
fi

# ublk, by the driver's own word.
"$NVLANE" ublk features -o json >"$WORK/features.json"
expect_json "$WORK/features.json" .kernel "$release"
# The first that can be asked.
is_asked=0
if at_least 6.5; then is_asked=1; fi
while read -r name there since; do
    wanted=false
    if ((is_asked)) && at_least "$since"; then wanted=true; fi
    expect "$name on $release" "$there" "$wanted"
done < <(jq -r '.features[] | "\(.name) \(.there) \(.since)"' "$WORK/features.json")
expect_json "$WORK/features.json" '.features | length' 21
best="copy"
if at_least 6.5; then best="user copy"; fi
if at_least 6.16; then best="zero copy"; fi
expect_json "$WORK/features.json" .data_path.files_and_devices "$best"
in_kernel=false
if at_least 7.1; then in_kernel=true; fi
expect_json "$WORK/features.json" .programs_in_kernel "$in_kernel"
echo "$release: $(jq -r '[.features[] | select(.there)] | length' "$WORK/features.json") features of ublk, data by $best"
modprobe -r ublk_drv nbd null_blk

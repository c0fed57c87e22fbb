# For sourcing after harness.sh: the guest's NVMe devices (xtask/src/guest/nvme.rs), with poll queues and without the
# kernel's multipath, and the program EXAMPLE that gives any command to any volume (crates/volume/examples/nvme.rs).
EXAMPLE=${NVME_EXAMPLE:?the example nvme of crates/volume}
# No more poll queues than processors, says the driver.
modprobe nvme poll_queues="$(nproc)"

# with_heads: the drivers anew with the kernel's multipath: what several controllers have is one device, a head. Of QEMU's
# from 10 on so is every other namespace. Devices are to be looked for again.
with_heads() {
    # A ring ends some time after its process, and holds its devices until then.
    await 20 modprobe -q -r nvme nvme-tcp nvme-fabrics nvme-core
    modprobe nvme-core multipath=Y
    modprobe nvme poll_queues="$(nproc)"
    modprobe nvme-tcp
}

# device SERIAL NSID: the character device of that namespace
device_now() {
    local link path
    for link in /sys/class/nvme-generic/ng*; do
        path=$(readlink -f "$link")
        [[ $(tr -d ' ' <"${path%/*}/serial") == "$1" ]] || continue
        # Its node is made after it.
        [[ $(<"${path%/*}/nvme${path##*/ng}/nsid") == "$2" && -c /dev/${path##*/} ]] && echo "/dev/${path##*/}" && return
    done
    return 1
}
device() {
    local until=$((SECONDS + 30)) late=0
    until device_now "$@" 2>/dev/null; do
        ((!late)) || die "no namespace $2 of $1: $(nvme list -v 2>&1)"
        ((SECONDS < until)) || late=1
        sleep 0.2
    done
}

# controller_of DEVICE: nvmeX; not of heads
controller_of() {
    local path
    path=$(readlink -f "/sys/class/nvme-generic/${1##*/}")
    path=${path%/*}
    echo "${path##*/}"
}

# slot_of CONTROLLER: its PCI address
slot_of() { basename "$(readlink -f "/sys/class/nvme/$1/device")"; }

unbind() { echo "$1" >/sys/bus/pci/drivers/nvme/unbind; }
bind() { echo "$1" >/sys/bus/pci/drivers/nvme/bind; }

# give URI io|admin OPCODE [FIELD=VALUE]...: its result, as a number; what it says is in $WORK/said
give() {
    "$EXAMPLE" "$@" 2>"$WORK/said" || die "$*: $(<"$WORK/said")"
    local line
    while read -r line; do
        [[ $line =~ ^result\ (0x[0-9a-f]+) ]] && echo "${BASH_REMATCH[1]}"
    done <"$WORK/said"
    return 0
}

# refused STATUS URI io|admin OPCODE [FIELD=VALUE]...: it must fail with that status
refused() {
    local status=$1
    shift
    if "$EXAMPLE" "$@" >"$WORK/out" 2>"$WORK/said"; then die "succeeded, and should not have: $*"; fi
    expect_match "status of $*" "$(<"$WORK/said")" "$status"
}

# What the drivers of NVMe devices are given, by their tracepoint: tracing, commands, then traced.
TRACE=/sys/kernel/tracing
tracing() {
    echo >"$TRACE/trace"
    echo 1 >"$TRACE/events/nvme/nvme_setup_cmd/enable"
}
traced_enough() { echo 0 >"$TRACE/events/nvme/nvme_setup_cmd/enable"; }
# traced CONTROLLER QID WORDS: how many commands of that kind it was given since
traced() { grep -cE "$1: .*qid=$2, .*$3" "$TRACE/trace" || true; }

# by_interrupt CONTROLLER WORDS: of the commands of that kind that it was given since, how many went to queues that
# interrupt, and how many to queues that do not, which are polled: "3 0"
by_interrupt() {
    local count queue with=0 without=0
    while read -r count queue; do
        if grep -qw "$1q$queue" /proc/interrupts; then with=$((with + count)); else without=$((without + count)); fi
    done < <(sed -nE "s/.* $1: .*qid=([0-9]+), .*$2.*/\1/p" "$TRACE/trace" | sort | uniq -c)
    echo "$with $without"
}

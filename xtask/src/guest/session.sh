#!/bin/bash
# Says "@ready" on stdout, then runs each test that is put into $RUN/next (NAME, LIMIT, SCRIPT), with a
# clean slate, until the power goes. Says what became of it: "@end NAME STATUS". Output goes
# to $RUN/NAME.log.
set -u
export SCRATCH=/mnt/scratch

# A file system of real disk behaviour for backing files: holes, fdatasync, O_DIRECT.
mkdir -p "$SCRATCH"
mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 /dev/vda || exit 1
mount /dev/vda "$SCRATCH" || exit 1
# Linux 6.1 takes a fragment that lies in two huge pages, side by side, for an exposure of its memory (usercopy), and ends
# whoever receives it: what its NVMe/TCP host sends from a program's memory over loopback.
[[ $(uname -r) == 6.1.* ]] && echo never >/sys/kernel/mm/transparent_hugepage/enabled
group=/sys/fs/cgroup/test
# Of a user's program that crashes the kernel tells as well, without a number in brackets.
complaints='BUG:|kernel BUG at|WARNING: .* at |Oops|\[#[0-9]+\]|UBSAN:|hung_task|blocked for more than|detected (expedited )?stall'

# complained SCRIPT: whether the kernel has said what neither it may nor the script
complained() {
    dmesg | grep -E "$complaints" \
        | grep -qvE "$(sed -nE '/^#/!q; s/^# kernel says: //p' "$1" | grep . || echo '^$')"
}

# Whatever the test left. Controllers go first: whoever waits for a dead one cannot be killed.
sweep() {
    local path waited=0
    for path in /sys/class/nvme/nvme*/delete_controller; do
        [ -e "$path" ] && { timeout 30 sh -c "echo 1 >$path" & }
    done
    wait
    [ -e "$group/cgroup.kill" ] && echo 1 >"$group/cgroup.kill"
    while grep -qsx 'populated 1' "$group/cgroup.events" && [ $waited -lt 100 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    # What a script that ended midway may have switched off.
    ip link set lo up
    [ -e /sys/module/sch_netem ] && tc qdisc del dev lo root 2>/dev/null
    [ "$(cat /sys/devices/system/cpu/cpu1/online 2>/dev/null)" = 0 ] && echo 1 >/sys/devices/system/cpu/cpu1/online
    [ -e /proc/sys/kernel/io_uring_disabled ] && echo 0 >/proc/sys/kernel/io_uring_disabled
    grep -qs ' /sys/fs/bpf bpf ' /proc/mounts || mount -t bpf bpf /sys/fs/bpf
    for path in /dev/ublkc*; do
        [ -e "$path" ] && { timeout 30 "$NVLANE" ublk del --all --force; break; }
    done
    for path in /sys/kernel/config/nullb/*/; do
        [ -e "$path" ] && { echo 0 >"$path/power"; rmdir "$path"; }
    done
    awk '$2 ~ "^/mnt/test" { print $2 }' /proc/mounts | sort -r | xargs -r umount -l
    losetup -D
    # Module parameters, too, are the test's own. A ring ends some time after its process, and holds its devices until then.
    waited=0
    while [ $waited -lt 30 ]; do
        for path in ublk_drv null_blk nbd brd; do
            [ -e /sys/module/$path ] && modprobe -q -r $path
        done
        modprobe -q -r nvmet-tcp nvme-loop nvme-tcp nvmet nvme-fabrics nvme nvme-core
        [ -e /sys/module/nvme_core ] || [ -e /sys/module/ublk_drv ] || break
        sleep 0.1
        waited=$((waited + 1))
    done
    rm -rf "${SCRATCH:?}"/*
    umount -l /tmp/nvlane-test
    rmdir "$group" 2>/dev/null
}

echo "@ready"
while :; do
    until [ -e "$RUN/next" ]; do sleep 0.1; done
    IFS=$'\t' read -r name limit script <"$RUN/next"
    rm "$RUN/next"
    mkdir -p "$group" /tmp/nvlane-test /mnt/test
    mount -t tmpfs -o size=50% tmpfs /tmp/nvlane-test
    dmesg -C
    (
        echo $BASHPID >"$group/cgroup.procs"
        exec timeout -k 10 "$limit" bash "$script"
    ) >"$RUN/$name.log" 2>&1 </dev/null
    status=$?
    failed=0
    # The server's complaints and the kernel's belong to the failure they explain; a script that lacks something (77) has not
    # failed.
    if [ $status -ne 0 ] && [ $status -ne 77 ]; then
        {
            for log in /tmp/nvlane-test/*.log; do
                [ -e "$log" ] && echo "--- $log" && tail -n 40 "$log"
            done
            echo "--- kernel"
            dmesg | tail -n 60
        } >>"$RUN/$name.log" 2>&1
        failed=1
    fi
    sweep >>"$RUN/$name.log" 2>&1
    # What it says while that is taken away which the test has left is the test's, too.
    if [ $failed -eq 0 ] && complained "$script"; then
        {
            dmesg | grep -m 3 -E "$complaints" | sed 's/^/FAILED kernel: /'
            echo "--- the kernel complained"
            dmesg | tail -n 100
        } >>"$RUN/$name.log"
        status=99
    fi
    echo "@end $name $status"
done

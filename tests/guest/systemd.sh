#!/bin/bash
# limit: 300
# Our units as systemd runs them, first in a boot of its own (a container's, with namespaces for processes, mounts and
# control groups): the target within its sandbox, and a block device of what that serves, which comes up although it is
# started before and gets another server in use; both are killed under I/O and are there again, and both stop in good order.
# So does an NBD server of the same volume, which is killed as well.
# Before that, what systemd makes of a mount of the device.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
has_feature USER_RECOVERY_REISSUE || lacks "this kernel's ublk has no recovery"
packaging=$(realpath "$(dirname "$0")/../../packaging/systemd")
units=$SCRATCH/units group=/sys/fs/cgroup/test/boot
NQN=nqn.2026-11.com.example:boot
mkdir -p "$units" "$group"
cp "$packaging"/*.service "$units"

# The mount of docs/ublk.md waits for the unit in an order that there is. Without _netdev there is none, which would be said.
generated=$SCRATCH/generated
# cycles OPTIONS: what is said of cycles where /etc/fstab has such a line
cycles() {
    rm -rf "$generated"
    mkdir "$generated"
    printf '/dev/ublkb0 /srv/data ext4 %s 0 2\n' "$1" >"$WORK/fstab"
    SYSTEMD_FSTAB=$WORK/fstab /lib/systemd/system-generators/systemd-fstab-generator "$generated" "$generated" "$generated"
    grep -q '^Requires=nvlane-ublk@0.service' "$generated/srv-data.mount" || die "the mount: $(cat "$generated"/*.mount)"
    SYSTEMD_UNIT_PATH="$generated:$units:" systemd-analyze verify multi-user.target srv-data.mount 2>&1 | grep -i 'ordering cycle' || true
}
mount=$(grep -o '_netdev,x-systemd[^ ]*' "$packaging/../../docs/ublk.md")
expect "cycles of the mount in docs/ublk.md" "$(cycles "$mount")" ""
expect_match "cycles without _netdev" "$(cycles "${mount#_netdev,}")" 'cycle'

# Other units' part of a boot: nothing, but they are there. Files in place of the journal, which is not.
for target in sysinit basic shutdown local-fs network-online remote-fs-pre multi-user; do
    printf '[Unit]\nDefaultDependencies=no\n' >"$units/$target.target"
done
printf '[Unit]\nWants=nvlane-ublk@0.service nvlane.service\nAfter=nvlane-ublk@0.service\n' >>"$units/multi-user.target"
# A moment later than the block device, so that this begins while there is no target.
mkdir "$units/nvlane.service.d" "$units/nvlane-ublk@0.service.d" "$units/nvlane-nbd@a.service.d"
printf '[Service]\nStandardOutput=append:%s/nbd.log\nStandardError=inherit\n' "$WORK" >"$units/nvlane-nbd@a.service.d/log.conf"
printf '[Service]\nExecStartPre=/bin/sleep 3\nStandardOutput=append:%s/target.log\nStandardError=inherit\n' "$WORK" >"$units/nvlane.service.d/log.conf"
printf '[Service]\nStandardOutput=append:%s/device.log\nStandardError=inherit\n' "$WORK" >"$units/nvlane-ublk@0.service.d/log.conf"

# Somebody's shell below a unit that hears all that runs there.
shell=$WORK/shell
cat >"$shell" <<END
nvlane attach '$SCRATCH/shell.img?size=16M&create' -n 7 && nvlane ublk upgrade 7 --background && : >$WORK/upgraded
sleep infinity
END
printf '[Service]\nNotifyAccess=all\nExecStart=/bin/bash %s\nStandardOutput=append:%s\nStandardError=inherit\n' "$shell" "$shell.log" >"$units/shell.service"

# The unit has the kernel's TLS loaded by systemd's own. Whoever was here before may have it: sockets that were given up on a dead
# path keep it for a minute or two (host_tls).
cp /lib/systemd/system/modprobe@.service "$units"
await 240 eval 'modprobe -r tls 2>/dev/null || [[ ! -d /sys/module/tls ]]'

clean_up() { rm -rf /usr/bin/nvlane /etc/nvlane.toml /etc/nvlane /var/lib/nvlane; }
trap clean_up EXIT
cp "$NVLANE" /usr/bin/nvlane
cat >/etc/nvlane.toml <<END
listeners = ["127.0.0.1:$PORT"]
[[subsystems]]
nqn = "$NQN"
[[subsystems.namespaces]]
volume = "file:$SCRATCH/boot.img?size=64M&create"
END
mkdir -p /etc/nvlane
printf 'VOLUME=tcp://127.0.0.1:%s/%s?ns=1&reconnect_delay=200ms&ctrl_loss_tmo=120s\nOPTIONS=-q 2 -d 32 --log info,nvlane::ublk=warn\n' "$PORT" "$NQN" \
    >/etc/nvlane/ublk-0.conf
printf 'VOLUMES=tcp://127.0.0.1:%s/%s?ns=1&reconnect_delay=200ms mem:16M\nOPTIONS=--cores 1\n' "$PORT" "$NQN" >/etc/nvlane/nbd-a.conf

# The boot. /run is a new one there.
(
    echo $BASHPID >"$group/cgroup.procs"
    # shellcheck disable=SC2016 # for the shell within
    exec unshare --cgroup --mount --pid --fork --kill-child env -i container=test "PATH=$PATH" "SYSTEMD_UNIT_PATH=$units" bash -c '
        mount -t proc proc /proc
        umount /sys/fs/cgroup
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        mount -t tmpfs -o mode=755 run /run
        exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=kmsg --log-level=info --show-status=no'
) >"$WORK/boot.log" 2>&1 </dev/null &
boot=$!
ctl_systemd() { nsenter -t "$init" -m -p -- systemctl "$@"; }
has_booted() {
    init=$(<"/proc/$boot/task/$boot/children")
    init=${init%% *}
    [[ -n $init ]] || return 1
    [[ $(ctl_systemd is-system-running 2>/dev/null) =~ ^(running|degraded|starting|initializing)$ ]]
}
await 180 has_booted

property() { ctl_systemd show -P "$2" "$1"; }
is_active() { [[ $(property "$1" ActiveState) == active ]]; }
told() { tail -n 15 "$WORK/target.log" "$WORK/device.log" "$WORK/nbd.log" 2>/dev/null; }
active() { (await 90 is_active "$1") || die "$1 is $(property "$1" ActiveState): $(told)"; }
active nvlane.service
[[ -d /sys/module/tls ]] || die "the kernel's TLS was not loaded for the service"
active nvlane-ublk@0.service
DEVICE=/dev/ublkb0
await 20 test -b $DEVICE
expect "the kernel's host by the same target" "$(connect >/dev/null && controllers | wc -w)" 1
disconnect
verified_io $DEVICE 8M

# under_load COMMAND...: with verified writes before, meanwhile and after, none of which fails
under_load() {
    local load status=0
    fio --name=load --filename=$DEVICE --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=16M --verify=crc32c \
        --verify_fatal=1 --verify_backlog=64 --time_based --runtime=600 --randseed=4 --output-format=json --output="$WORK/load.json" &
    load=$!
    await 60 heeds $load
    sleep 1
    "$@"
    sleep 1
    kill -0 $load || die "fio ended: $(tail -n 20 "$WORK/load.json") $(told)"
    kill -INT $load
    wait $load || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(tail -n 20 "$WORK/load.json")"
    sed -i '/^{/,$!d' "$WORK/load.json"
    expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
}

# restarts UNIT: how often it was started again
restarts() { property "$1" NRestarts; }
main() { property "$1" MainPID; }

# Another server, of a new version for instance, is the unit's in place of the first.
if has_feature QUIESCE; then
    unit=nvlane-ublk@0.service
    reload() { ctl_systemd reload $unit || die "reload: $(told)"; }
    for round in 1 2; do
        before=$(main $unit) again=$(restarts $unit)
        under_load reload
        after=$(main $unit)
        ((after > 0 && after != before)) || die "round $round: the main process was $before and is $after: $(told)"
        expect "the unit after a reload" "$(property $unit ActiveState) $(restarts $unit)" "active $again"
        expect_match "where the new server is" "$(nsenter -t "$init" -m -p -- cat "/proc/$after/cgroup")" '/nvlane-ublk@0\.service$'
        # Or systemd would not hear of its end.
        expect_match "its parent" "$(nsenter -t "$init" -m -p -- grep PPid "/proc/$after/status")" '[[:space:]]1$'
        # The unit has its servers say nothing of themselves below a warning, and they hand that on.
        expect "what the servers log" "$(grep 'has another server' "$WORK/device.log")" ""
        echo "round $round: the unit's server was $before and is $after"
    done

    # A server that is started by hand in a unit's shell is no service: that unit keeps its main process.
    ctl_systemd start shell.service
    before=$(main shell.service)
    await 60 test -e "$WORK/upgraded"
    expect "the main process of a unit whose shell has a server" "$(main shell.service)" "$before"
    nsenter -t "$init" -m -p -- nvlane ublk del 7 || die "$(<"$shell.log")"
    ctl_systemd stop shell.service
fi

# Nothing of theirs is a terminal's.
for unit in nvlane-ublk@0.service nvlane.service; do
    before=$(main $unit)
    ctl_systemd kill -s HUP --kill-whom=main $unit
    sleep 1
    expect "$unit after SIGHUP" "$(property $unit ActiveState) $(main $unit)" "active $before"
done

kill_and_await() {
    # There is no other process; to look for some, systemd reads a list in which one that is just dying is an error.
    ctl_systemd kill -s KILL --kill-whom=main $unit
    is_again() { (($(restarts $unit) > before)) && is_active $unit; }
    (await 90 is_again) || die "$unit is $(property $unit ActiveState): $(told)"
}
for unit in nvlane-ublk@0.service nvlane.service; do
    before=$(restarts $unit)
    under_load kill_and_await
    echo "$unit was killed, and is there again"
done

unit=nvlane-nbd@a.service
ctl_systemd start $unit || die "$unit: $(told)"
# size NAME: of an export
size() { nsenter -t "$init" -m -- nbdinfo --size "nbd+unix:///$1?socket=/run/nvlane-nbd-a/nbd.sock"; }
expect "its exports" "$(size 1) $(size 2)" "67108864 16777216"
before=$(restarts $unit)
kill_and_await
expect "its exports, once it was killed" "$(size 1) $(size 2)" "67108864 16777216"
expect "its paths" "$(nsenter -t "$init" -m -- nvlane paths --socket /run/nvlane-nbd-a/control.sock -o json | jq -r '.volumes[0].paths[0].access')" optimized

for unit in nvlane-nbd@a.service nvlane-ublk@0.service nvlane.service; do
    ctl_systemd stop $unit
    expect "how $unit ended" "$(property $unit Result) $(property $unit ActiveState)" "success inactive"
done
expect "the device after that" "$(ls $DEVICE 2>/dev/null)" ""
kill -KILL "$init"
wait $boot || true

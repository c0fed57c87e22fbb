#!/bin/bash
# Second program of the guest, on the machine's own root: mounts what a running system has, runs
# command.sh of this run, writes its exit status to the file `status`, and switches off.
RUN=$1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LC_ALL=C.UTF-8
# Exports KERNEL, MODULES, SHARE, DIRECTORY and whatever the command's environment shall have.
. "$RUN/environment.sh"

mkdir -p /dev/pts /dev/shm /run/lock
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mkdir -p "/usr/lib/modules/$KERNEL"
mount --bind "$MODULES" "/usr/lib/modules/$KERNEL"
modprobe -a virtio_blk configfs
mount -t configfs configfs /sys/kernel/config
mkdir -p "$SHARE"
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share "$SHARE"
# Whatever is touched is copied to the overlay, links as links.
xargs -r -d '\n' -a "$RUN/nearby" touch -c -h
ip link set lo up
hostname guest

for port in /sys/class/virtio-ports/*; do
    case $(cat "$port/name") in
    stdout) out=/dev/${port##*/} ;;
    stderr) err=/dev/${port##*/} ;;
    esac
done
cd "$DIRECTORY" || cd /
bash "$RUN/command.sh" </dev/null >"$out" 2>"$err"
echo $? >"$RUN/status.new"
dmesg >"$RUN/dmesg.log"
mv "$RUN/status.new" "$RUN/status"
sync
echo o >/proc/sysrq-trigger
sleep 10

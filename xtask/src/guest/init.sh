#!/bin/busybox sh
# First program of the guest: the machine's root read-only over 9p, a tmpfs overlaid on it, and the
# directory of this run (RUN, from the kernel's command line) writable at its own path.
B=/bin/busybox
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
stop() {
    echo "guest init: $*" >/dev/console
    $B poweroff -f
}
for module in /modules/*.ko; do $B insmod "$module" || stop "insmod $module"; done
RUN=
for word in $($B cat /proc/cmdline); do
    case $word in nvlane.run=*) RUN=${word#nvlane.run=} ;; esac
done
# 512000 is the largest message that QEMU's 9p device takes. Loose caching is safe on a root that
# nobody changes while the guest looks; the run's directory is shared both ways and is not cached.
nine() { $B mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$1" "$2" "$3" || stop "mount $2"; }
nine ro,cache=loose root /host
$B mount -t tmpfs -o size=75% upper /upper
$B mkdir /upper/upper /upper/work
$B mount -t overlay -o lowerdir=/host,upperdir=/upper/upper,workdir=/upper/work overlay /root || stop overlay
for directory in proc sys dev; do $B mount --move /$directory /root/$directory; done
$B mount -t tmpfs run /root/run
nine cache=none run "/root$RUN"
exec $B switch_root /root /bin/bash "$RUN/boot.sh" "$RUN"

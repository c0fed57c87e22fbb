#!/bin/bash
# limit: 240
# File systems: made, filled with a tree, unmounted, checked, mounted again, compared.
. "$(dirname "$0")/harness.sh"

serve "file:$SCRATCH/fs.img?size=1G&create" mem:512M "file:$SCRATCH/fs4k.img?size=512M&create&bs=4096"
connect -i 2
tree=/usr/share/perl5
[[ -d $tree ]] || tree=/usr/share/doc
(cd "$tree" && find . -type f | sort) >"$WORK/all"
head -n 400 "$WORK/all" >"$WORK/files"
[[ $(wc -l <"$WORK/files") -gt 50 ]] || die "$tree is too small a tree"
(cd "$tree" && xargs -d '\n' sha256sum) <"$WORK/files" >"$WORK/sums"

# round DEVICE KIND CHECK...
round() {
    local device=$1 kind=$2
    shift 2
    wipefs -qa "$device"
    case $kind in
    ext4) mkfs.ext4 -q "$device" ;;
    xfs) mkfs.xfs -q -f "$device" ;;
    esac
    mount "$device" /mnt/test
    (cd "$tree" && xargs -d '\n' cp --parents -t /mnt/test) <"$WORK/files"
    rm -rf /mnt/test/trash && mkdir /mnt/test/trash
    head -c 20M /dev/urandom >/mnt/test/trash/big
    sync
    rm -rf /mnt/test/trash
    fstrim /mnt/test
    umount /mnt/test
    "$@" "$device" || die "$kind is not clean: $*"
    mount "$device" /mnt/test
    (cd /mnt/test && sha256sum --quiet -c "$WORK/sums") || die "$kind: files differ"
    umount /mnt/test
    echo "$kind on $device: $(wc -l <"$WORK/files") files are as written"
}

round "$(namespace 1)" ext4 e2fsck -fn
round "$(namespace 1)" xfs xfs_repair -n
round "$(namespace 2)" ext4 e2fsck -fn
expect "bytes of a block of the third volume" "$(blockdev --getss "$(namespace 3)")" 4096
round "$(namespace 3)" xfs xfs_repair -n
disconnect

# Connected again, and served by another process: still the same.
connect -g -G
mount "$(namespace 1)" /mnt/test
(cd /mnt/test && sha256sum --quiet -c "$WORK/sums") || die "files differ after reconnecting"
umount /mnt/test
disconnect
stop
serve "file:$SCRATCH/fs.img" mem:512M
connect
mount "$(namespace 1)" /mnt/test
(cd /mnt/test && sha256sum --quiet -c "$WORK/sums") || die "files differ after the server's restart"
umount /mnt/test
disconnect
stop

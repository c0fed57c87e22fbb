#!/bin/bash
# limit: 120
# kernel: newest
# devices: placed
# Flexible Data Placement: placement identifiers of writes, the reclaim units' status and their update reach the
# device, by our ring and through our target.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

fdp=$(device nvlane-placed 1)
head -c 4096 /dev/urandom >"$WORK/a"

# units DEVICE: free blocks of the reclaim units that the four handles use now
units() {
    "$EXAMPLE" "$1" io 0x12 nsid=1 cdw10=1 cdw11=255 read=1024 2>/dev/null >"$WORK/status"
    # A header of 16 bytes, then 32 for each handle; RUAMW is at 8.
    for handle in 0 1 2 3; do
        od -An -t u8 -j $((16 + 32 * handle + 8)) -N 8 "$WORK/status"
    done | xargs
}

expect "new units" "$(units "$fdp")" "32768 32768 32768 32768"
# Directive type 2 in bits 23:20 of CDW12, the handle in the upper half of CDW13.
give "$fdp" io 0x01 cdw10=0 cdw12=$((7 | 2 << 20)) cdw13=$((2 << 16)) data="$WORK/a"
expect "after a write by handle 2" "$(units "$fdp")" "32768 32768 32760 32768"
"$EXAMPLE" "$fdp" io 0x02 cdw12=7 read=4096 2>/dev/null | cmp - "$WORK/a"
printf '\2\0' >"$WORK/handle"
give "$fdp" io 0x1d cdw10=1 data="$WORK/handle"
expect "after an update of handle 2" "$(units "$fdp")" "32768 32768 32768 32768"

serve "$fdp?passthrough=io"
connect
remote=$(namespace 1)
remote=/dev/ng${remote#/dev/nvme}
await 20 test -c "$remote"
expect "the status through our target" "$(units "$remote")" "32768 32768 32768 32768"
give "$remote" io 0x01 cdw10=8 cdw12=$((7 | 2 << 20)) cdw13=$((1 << 16)) data="$WORK/a"
expect "after a remote write by handle 1" "$(units "$fdp")" "32768 32760 32768 32768"
disconnect
stop

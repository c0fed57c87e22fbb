#!/bin/bash
# limit: 120
# kernel: newest
# devices: usual
# A copy to an NVMe device whose controller is reset meanwhile: what was not flushed before is copied again.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_nvme.sh"

plain=$(device nvlane-plain 1)
controller=/sys/class/nvme/$(controller_of "$plain")
head -c 12M /dev/urandom >"$WORK/from"
before=$(cat "$controller/diag/reset_count")
"$NVLANE" copy "$WORK/from" "$plain" --throttle 1M --verify -o json >"$WORK/copied" 2>"$WORK/said" &
COPY=$!
block=/dev/nvme${plain#/dev/ng}
begun() { cmp -s -n 65536 "$WORK/from" <(dd if="$block" bs=64k count=1 iflag=direct status=none); }
await 60 begun
pause 1
echo 1 >"$controller/reset_controller"
wait "$COPY" || die "copy: $(cat "$WORK/said")"
expect "resets" "$(cat "$controller/diag/reset_count")" $((before + 1))
expect_json "$WORK/copied" .setbacks 1
cmp -n $((12 << 20)) "$WORK/from" "$block"

#!/bin/bash
# limit: 180
# Ours takes the place of the kernel's own target, under a host that stays connected, with what `config import` makes of
# that one's configuration: the host goes on with the disks that it has.
. "$(dirname "$0")/harness.sh"

kernel_serve "file:$SCRATCH/a.img?size=64M&create" "file:$SCRATCH/b.img?size=64M&create"
subsystem=$NVMET/subsystems/$NQN
# The first has no NGUID, as by default; of the second one was set.
echo 0 >"$subsystem/namespaces/2/enable"
echo ef90689c-6c46-d44c-89c1-4067801309a8 >"$subsystem/namespaces/2/device_nguid"
echo 1 >"$subsystem/namespaces/2/enable"
# It does not come back while its target is being taken apart: one that is told that it is not let in gives up.
connect --reconnect-delay=5
controller=$(controllers)
devices=("$(namespace 1)" "$(namespace 2)")

# What a host knows a namespace by; an attribute that is not there is empty.
names() { # names DEVICE
    local block=/sys/block/${1#/dev/}
    echo "$(cat "$block/uuid" 2>/dev/null) $(cat "$block/nguid" 2>/dev/null)"
}
before=("$(names "${devices[0]}")" "$(names "${devices[1]}")")
expect_match "the names of the first" "${before[0]}" '^[0-9a-f-]{36} $'
expect_match "the names of the second" "${before[1]}" '^[0-9a-f-]{36} ef90689c-6c46-d44c-89c1-4067801309a8$'
head -c 1M /dev/urandom >"$WORK/sample"
dd if="$WORK/sample" of="${devices[0]}" bs=64k oflag=direct conv=fsync status=none
# What is in use keeps its name: another disk gets another one.
exec {first}<"${devices[0]}" {second}<"${devices[1]}"

# As `nvmetcli save` lays it out.
namespaces=
for nsid in 1 2; do
    device=$subsystem/namespaces/$nsid
    namespaces+=${namespaces:+,}"{\"nsid\":$nsid,\"enable\":1,\"ana_grpid\":1,\"device\":{\"path\":\"$(<"$device/device_path")\","
    namespaces+="\"uuid\":\"$(<"$device/device_uuid")\",\"nguid\":\"$(<"$device/device_nguid")\"}}"
done
cat >"$WORK/config.json" <<END
{"hosts":[],
 "ports":[{"portid":1,"subsystems":["$NQN"],"referrals":[],"addr":{"trtype":"tcp","adrfam":"ipv4","traddr":"127.0.0.1",
   "trsvcid":"$PORT","treq":"not specified","tsas":"none"}}],
 "subsystems":[{"nqn":"$NQN","allowed_hosts":[],"attr":{"allow_any_host":"1","serial":"$(<"$subsystem/attr_serial")"},
   "namespaces":[$namespaces]}]}
END
"$NVLANE" config import "$WORK/config.json" -o "$WORK/nvlane.toml"

kernel_from_now
kernel_stop
is_away() { ! is_live "$controller"; }
await 30 is_away
log=$WORK/import.log
: >"$log"
"$NVLANE" serve --config "$WORK/nvlane.toml" --socket "$CTL" --data-dir "$WORK/data" >"$log" 2>&1 </dev/null &
SERVER=$!
await 60 says "$log" 'nvme connect'
await 60 is_live "$controller"

# Another size is seen by a look at the namespaces, each of which compares their names first.
has_size() { [[ $(blockdev --getsize64 "$1") == "$2" ]]; }
for nsid in 1 2; do
    device=${devices[nsid - 1]}
    ctl volume resize $nsid 96M
    await 30 has_size "$device" $((96 << 20))
    expect "the device of namespace $nsid" "$(namespace $nsid)" "$device"
    expect "the names of namespace $nsid" "$(names "$device")" "${before[nsid - 1]}"
done
[[ $(kernel_said) != *'identifiers changed'* ]] || die "the host knows a namespace no longer: $(kernel_said | grep identifiers)"
dd if="${devices[0]}" of="$WORK/back" bs=64k count=16 iflag=direct status=none
cmp "$WORK/sample" "$WORK/back" || die "what was written before is read differently"
dd if="$WORK/sample" of="${devices[1]}" bs=64k oflag=direct conv=fsync status=none
exec {first}<&- {second}<&-
disconnect
stop
cmp -n $((1 << 20)) "$WORK/sample" "$SCRATCH/b.img" || die "the file has something else"

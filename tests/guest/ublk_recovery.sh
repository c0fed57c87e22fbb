#!/bin/bash
# limit: 420
# round: 60
# A server that is killed at random under verified I/O, and its successor: no error reaches the user, nothing
# acknowledged is lost. Then upgrades under load, a volume that grows in use, and a file system across both.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || { echo "this kernel has no ublk"; exit 0; }
has_feature USER_RECOVERY_REISSUE || { echo "this kernel's ublk has no recovery"; exit 0; }
ways=(--copy --auto)
has_feature USER_COPY && ways+=(--user-copy)
has_feature BATCH_IO && ways+=("--auto --batch")
image=$SCRATCH/recovery.img

# recover [COMMAND]: a successor for DEVICE
recover() {
    : >"$WORK/recover.log"
    "$NVLANE" ublk "${1:-recover}" "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/recover.log"
}

# under_load ACTION TIMES: fio writes and verifies while ACTION is done so often
under_load() {
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
        --bssplit=512/20:4k/40:64k/30:512k/10 --size=48M --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
        --time_based --runtime=1800 --randseed=3 --output-format=json --output="$WORK/load.json" &
    local load=$! round
    for ((round = 1; round <= $2; round++)); do
        sleep "0.$((RANDOM % 9 + 1))"
        "$1"
        kill -0 "$load" 2>/dev/null || die "fio ended in round $round: $(tail -n 30 "$WORK/load.json")"
    done
    # It runs, and heeds signals: without being told it would go on for half an hour.
    written=$(writes)
    await 120 has_written
    kill -INT "$load"
    # It says 128 of itself where it was told to end.
    local status=0
    wait "$load" || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(tail -n 30 "$WORK/load.json")"
    # And says so, before the JSON.
    sed -i '/^{/,$!d' "$WORK/load.json"
    expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
    expect_json "$WORK/load.json" '.jobs[0].write.total_ios > 50' true
}

# Writes of the device so far.
writes() { awk '{ print $5 }' "/sys/block/${DEVICE##*/}/stat"; }
has_written() { (($(writes) > written + 100)); }

kill_and_recover() {
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
    local begun
    begun=$(date +%s%N)
    recover
    times+=($((($(date +%s%N) - begun) / 1000000)))
}

# What recovering took, each time from the start of the successor until it serves. It is to be under a second;
# emulated processors, shared with others, only tell.
tell_times() {
    local sorted
    mapfile -t sorted < <(printf '%s\n' "${times[@]}" | sort -n)
    echo "$1: ${#times[@]} servers killed; served again after $((sorted[${#sorted[@]} / 2])) ms (median), ${sorted[-1]} ms at most"
    grep -q TCG /proc/cpuinfo || ((sorted[-1] < 1000)) || die "a successor took ${sorted[-1]} ms to serve"
}

upgrade() {
    local old=$UBLK_SERVER status=0
    recover upgrade
    wait "$old" || status=$?
    expect "the old server's exit status after an upgrade" $status 0
    expect "what the successor takes it for" "$(grep 'after a crash' "$WORK/recover.log")" ""
}

# A server that crashes when it is to leave is not taken for one that left.
upgrade_crashing() {
    local old=$UBLK_SERVER
    # Nobody to be asked for programs, which comes before it is told to leave.
    rm "/run/nvlane/ublk-$ID.sock"
    kill -STOP "$old"
    "$NVLANE" ublk upgrade "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    await 60 grep -q 'not looked at before' "$WORK/recover.log"
    sleep 1
    kill -KILL "$old"
    wait "$old" 2>/dev/null || true
    ublk_ready "$WORK/recover.log"
    expect_match "what the successor takes it for" "$(<"$WORK/recover.log")" 'after a crash'
}

# recover_with FILES: a successor that may open so few. One that serves all the same is killed.
recover_with() {
    (ulimit -n "$1" && exec "$NVLANE" ublk recover "$ID") >"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    until grep -q '^ready' "$WORK/recover.log"; do
        kill -0 "$UBLK_SERVER" 2>/dev/null || break
        pause 0.05
    done
    local status=0
    kill -KILL "$UBLK_SERVER" 2>/dev/null || true
    wait "$UBLK_SERVER" 2>/dev/null || status=$?
    ((status != 1)) || mapfile -O ${#failures[@]} -t failures < <(grep -v '^$' "$WORK/recover.log" | tail -n 1)
    [[ -b $DEVICE ]] || die "a successor that failed took the device away: $(<"$WORK/recover.log")"
}

# holds PROCESS FILE: whether it has it open
holds() { [[ -n $(find "/proc/$1/fd" -lname "*${2##*/}*") ]]; }

has_grown() { [[ $(blockdev --getsize64 "$DEVICE") == $((256 << 20)) ]]; }

for way in "${ways[@]}"; do
    # shellcheck disable=SC2086 # options, one word each
    ublk_add "$image?size=64M&create" $way -q 2 -d 32 --recover
    grep '^/dev' "$WORK/ublk.log"
    times=()
    under_load kill_and_recover $((FULL ? 50 : ROUNDS))
    tell_times "$way"
    if [[ $way == *--batch* ]]; then
        said=$(fails "$NVLANE" ublk upgrade "$ID")
        expect_match "an upgrade of a device with batches" "$said" 'without --batch'
    elif has_feature QUIESCE; then
        # No accident: a few for each way are enough on ordinary days.
        under_load upgrade $((FULL ? ROUNDS : 3))
        under_load upgrade_crashing 1
    fi
    verified_io "$DEVICE" 16M
    ublk_stop
    rm "$image"
done

# Without --recover there is nothing to take over, and nothing hangs.
ublk_add mem:32M
kill -KILL "$UBLK_SERVER"
wait "$UBLK_SERVER" 2>/dev/null || true
said=$(fails "$NVLANE" ublk recover "$ID")
expect_match "recovering a device that was not made for it" "$said" '.--recover'
"$NVLANE" ublk del "$ID"

# What is noted of an earlier device of this number is nobody's, also where nothing can be noted; a device that is to
# outlive its server is not made then.
echo '{"volume":"mem:16M","read_only":false}' >"/run/nvlane/ublk-$ID.json"
mkdir "/run/nvlane/ublk-$ID.new"
said=$(fails "$NVLANE" ublk add mem:32M --id "$ID" --recover)
expect_match "a device of which nothing can be noted" "$said" "cannot note what $DEVICE is served from"
expect "what is left of it" "$(ls "$DEVICE" "/dev/ublkc$ID" 2>/dev/null)" ""
ublk_add mem:32M --id "$ID"
expect "what is noted" "$(ls "/run/nvlane/ublk-$ID.json" 2>/dev/null)" ""
ublk_stop
rmdir "/run/nvlane/ublk-$ID.new"

# A file system lives through it, and grows with its volume.
ublk_add "$image?size=128M&create" -q 2 --recover
mkfs.ext4 -q "$DEVICE"
mount "$DEVICE" /mnt/test
dd if=/dev/urandom of=/mnt/test/data bs=1M count=32 conv=fsync status=none
sum=$(sha256sum </mnt/test/data)
last=$(ls "/proc/$UBLK_SERVER/fd" | sort -n | tail -n 1)
kill -KILL "$UBLK_SERVER"
wait "$UBLK_SERVER" 2>/dev/null || true
# Waits for the successor.
sync -f /mnt/test &
synced=$!
reader=
# Linux 6.12 dies of a successor that comes after one that came to nothing before all queues had fetched (docs/ublk.md):
# see the end.
if has_feature QUIESCE; then
    # So it does while successors come to nothing: of each that fails, the device waits for the next.
    failures=()
    for ((files = last; files > last - 7; files--)); do recover_with "$files"; done
    printf 'a successor says: %s\n' "${failures[@]}"
    [[ ${failures[*]} == *"an eventfd to be woken by"* ]] || die "no queue failed"
    mkdir "/run/nvlane/ublk-$ID.new"
    noted=$(<"/run/nvlane/ublk-$ID.json")
    cp --sparse=always "$image" "$image.other"
    dd if="$DEVICE" of="$WORK/read" bs=4k count=1 iflag=direct status=none &
    reader=$!
    said=$(fails "$NVLANE" ublk recover "$ID" "$image.other")
    expect_match "a successor that cannot note what it serves" "$said" "cannot note what $DEVICE is served from"
    expect "what is noted" "$(<"/run/nvlane/ublk-$ID.json")" "$noted"
    kill -0 "$reader" || die "it was let run all the same"
    rm "$image.other"
    rmdir "/run/nvlane/ublk-$ID.new"
    # Somebody has the device's node: a successor waits, and another one comes in between.
    await 20 hold_node
    "$NVLANE" ublk recover "$ID" >"$WORK/recover.log" 2>&1 </dev/null 9>&- &
    waiting=$!
    await 20 holds "$waiting" "$image"
    jq -c '.server = 1' <<<"$noted" >"/run/nvlane/ublk-$ID.json"
    exec 9>&-
    ! wait "$waiting" || die "a successor after another one served"
    expect_match "a successor after another one" "$(<"$WORK/recover.log")" 'has had another server'
    [[ -b $DEVICE ]] || die "it took the device away"
fi
recover
wait "$synced" || die "sync, while there was no server"
[[ -z $reader ]] || wait "$reader" || die "a read, while there was no server"
echo 3 >/proc/sys/vm/drop_caches
expect "the file after a killed server" "$(sha256sum </mnt/test/data)" "$sum"
if has_feature UPDATE_SIZE; then
    truncate -s 256M "$image"
    await 30 has_grown
    resize2fs "$DEVICE" >/dev/null 2>&1
    expect "the file after growing" "$(sha256sum </mnt/test/data)" "$sum"
fi
umount /mnt/test
ublk_stop
fsck.ext4 -fn "$image" >"$WORK/fsck" 2>&1 || die "fsck of the image: $(<"$WORK/fsck")"

# There, the next one is refused, and the device can be deleted.
if ! has_feature QUIESCE; then
    ublk_add "$image" -q 2 --recover
    last=$(ls "/proc/$UBLK_SERVER/fd" | sort -n | tail -n 1)
    kill -KILL "$UBLK_SERVER"
    wait "$UBLK_SERVER" 2>/dev/null || true
    failures=()
    for ((files = last; files > last - 7; files--)); do
        [[ -e /run/nvlane/ublk-$ID.begun ]] || recover_with "$files"
    done
    printf 'a successor says: %s\n' "${failures[@]}"
    [[ -e /run/nvlane/ublk-$ID.begun ]] || die "no queue failed"
    said=$(fails "$NVLANE" ublk recover "$ID")
    expect_match "another successor" "$said" 'may not survive another attempt'
    "$NVLANE" ublk del "$ID"
    expect "what is left of it" "$(ls "$DEVICE" "/dev/ublkc$ID" /run/nvlane/ublk-"$ID".{json,begun,log} 2>/dev/null)" ""
fi
modprobe -r ublk_drv

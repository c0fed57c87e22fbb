#!/bin/bash
# limit: 420
# round: 60
# processors: 2
# A server that is killed at random under verified I/O, and its successor: no error reaches the user, nothing
# acknowledged is lost, of a file, a block device and a remote volume. Then upgrades under load, servers in the background, a volume
# that grows in use, and a file system across both.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_ublk.sh"

modprobe ublk_drv 2>/dev/null || lacks "this kernel has no ublk"
has_feature USER_RECOVERY_REISSUE || lacks "this kernel's ublk has no recovery"
ways=(--copy --auto)
has_feature USER_COPY && ways+=(--user-copy)
# In batches unless it is asked otherwise: then the server is asked to leave for an upgrade, and else the driver tells it to.
has_feature BATCH_IO && ways+=("--auto --no-batch")
image=$SCRATCH/recovery.img

# recover [COMMAND]: a successor for DEVICE
recover() {
    : >"$WORK/recover.log"
    "$NVLANE" ublk "${1:-recover}" "$ID" >>"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/recover.log"
}

# under_load ACTION TIMES: fio writes and verifies the second half while ACTION is done so often; in the first, each write that
# was acknowledged is noted, read back now and then, and has to be there at the end
under_load() {
    "$XTASK" ledger write --device "$DEVICE" --ledger "$WORK/ledger" --seconds 3600 --blocks 8192 --read-back >"$WORK/ledger.log" 2>&1 &
    local ledger=$!
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
        --bssplit=512/20:4k/40:64k/30:512k/10 --offset=32M --size=32M --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
        --time_based --runtime=1800 --randseed=3 --output-format=json --output="$WORK/load.json" &
    local load=$! round
    for ((round = 1; round <= $2; round++)); do
        sleep "0.$((RANDOM % 9 + 1))"
        "$1"
        kill -0 "$load" 2>/dev/null || die "fio ended in round $round: $(tail -n 30 "$WORK/load.json")"
        kill -0 "$ledger" 2>/dev/null || die "round $round: $(<"$WORK/ledger.log")"
    done
    # It runs, and heeds signals: without being told it would go on for half an hour.
    written=$(writes)
    await 120 has_written
    # It ends by itself only where a write failed, or a block did not hold what was last written to it.
    kill "$ledger" || die "in the end: $(<"$WORK/ledger.log")"
    wait "$ledger" || true
    kill -INT "$load"
    # It says 128 of itself where it was told to end.
    local status=0
    wait "$load" || status=$?
    ((status == 0 || status == 128)) || die "fio: status $status: $(tail -n 30 "$WORK/load.json")"
    # And says so, before the JSON.
    sed -i '/^{/,$!d' "$WORK/load.json"
    expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
    expect_json "$WORK/load.json" '.jobs[0].write.total_ios > 50' true
    "$XTASK" ledger verify --device "$DEVICE" --ledger "$WORK/ledger" --at-least 20
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
    : >"$WORK/recover.log"
    "$NVLANE" ublk upgrade "$ID" >>"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    await 60 says "$WORK/recover.log" 'not looked at before'
    sleep 1
    ! says "$WORK/recover.log" '^ready' || die "it serves beside one that lives"
    kill -KILL "$old"
    wait "$old" 2>/dev/null || true
    ublk_ready "$WORK/recover.log"
    expect_match "what the successor takes it for" "$(<"$WORK/recover.log")" 'after a crash'
}

# recover_with FILES: a successor that may open so few. One that serves all the same is killed.
recover_with() {
    : >"$WORK/recover.log"
    (ulimit -n "$1" && exec "$NVLANE" ublk recover "$ID") >"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    until says "$WORK/recover.log" '^ready'; do
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
    if has_feature QUIESCE; then
        # No accident: a few for each way are enough on ordinary days.
        under_load upgrade $((FULL ? ROUNDS : 3))
        under_load upgrade_crashing 1
    fi
    verified_io "$DEVICE" 16M
    ublk_stop
    rm "$image" "$WORK/ledger"
done

# Told to stop while it leaves, it leaves: to take the device away would wait for requests that are the next server's.
# One that has left by then, since the machine stood still for as long as the first write takes, shows nothing: again.
told=0
for ((turn = 0; turn < 3 && !told; turn++)); do
    has_feature BATCH_IO || break
    ublk_add "delay:write=8s($image?size=64M&create)" -q 1 -d 8 --recover
    dd if=/dev/zero of="$DEVICE" bs=4k count=1 oflag=direct status=none &
    writer=$!
    await 30 in_flight 1
    old=$UBLK_SERVER
    : >"$WORK/recover.log"
    "$NVLANE" ublk upgrade "$ID" >"$WORK/recover.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    await 30 says "$WORK/ublk.log" 'asked for by another server'
    # It has the first one still, and is given another.
    dd if=/dev/zero of="$DEVICE" bs=4k seek=1 count=1 oflag=direct status=none &
    second=$!
    pause 0.5
    kill -TERM "$old" 2>/dev/null && told=1
    ublk_ready "$WORK/recover.log"
    wait "$old" || die "the exit status of a server that was told to stop while it left is $?"
    wait "$writer" || die "a write that was begun before an upgrade"
    wait "$second" || die "a write that came during an upgrade"
    ublk_stop
    rm "$image"
done
((told)) || ! has_feature BATCH_IO || die "each time it had left before it could be told to stop"

# What became of its last request is the last thing that it hears, also where waiting long has taught it to sleep at once.
if has_feature BATCH_IO; then
    ublk_add "delay:write=500ms($image?size=64M&create)" -q 1 -d 8 --recover
    dd if=/dev/zero of="$DEVICE" bs=4k count=7 oflag=direct status=none
    dd if=/dev/zero of="$DEVICE" bs=4k count=1 oflag=direct status=none &
    writer=$!
    upgrade
    wait "$writer" || die "a write that was begun before an upgrade, and nothing after it"
    ublk_stop
    rm "$image"
fi

# A block device by copies: what a killed server had under way there is the other driver's, whose end the successor waits for.
truncate -s 64M "$image"
loop=$(losetup -f --show --direct-io=on "$image")
ublk_add "$loop" --copy -q 2 -d 32 --recover
times=()
under_load kill_and_recover $((FULL ? 50 : 3))
tell_times "a block device, --copy"
verified_io "$DEVICE" 16M
ublk_stop
losetup -d "$loop"
rm "$image" "$WORK/ledger"

# The same over a remote volume, whose target lives on.
serve "$image?size=64M&create"
ublk_add "tcp://127.0.0.1:$PORT/$NQN?ns=1" -q 2 -d 32 --recover
times=()
under_load kill_and_recover $((FULL ? 50 : 3))
printf 'a remote volume: served again after %s ms\n' "${times[@]}"
ublk_stop
stop
rm "$image" "$WORK/ledger"

# Who names another volume than a device has that waits for a server does not get it, nor what is whose.
# serves WORDS: whether the device of that id has that volume, and a server
serves() { [[ $("$NVLANE" ublk list) == *"/dev/ublkb$ID  live "*"$1"* ]]; }
mkdir -p "$SCRATCH/one" "$SCRATCH/other"
truncate -s 32M "$SCRATCH/one/disk.img" "$SCRATCH/other/disk.img"
DEVICE=$(cd "$SCRATCH/one" && "$NVLANE" attach disk.img -n 7)
expect "what is attached" "$DEVICE" /dev/ublkb7
ID=7
dd if=/dev/urandom of="$DEVICE" bs=64k count=4 oflag=direct status=none
sum=$(sha256sum <"$SCRATCH/one/disk.img")
kill_attached() {
    kill -KILL "$("$NVLANE" ublk list -o json | jq ".devices[] | select(.id == $ID) | .server")"
    waits() { [[ $("$NVLANE" ublk list -o json | jq -r ".devices[] | select(.id == $ID) | .state") == *waits* ]]; }
    await 20 waits
}
kill_attached
for command in "attach disk.img -n 7" "ublk add disk.img -n 7 --recover"; do
    # shellcheck disable=SC2086 # words
    said=$(cd "$SCRATCH/other" && fails "$NVLANE" $command)
    expect "lines about another volume" "$(wc -l <<<"$said")" 1
    expect_match "attaching another volume" "$said" "/dev/ublkb7 waits for a server and has another volume, file:$SCRATCH/one/disk.img[^ ]*: .nvlane ublk recover 7. .*.nvlane ublk del 7."
done
said=$(fails "$NVLANE" ublk add "$SCRATCH/new.img?size=1M&create" -n 7)
expect_match "a number that is taken" "$said" '^nvlane: /dev/ublkb7 waits for a server: .nvlane ublk recover 7. serves it'
expect "what is made for it" "$(ls "$SCRATCH/new.img" 2>/dev/null)" ""
said=$(cd "$SCRATCH/other" && fails "$NVLANE" detach disk.img)
expect_match "detaching another directory's volume" "$said" 'disk.img is no device of ublk'
# The same volume, also by another name, and by whoever does not say one.
expect "what is attached again" "$("$NVLANE" attach "file:$SCRATCH/one/disk.img" -n 7)" /dev/ublkb7
serves "$SCRATCH/one/disk.img" || die "it is $("$NVLANE" ublk list)"
for command in "attach null:16M -n 7" "ublk add null:16M -n 7"; do
    # shellcheck disable=SC2086 # words
    said=$(fails "$NVLANE" $command)
    expect_match "a number that is in use" "$said" '^nvlane: /dev/ublkb7 exists already: see .nvlane ublk list.$'
done
kill_attached
mv /run/nvlane/ublk-7.json "$WORK/noted"
said=$(fails "$NVLANE" attach "$SCRATCH/one/disk.img" -n 7)
expect_match "attaching what nobody noted" "$said" 'nobody noted its volume: .nvlane ublk recover 7 VOLUME.'
mv "$WORK/noted" /run/nvlane/ublk-7.json
rm -f /run/nvlane/ublk-7.log
expect "what is recovered in the background" "$("$NVLANE" ublk recover 7 --background)" /dev/ublkb7
expect "its log" "$(ls /run/nvlane/ublk-7.log)" /run/nvlane/ublk-7.log
before=$("$NVLANE" ublk list -o json | jq '.devices[0].server')
if has_feature QUIESCE; then
    # From a session that ends, with its terminal as far as servers can tell.
    said=$(setsid bash -c '"$0" ublk upgrade 7 --background -o json; kill -HUP 0' "$NVLANE" || true)
    expect "what is upgraded" "$(jq -r .device <<<"$said")" /dev/ublkb7
    after=$("$NVLANE" ublk list -o json | jq '.devices[0].server')
    [[ $before != "$after" ]] || die "it has its old server"
    # That of a terminal, too.
    kill -HUP "$after"
    pause 1
    serves "$SCRATCH/one/disk.img" || die "after SIGHUP it is $("$NVLANE" ublk list)"
fi
echo 3 >/proc/sys/vm/drop_caches
expect "the volume" "$(sha256sum <"$DEVICE")" "$sum"
(cd "$SCRATCH/one" && "$NVLANE" detach disk.img)
await 30 test ! -e "$DEVICE"
said=$(fails "$NVLANE" ublk recover 7 --background)
expect_match "recovering what there is not, in the background" "$said" 'there is no ublk device 7'
# Of one volume there may be several.
two=("$("$NVLANE" attach null:16M)" "$("$NVLANE" attach null:16M)")
said=$(fails "$NVLANE" detach null:16M)
expect_match "detaching one of two" "$said" "is the volume of ${two[0]} and ${two[1]}: name one"
# One that there is not leaves the others their turn.
said=$(fails "$NVLANE" detach "${two[0]}" /dev/ublkb77 disk.img "${two[1]}")
expect_match "detaching what is there and what is not" "$said" 'ublk device 77.*disk.img is no device of ublk'
await 30 test ! -e "${two[0]}" -a ! -e "${two[1]}"
two=("$("$NVLANE" attach null:16M)" "$("$NVLANE" attach null:16M)")
said=$(fails "$NVLANE" ublk del 77 "${two[@]}" 78)
expect "lines of what is not there" "$(grep -c 'there is no ublk device 7[78]' <<<"$said")" 2
await 30 test ! -e "${two[0]}" -a ! -e "${two[1]}"

# A device that is taken over keeps its queues, depth and way of data, whatever is asked for; its volume is opened for as many
# threads as it has, each of which counts by itself.
ID=8 DEVICE=/dev/ublkb8
counted="bpf:$(realpath "$(dirname "$0")/../../bpf")/statistics.bpf.o(mem:32M)"
as_made() { "$NVLANE" ublk list -o json | jq -r '.devices[] | select(.id == 8) | "\(.queues) x \(.depth), \(.data_path)"'; }
: >"$WORK/first.log"
"$NVLANE" ublk add "$counted" -n 8 -q 2 -d 64 --copy --recover >"$WORK/first.log" 2>&1 </dev/null &
UBLK_SERVER=$!
ublk_ready "$WORK/first.log"
for asked in "" "-q 1 -d 16"; do
    kill_attached
    # Who wants nothing written is not given one that can be.
    expect_match "a device to be read only" "$(fails "$NVLANE" attach "$counted" -n 8 --read-only)" "was made to be written to"
    # shellcheck disable=SC2086 # options
    said=$("$NVLANE" attach "$counted" -n 8 $asked 2>&1)
    expect_match "what is attached" "$said" $'(^|\n)/dev/ublkb8$'
    if [[ -z $asked ]]; then
        [[ $said != *'stays as'* ]] || die "what was not asked for is said to differ: $said"
    else
        for what in '2 queue\(s\), not --queues 1' '64 requests in flight, not --depth 16'; do
            expect_match "what is said of what it stays" "$said" "/dev/ublkb8 stays as it was made: $what"
        done
    fi
    expect "what it is" "$(as_made)" "2 x 64, copy"
    deep_io 0
    "$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
    expect_json "$WORK/stat.json" '[.programs[0].maps[] | select(.name == "latencies") | .entries[].values | length] | unique == [2]' true
done
"$NVLANE" detach "$DEVICE"
await 30 test ! -e "$DEVICE"

# What `ublk add` may be told `attach` may, and the one has a background as the other.
said=$("$NVLANE" attach mem:16M -n 8 --copy --max-io 64K --log warn --cores 1 -o json)
expect "what is attached" "$(jq -r '"\(.device) \(.data_path) \(.io_bytes_max) \(.recoverable)"' <<<"$said")" '/dev/ublkb8 copy 65536 true'
expect "what is logged below warnings" "$(grep ' INFO ' /run/nvlane/ublk-8.log || true)" ""
"$NVLANE" detach ublkb8
await 30 test ! -e /dev/ublkb8
expect "what is added in the background" "$("$NVLANE" ublk add mem:16M -n 8 -q 2 --background)" /dev/ublkb8
expect "what it is" "$("$NVLANE" ublk list -o json | jq -r '.devices[] | select(.id == 8) | "\(.queues) \(.recoverable) \(.state)"')" '2 false live'
expect "its log" "$(ls /run/nvlane/ublk-8.log)" /run/nvlane/ublk-8.log
"$NVLANE" ublk del /dev/ublkb8
await 30 test ! -e /dev/ublkb8

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
readers=()
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
    readers+=($!)
    said=$(fails "$NVLANE" ublk recover "$ID" "$image.other")
    expect_match "a successor that cannot note what it serves" "$said" "cannot note what $DEVICE is served from"
    expect "what is noted" "$(<"/run/nvlane/ublk-$ID.json")" "$noted"
    kill -0 "${readers[0]}" || die "it was let run all the same"
    rmdir "/run/nvlane/ublk-$ID.new"
    # One that is killed while it notes that, here into a pipe which nobody reads: its queues are ready, the driver gives it requests,
    # and it has begun none.
    mkfifo "/run/nvlane/ublk-$ID.new"
    : >"$WORK/recover.log"
    "$NVLANE" ublk recover "$ID" "$image.other" >"$WORK/recover.log" 2>&1 </dev/null &
    waiting=$!
    await 30 says "/proc/$waiting/wchan" wait_for_partner
    for ((block = 0; block < 8; block++)); do
        dd if="$DEVICE" of=/dev/null bs=4k skip=$block count=1 iflag=direct status=none &
        readers+=($!)
    done
    pause 1
    for reader in "${readers[@]}"; do kill -0 "$reader" || die "a successor served requests before the device was its own"; done
    kill -KILL "$waiting"
    wait "$waiting" 2>/dev/null || true
    rm "/run/nvlane/ublk-$ID.new" "$image.other"
    # Somebody has the device's node: a successor waits, and another one comes in between.
    await 20 hold_node
    : >"$WORK/recover.log"
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
for reader in "${readers[@]}"; do wait "$reader" || die "a read, while there was no server"; done
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

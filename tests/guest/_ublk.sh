# For sourcing after harness.sh: block devices by `nvlane ublk`.
#
#   ublk_add VOLUME [OPTION]...   serves a device; sets DEVICE, ID and UBLK_SERVER
#   ublk_stop                     stops it as a person would, and wants a clean end
#   in_kernel VOLUME [OPTION]...   the same, with the volume's program in the kernel; the log says more
#   deep_io MIB [OPTION]...       verified I/O on 12 MiB of DEVICE from there on, by two processors (where there are two), each with 128 in flight
#   each_queue                    of each queue whose program was in the kernel and that has ended: requests, returns
#   begin_counted_load             has DEVICE, whose program is statistics.bpf.o, written to and verified until it is ended
#   end_counted_load               ends that: no error, no mistake, and the program has counted each request; sets fio_count
#   in_flight COUNT               whether so many writes of DEVICE are under way with its server, or more
#   hold_node                     opens the driver's side of DEVICE, as a server does, if none has it: descriptor 9
#   has_feature NAME              whether this kernel's driver has it

# Waits for the server that was started into $1, a log.
ublk_ready() {
    local log=$1 until=$((SECONDS + 90))
    until says "$log" '^ready'; do
        kill -0 "$UBLK_SERVER" 2>/dev/null || die "the server ended: $(<"$log")"
        ((SECONDS < until)) || die "the server is not ready: $(<"$log")"
        pause 0.05
    done
    DEVICE=$(sed -nE 's|^(/dev/ublkb[0-9]+): .*|\1|p' "$log" | tail -n1)
    ID=${DEVICE#/dev/ublkb}
    await 30 test -b "$DEVICE"
}

ublk_add() {
    : >"$WORK/ublk.log"
    "$NVLANE" ublk add "$@" >"$WORK/ublk.log" 2>&1 </dev/null &
    UBLK_SERVER=$!
    ublk_ready "$WORK/ublk.log"
}

in_kernel() {
    ublk_add "$@" --bpf kernel --log debug
    expect_match "where it runs" "$(<"$WORK/ublk.log")" ', program in the kernel'
}

deep_io() {
    verified_io "$DEVICE" 6M --iodepth=128 "${@:2}" --name=low --offset="$1M" --cpus_allowed=0 \
        --name=high --offset="$(($1 + 6))M" --cpus_allowed="$(($(nproc) - 1))"
}

begin_counted_load() {
    # Fewer requests reach the program than fio makes where neighbours are joined.
    echo 2 >"/sys/block/${DEVICE#/dev/}/queue/nomerges"
    fio --name=load --filename="$DEVICE" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=512-128k \
        --size=12M --verify=crc32c --verify_fatal=1 --verify_backlog=64 --time_based --runtime=900 \
        --output-format=json --output="$WORK/load" &
    LOAD=$!
}

end_counted_load() {
    local counted
    await 60 heeds "$LOAD"
    kill -INT "$LOAD" || true
    wait "$LOAD" || true
    # Before that it says that it was interrupted.
    sed -n '/^{/,$p' "$WORK/load" >"$WORK/load.json"
    expect_json "$WORK/load.json" '[.jobs[].error] | add' 0
    "$NVLANE" bpf stat "$DEVICE" -o json >"$WORK/stat.json"
    expect_json "$WORK/stat.json" '.programs[0].mistakes' 0
    # Each of fio's writes and reads ended under some program, which counted it.
    fio_count=$(jq '[.jobs[] | .write.total_ios + .read.total_ios] | add' "$WORK/load.json")
    counted=$(jq -r '.programs[0].maps[] | select(.name == "latencies") | .entries[].values[]' "$WORK/stat.json" |
        while read -r hex; do echo $((16#$(fold -w2 <<<"$hex" | tac | tr -d '\n'))); done | awk '{ sum += $1 } END { printf "%.0f\n", sum }')
    ((counted >= fio_count)) || die "$counted requests counted of fio's $fio_count"
}

each_queue() { sed -nE '/a queue has ended/s/.* requests=([0-9]+) .* returns=([0-9]+).*/\1 \2/p' "$WORK/ublk.log"; }

ublk_stop() {
    kill -TERM "$UBLK_SERVER"
    local status=0
    wait "$UBLK_SERVER" || status=$?
    expect "the ublk server's exit status after SIGTERM" $status 0
    expect "the device after the end" "$(ls "$DEVICE" "/dev/ublkc$ID" 2>/dev/null)" ""
}

in_flight() {
    local writes
    read -r _ writes <"/sys/block/${DEVICE##*/}/inflight" && ((writes >= $1))
}

hold_node() { exec 9<>"/dev/ublkc$ID"; } 2>/dev/null

has_feature() {
    # Asked once: a program takes an emulated processor a while to start.
    if [[ -z ${FEATURES:-} ]]; then
        FEATURES=$("$NVLANE" ublk features -o json | jq -r '.features[] | select(.there) | .name') || die "no word about features"
    fi
    [[ $'\n'$FEATURES$'\n' == *$'\n'"$1"$'\n'* ]]
}

# Lists of source ranges, as bytes. For sourcing.

# le NUMBER BYTES: little-endian
le() {
    local number=$1 at byte bytes=
    for ((at = 0; at < $2; at++)); do
        printf -v byte '\\x%02x' $((number & 255))
        bytes+=$byte number=$((number >> 8))
    done
    printf "$bytes"
}
# range SLBA BLOCKS [NSID]: a source range of format 0h or 2h
range() { le "${3:-0}" 4; le 0 4; le "$1" 8; le $(($2 - 1)) 2; le 0 14; }
# zeroes COUNT
zeroes() { head -c "$1" /dev/zero; }
# blocks DEVICE FIRST COUNT: of one with blocks of 512 bytes
blocks() { dd if="$1" bs=1M skip="$(($2 * 512))" count="$(($3 * 512))" iflag=direct,skip_bytes,count_bytes status=none; }
# given FILE CDW12 [CDW10]: a Copy with any list
given() {
    nvme io-passthru "$device" -o 0x19 -n "$nsid" -w -l "$(stat -c %s "$1")" -i "$1" --cdw12="$2" --cdw10="${3:-0}"
}
refused_list() {
    local status=$1
    shift
    expect_match "status of a list: $*" "$(fails given "$@")" "\(0x(40{0,2})?$status\)"
}

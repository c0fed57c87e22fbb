#!/bin/bash
# limit: 240
# Programs of Debian that are linked to libaio, unmodified, on ours: sysbench's asynchronous files, MariaDB's InnoDB
# and LVM's tools. Each tells what it did through it.
. "$(dirname "$0")/harness.sh"

# on_ours NAME WAY PROGRAM...: it ends well, and its I/O went that way (`ring`, `native`)
on_ours() {
    local name=$1 way=$2
    shift 2
    "$NVLANE" aio run --mode "${aio_mode:-auto}" --stat "$WORK/$name.json" -- "$@" >"$WORK/$name.out" 2>&1 </dev/stdin \
        || die "$name: $(tail -n 20 "$WORK/$name.out")"
    expect_json "$WORK/$name.json" ".total.$way > 0" true
    expect_json "$WORK/$name.json" '.total.refused' 0
    jq -r "\"$name: \\(.total.ring) by io_uring, \\(.total.inline) at once, \\(.total.native) natively\"" "$WORK/$name.json"
}

mkdir "$SCRATCH/sysbench"
cd "$SCRATCH/sysbench"
files=(sysbench fileio --file-num=4 --file-total-size=32M --file-block-size=16384)
"${files[@]}" prepare >/dev/null
for mode in rndrw rndwr; do
    on_ours "sysbench-$mode" ring "${files[@]}" --file-io-mode=async --file-async-backlog=32 --file-test-mode=$mode \
        --file-extra-flags=direct --threads=2 --events=1000 --time=0 run
    grep -q 'total number of events: *1000' "$WORK/sysbench-$mode.out" || die "$(<"$WORK/sysbench-$mode.out")"
done
# It submits one by one, which is the kernel's once that is known; all goes by io_uring where it has to.
expect_json "$WORK/sysbench-rndrw.json" '.total.native > 0' true
aio_mode=ring on_ours sysbench-ring ring "${files[@]}" --file-io-mode=async --file-async-backlog=32 --file-test-mode=rndrw \
    --file-extra-flags=direct --threads=2 --events=1000 --time=0 run
expect_json "$WORK/sysbench-ring.json" '.total.ring > 500 and .total.native == 0' true
"${files[@]}" cleanup >/dev/null
cd /

# What is written through our libaio is read through Debian's, and the other way round. InnoDB takes its events by a
# system call of its own, so its I/O must be the kernel's AIO.
mkdir "$SCRATCH/mariadb"
database=(mariadbd --no-defaults --bootstrap --user=root --datadir="$SCRATCH/mariadb" --innodb-use-native-aio=1
    --innodb-linux-aio=aio --innodb-flush-method=O_DIRECT --innodb-buffer-pool-size=8M --innodb-log-file-size=8M
    --secure-file-priv="$WORK")
sum="SELECT COUNT(*), SUM(CRC32(v)) FROM t.a INTO OUTFILE"
on_ours mariadb-fill native "${database[@]}" <<END
CREATE DATABASE t;
USE t;
CREATE TABLE t.a (id INT PRIMARY KEY AUTO_INCREMENT, v VARBINARY(4000)) ENGINE=InnoDB;
INSERT INTO t.a (v) SELECT REPEAT(MD5(seq), 100) FROM seq_1_to_4000;
UPDATE t.a SET v = REVERSE(v) WHERE id % 3 = 0;
$sum '$WORK/sum1';
END
grep -q 'native AIO' "$WORK/mariadb-fill.out" || die "InnoDB without AIO: $(<"$WORK/mariadb-fill.out")"
"${database[@]}" >"$WORK/native.out" 2>&1 <<END || die "$(<"$WORK/native.out")"
$sum '$WORK/sum2';
UPDATE t.a SET v = MD5(v) WHERE id % 5 = 0;
$sum '$WORK/sum3';
END
on_ours mariadb-read native "${database[@]}" <<<"$sum '$WORK/sum4';"
expect_match "rows and their checksum" "$(<"$WORK/sum1")" '^4000'
expect "what was written by ours" "$(<"$WORK/sum2")" "$(<"$WORK/sum1")"
expect "what was read by ours" "$(<"$WORK/sum4")" "$(<"$WORK/sum3")"

# LVM reads labels and writes metadata by AIO.
truncate -s 256M "$SCRATCH/lvm.img"
disk=$(losetup --show -f "$SCRATCH/lvm.img")
modprobe dm_mod
trap 'vgchange -an aiotest >/dev/null 2>&1; losetup -d "$disk"' EXIT
settings=(--config "devices { filter = [ \"a|^$disk$|\", \"r|.*|\" ] use_devicesfile = 0 } activation { udev_sync = 0 udev_rules = 0 }")
on_ours lvm-pvcreate ring pvcreate "${settings[@]}" "$disk"
on_ours lvm-vgcreate ring vgcreate "${settings[@]}" aiotest "$disk"
on_ours lvm-lvcreate ring lvcreate "${settings[@]}" -W n -Z n -n volume -L 64M aiotest
expect_match "the logical volume" "$(lvs "${settings[@]}" --noheadings -o lv_name,lv_size aiotest)" 'volume +64.00m'

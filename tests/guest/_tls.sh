# For sourcing after harness.sh: TLS of the guest's kernel. `tlshd` does its handshakes, for the host and for the target alike,
# with the keys in its keyring .nvme.
#
#   tls_tools FOLDER    of which tools tlshd, nvme-cli and keyctl are (xtask/src/tls.rs): $TLS_TOOLS unless told, whose nvme-cli
#                       derives keys without the lengths that HKDF-Expand-Label has, and whose tlshd proves keys for SHA-384 by
#                       SHA-256, or $TLS_TOOLS_NEWER, which do as NVMe/TCP and TLS say; TLS_EACH are those that are there and whose
#                       tlshd runs here
#   tls_begin [LEVEL]   has tlshd running, with what gnutls says up to that level in $TLS_LOG; tls_end stops it
#   tls_key HMAC        prints a new key as administrators exchange them; HMAC is 1 for SHA-256, 2 for SHA-384
#   tls_insert HOSTNQN SUBSYSNQN KEY [OPTION]...   gives the kernel what is derived of it for TLS
#   tls_connect HOSTNQN [OPTION]...   as connect, by TLS
#   tls_keeps_file DEVICE HOSTNQN   makes a file system there with a file, which is there again after the host has connected anew; is
#                       connected then, with DEVICE told
#   kernel_tls_port     what `kernel_serve` serves demands TLS from now on
TLS_LOG=$WORK/tlshd.log
TLSHD=
[[ -d ${TLS_TOOLS:-} ]] || die "there are no tools for TLS (cargo xtask guest --tls): '${TLS_TOOLS:-}'"
# The newest lacks none of these; the first that can is 6.7.
modprobe -aq tls nvme-keyring nvme-tcp nvmet-tcp || lacks "TLS of the kernel"
grep -qE '(^|,)tls(,|$)' /dev/nvme-fabrics || lacks "TLS of the kernel's host"

tls_tools() {
    TLS_NOW=$1
    TLS_RUN=("$1/usr/lib64/ld-linux-x86-64.so.2" --library-path "$1/usr/lib/x86_64-linux-gnu")
}
tls_tools "$TLS_TOOLS"
TLS_EACH=("$TLS_TOOLS")
# The newer tlshd asks for an option of sockets that 6.12 lacks (TLS_TX_MAX_PAYLOAD_LEN).
[[ $(uname -r) == 6.* || -z ${TLS_TOOLS_NEWER:-} ]] || TLS_EACH+=("$TLS_TOOLS_NEWER")
tls_nvme() { "${TLS_RUN[@]}" "$TLS_NOW/usr/sbin/nvme" "$@"; }
keyctl() { "${TLS_RUN[@]}" "$TLS_NOW/usr/bin/keyctl" "$@"; }

tls_begin() {
    printf '%s\n' '[debug]' loglevel=1 "tls=${1:-0}" nl=0 '[authenticate]' 'keyrings=.nvme' >"$WORK/tlshd.conf"
    : >"$TLS_LOG"
    "${TLS_RUN[@]}" "$TLS_NOW/usr/sbin/tlshd" --stderr --config "$WORK/tlshd.conf" >>"$TLS_LOG" 2>&1 </dev/null &
    TLSHD=$!
    await 60 tls_listens
}

# Whether the kernel has somebody who does its handshakes: a netlink socket in a group, of that process, whose number is the
# last 22 bits of the socket's.
tls_listens() {
    local socket family owner groups rest
    kill -0 "$TLSHD" 2>/dev/null || die "tlshd has ended: $(<"$TLS_LOG")"
    while read -r socket family owner groups rest; do
        [[ $family == 16 && $groups != 00000000 ]] || continue
        if (((owner & 0x3fffff) == TLSHD)); then return; fi
    done </proc/net/netlink
    return 1
}

tls_end() {
    [[ -n $TLSHD ]] || return 0
    kill "$TLSHD" 2>/dev/null || true
    wait "$TLSHD" 2>/dev/null || true
    TLSHD=
}

tls_key() { tls_nvme gen-tls-key --hmac="$1" | grep -o 'NVMeTLSkey-1:.*'; }

# OPTION may be --identity=0, for an identity without a digest of the key, which NVMe/TCP 1.0 has, and --compat, by which the
# newer nvme-cli derives as the older one does.
tls_insert() {
    local version=(--identity=1)
    [[ " ${*:4}" == *" --identity="* ]] && version=()
    tls_nvme check-tls-key --insert --hostnqn="$1" --subsysnqn="$2" --keydata="$3" "${version[@]}" "${@:4}" >"$WORK/said" 2>&1 \
        || die "the key is not inserted: $(<"$WORK/said")"
}

# tls_insert_psk IDENTITY <BYTES: what TLS takes, derived by somebody else
tls_insert_psk() { keyctl padd psk "$1" %:.nvme >/dev/null; }

# tls_identities: of the keys that the kernel has, each after its serial number
tls_identities() {
    local serial flags uses expires permissions user group kind identity
    while read -r serial flags uses expires permissions user group kind identity; do
        if [[ $kind == psk && $flags != *R* ]]; then echo "$serial ${identity%: *}"; fi
    done </proc/keys
}

# tls_psk SERIAL: what TLS takes, in hexadecimal digits; only who has the keyring may read it
tls_psk() {
    keyctl link %:.nvme @u
    keyctl pipe "0x$1" | od -An -v -tx1 | tr -d ' \n'
    keyctl unlink %:.nvme @u
}

# tls_forget: no keys are left
tls_forget() { keyctl clear %:.nvme; }

tls_connect() {
    local patient=(--keep-alive-tmo=30)
    [[ " $*" == *" --keep-alive-tmo"* ]] && patient=()
    tls_nvme connect -t tcp -a 127.0.0.1 -s "$PORT" -n "$NQN" -q "$1" --tls "${patient[@]}" "${@:2}"
}

# tls_keeps_file DEVICE HOSTNQN
tls_keeps_file() {
    mkfs.ext4 -q -E lazy_itable_init=1,lazy_journal_init=1 "$1"
    mount "$1" /mnt/test
    cp "$BASH" /mnt/test/bash
    umount /mnt/test
    # Not from this end's cache.
    disconnect
    tls_connect "$2" >/dev/null
    local device
    device=$(namespace 1)
    await 20 test -b "$device"
    mount -r "$device" /mnt/test
    cmp "$BASH" /mnt/test/bash || die "the file is another"
    umount /mnt/test
    echo "$device"
}

# kernel_tls_port [PORT]: of the kernel's own target
kernel_tls_port() {
    local port=$NVMET/ports/${1:-1}
    rm "$port/subsystems/$NQN"
    echo tls1.3 >"$port/addr_tsas"
    echo required >"$port/addr_treq"
    ln -s "$NVMET/subsystems/$NQN" "$port/subsystems/$NQN"
}

# Whatever another script has left.
tls_forget

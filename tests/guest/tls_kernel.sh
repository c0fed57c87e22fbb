#!/bin/bash
# limit: 120
# The kernel's own host and target by TLS 1.3, with both tools: what other tests of TLS stand on. Nothing of ours is in it.
. "$(dirname "$0")/harness.sh"
. "$(dirname "$0")/_tls.sh"

HOST=nqn.2026-11.com.example:host
kernel_serve "file:$SCRATCH/a.img?size=256M&create"
kernel_tls_port
trap 'tls_end; kernel_stop' EXIT

# used CONTROLLER: the identity that it has proved
used() {
    local serial identity
    while read -r serial identity; do
        if is "/sys/class/nvme/$1/tls_key" "$serial"; then echo "$identity"; fi
    done < <(tls_identities)
}

# by_tls IDENTITY CIPHER: the host connects by that identity, all its handshakes take that cipher, and what is written is read
by_tls() {
    local device
    : >"$TLS_LOG"
    tls_connect "$HOST" >/dev/null
    device=$(namespace 1)
    await 20 test -b "$device"
    expect_match "the identity" "$(used "$(controllers)")" "^$1 $HOST $NQN"
    # Of the admin queue and of one for each processor, by host and target.
    expect "ends of handshakes by $2" "$(grep -c "Session description: .*TLS1.3.*($2)" "$TLS_LOG")" $((2 + 2 * $(nproc)))
    device=$(tls_keeps_file "$device" "$HOST")
    if [[ $1 == NVMe1R02 ]]; then verified_io "$device" 16M; fi
    disconnect
    echo "$1 by $2"
}

# derives HMAC SECRET PSK [OPTION]: nvme-cli makes that of a key with that secret for this host and a subsystem
derives() {
    local key serial identity
    key=$(tls_nvme gen-tls-key --hmac="$1" --secret="$2" | grep -o 'NVMeTLSkey-1:.*')
    tls_insert "$HOST" nqn.2026-11.com.example:known "$key" "${@:4}"
    read -r serial identity < <(tls_identities)
    expect "what TLS takes of a key for hash function $1 by $TLS_NOW" "$(tls_psk "$serial")" "$3"
    tls_forget
}
secret=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
longer=${secret}202122232425262728292a2b2c2d2e2f
old=76cdc4b3c8ce8d14e304fa2360f6434fc00ee0fe428921b12709524f89cefa14
old_longer=5048546f56805a43411eed175f376001ef01316b608099ebaae062b1f8a32a23d600d2f932704c45756c96e4cb23700a
derives 1 $secret $old
derives 2 $longer $old_longer
if [[ -n ${TLS_TOOLS_NEWER:-} ]]; then
    tls_tools "$TLS_TOOLS_NEWER"
    derives 1 $secret $old --compat
    derives 2 $longer $old_longer --compat
    derives 1 $secret 8cb77bb2ae587d4cdb1a95c288ae1b7d8e1954a1cac1a04278e87643795e24ab
    derives 2 $longer c33393c03c00648232588408a75d7a742f551ab3e26b1cf15bacf265f3e9e170d159f94e396bf6183a723aa6df02f184
fi

# refused WORDS COMMAND...: it fails, and says so
refused() {
    fails "${@:2}" >"$WORK/refusal"
    expect_match "what is said" "$(<"$WORK/refusal")" "$1"
}
for tools in "${TLS_EACH[@]}"; do
    tls_tools "$tools"
    tls_nvme version
    # A key for SHA-384 goes by that hash function where it is proved by it.
    sha384=CHACHA20-POLY1305
    [[ $tools == "$TLS_TOOLS" ]] || sha384=AES-256-GCM
    tls_begin
    refused "TLS key is missing" tls_connect "$HOST"
    # The host offers one key: of all that it has the one whose identity has a digest, and then the one for SHA-384.
    short=$(tls_key 1) long=$(tls_key 2)
    tls_insert "$HOST" "$NQN" "$short" --identity=0
    by_tls NVMe0R01 AES-128-GCM
    tls_insert "$HOST" "$NQN" "$long" --identity=0
    by_tls NVMe0R02 "$sha384"
    tls_insert "$HOST" "$NQN" "$short"
    by_tls NVMe1R01 AES-128-GCM
    tls_insert "$HOST" "$NQN" "$long"
    by_tls NVMe1R02 "$sha384"
    tls_identities
    # Whoever does not ask for TLS is not let in; without tlshd nobody is.
    refused nvme-fabrics connect -q "$HOST"
    tls_end
    refused nvme-fabrics tls_connect "$HOST"
    tls_forget
done

# A key that somebody else has derived, without nvme-cli.
printf %064d 1 >"$WORK/psk"
tls_insert_psk "NVMe1R01 $HOST $NQN digest" <"$WORK/psk"
read -r serial identity < <(tls_identities)
expect "the identity" "$identity" "NVMe1R01 $HOST $NQN digest"
expect "its key" "$(tls_psk "$serial")" "$(od -An -v -tx1 "$WORK/psk" | tr -d ' \n')"
tls_forget
kernel_stop

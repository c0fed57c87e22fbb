#!/usr/bin/python3
"""What libnbd's own client library makes of `nvlane nbd`: libnbd.py URI [URI]

The first export is writable, of at least 32 MiB, with blocks of 512 bytes, and is written over. The
second is any other of the same server. Handshake options, structured replies and their chunks,
commands in flight on one connection, several connections, holes, and errors as libnbd tells them.
"""

import errno
import sys

import nbd

MIB = 1 << 20
uri = sys.argv[1]


def connected(mode=None):
    client = nbd.NBD()
    client.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    # What a client must not send is the server's to refuse.
    client.set_strict_mode(0)
    if mode:
        mode(client)
    client.connect_uri(uri)
    return client


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, wanted {wanted!r}")


def refused(what, codes, call):
    try:
        call()
    except nbd.Error as error:
        if error.errnum not in codes:
            sys.exit(f"{what}: {error}, wanted {[errno.errorcode[code] for code in codes]}")
    else:
        sys.exit(f"{what} was not refused")


def pattern(seed, count):
    return bytearray((seed * 131 + at * 7 + (at >> 9)) & 0xFF for at in range(512)) * (count // 512)


def options():
    """Negotiation, option by option."""
    client = connected(lambda it: it.set_opt_mode(True))
    if not client.aio_is_negotiating():
        sys.exit("opt_mode: not negotiating")
    names = []
    client.opt_list(lambda name, description: names.append(name) or 0)
    expect("exports", len(names) >= 1, True)
    contexts = []
    client.opt_list_meta_context(lambda name: contexts.append(name) or 0)
    expect("contexts", contexts, ["base:allocation"])
    client.opt_info()
    size = client.get_size()
    wrong = client.get_export_name()
    client.set_export_name("there-is-no-such-export")
    refused("an unknown export", [errno.ENOENT], client.opt_info)
    client.set_export_name(wrong)
    client.opt_go()
    expect("size", client.get_size(), size)
    expect("structured replies", client.get_structured_replies_negotiated(), True)
    expect("protocol", client.get_protocol(), "newstyle-fixed")
    client.shutdown()
    client = connected(lambda it: it.set_opt_mode(True))
    client.opt_abort()
    if not client.aio_is_closed():
        sys.exit("opt_abort: not closed")


def chunks(client):
    """Reads in chunks: all of it is there once, whatever the order."""
    data = pattern(1, 4 * MIB)
    client.pwrite(data, 0, nbd.CMD_FLAG_FUA)
    seen = bytearray(4 * MIB)
    covered = []

    def chunk(part, offset, status, _error):
        expect("kind of chunk", status in (nbd.READ_DATA, nbd.READ_HOLE), True)
        seen[offset : offset + len(part)] = part
        covered.append((offset, len(part)))
        return 0

    expect("read", client.pread_structured(4 * MIB, 0, chunk), data)
    expect("chunks", seen, data)
    covered.sort()
    at = 0
    for offset, count in covered:
        expect("chunks cover the range once", offset, at)
        at += count
    expect("chunks end", at, 4 * MIB)
    refused(
        "a long read in one chunk",
        [errno.EOVERFLOW],
        lambda: client.pread_structured(4 * MIB, 0, chunk, nbd.CMD_FLAG_DF),
    )
    client.pread_structured(4096, 0, chunk, nbd.CMD_FLAG_DF)


def in_flight(client):
    """A hundred commands at a time on one connection."""
    left = [0]

    def done(error):
        expect("completion", error.value, 0)
        left[0] -= 1
        return 1

    def drained(limit):
        while left[0] > limit:
            client.poll(-1)

    for at in range(400):
        drained(99)
        left[0] += 1
        client.aio_pwrite(nbd.Buffer.from_bytearray(pattern(at, 4096)), 4096 * at, done)
    drained(0)
    buffers = {}
    for at in range(400):
        drained(99)
        left[0] += 1
        buffers[at] = nbd.Buffer(4096)
        client.aio_pread(buffers[at], 4096 * at, done)
    drained(0)
    for at, buffer in buffers.items():
        expect(f"block {at}", buffer.to_bytearray(), pattern(at, 4096))


def several_connections(client):
    """CAN_MULTI_CONN: what one has flushed, or written with FUA, all see."""
    expect("can_multi_conn", client.can_multi_conn(), True)
    others = [connected() for _ in range(4)]
    for round in range(20):
        writer = others[round % 4]
        data = pattern(round + 3, 64 * 1024)
        if round % 2:
            writer.pwrite(data, 8 * MIB, nbd.CMD_FLAG_FUA)
        else:
            writer.pwrite(data, 8 * MIB)
            others[(round + 1) % 4].flush()
        for reader in others:
            expect(f"round {round}", reader.pread(64 * 1024, 8 * MIB), data)
    for other in others:
        other.shutdown()
    # Parts of one block, from all of them: for those who have not agreed to whole ones.
    client.zero(4096, 9 * MIB)
    part = lambda: client.pwrite(bytes(7), 9 * MIB)
    refused("a part of a block, once its size was agreed", [errno.EINVAL], part)
    others = [connected(lambda it: it.set_request_block_size(False)) for _ in range(4)]
    for at in range(64):
        others[at % 4].pwrite(bytes([at + 1]) * 7, 9 * MIB + 7 * at)
    wanted = b"".join(bytes([at + 1]) * 7 for at in range(64))
    expect("parts of blocks", client.pread(512, 9 * MIB)[:448], bytearray(wanted))
    for other in others:
        other.shutdown()


def holes(client):
    client.pwrite(pattern(9, MIB), 16 * MIB)
    client.trim(MIB, 16 * MIB)
    expect("trimmed", client.pread(MIB, 16 * MIB), bytearray(MIB))
    client.pwrite(pattern(9, MIB), 16 * MIB)
    client.zero(MIB, 16 * MIB, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    expect("zeroed", client.pread(MIB, 16 * MIB), bytearray(MIB))
    total = [0]

    def extents(_context, _offset, entries, _error):
        total[0] = sum(entries[::2])
        return 0

    client.block_status(2 * MIB, 16 * MIB, extents)
    expect("extents cover something", total[0] > 0, True)
    client.block_status(MIB, 16 * MIB, extents, nbd.CMD_FLAG_REQ_ONE)
    expect("one extent, no longer than asked", 0 < total[0] <= MIB, True)
    if client.can_cache():
        client.cache(MIB, 0)


def mistakes(client):
    size = client.get_size()
    refused("a write beyond the end", [errno.ENOSPC], lambda: client.pwrite(bytearray(512), size))
    refused("a read beyond the end", [errno.EINVAL], lambda: client.pread(512, size))
    refused("a trim beyond the end", [errno.EINVAL, errno.ENOSPC], lambda: client.trim(512, size))
    # It goes on after each of them.
    expect("after mistakes", len(client.pread(512, size - 512)), 512)


options()
client = connected()
chunks(client)
in_flight(client)
several_connections(client)
holes(client)
mistakes(client)
client.flush()
client.shutdown()
if len(sys.argv) > 2:
    uri = sys.argv[2]
    other = connected()
    other.pread(512, 0)
    other.shutdown()
print("libnbd", nbd.NBD().get_version(), "agrees")

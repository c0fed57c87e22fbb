/* nvlane: NVMe commands to any volume, asynchronously. See docs/library.md.
 *
 * Made from crates/capi by cbindgen; `cargo test -p capi` says when it is not up to date.
 */

#ifndef NVLANE_H
#define NVLANE_H

#include <stdint.h>
#include <stddef.h>
#include <sys/uio.h>

/**
 * Commands that one session may have in flight.
 */
#define NVL_DEPTH_MAX 32768

/**
 * nvl_config.flags: nvl_wait() never sleeps.
 */
#define NVL_POLL 1

/**
 * nvl_open(): refuse to write.
 */
#define NVL_READ_ONLY 1

/**
 * nvl_open(): others may have the volume open too, if they say so as well.
 */
#define NVL_SHARED 2

/**
 * nvl_limits.flags: the volume takes no writes.
 */
#define NVL_LIMITS_READ_ONLY 1

/**
 * nvl_limits.flags: what was written survives a power cut only after a Flush.
 */
#define NVL_LIMITS_VOLATILE 2

/**
 * nvl_limits.flags: I/O commands beyond the NVM command set reach what is behind the volume.
 */
#define NVL_LIMITS_PASSES_IO 4

/**
 * nvl_limits.flags: so do admin commands.
 */
#define NVL_LIMITS_PASSES_ADMIN 8

/**
 * Bytes of the largest buffer of nvl_buffer_new().
 */
#define NVL_BUFFER_BYTES_MAX 1048576

/**
 * nvl_command.queue: an I/O command, for the volume.
 */
#define NVL_IO 0

/**
 * nvl_command.queue: an admin command, for the controller behind the volume.
 */
#define NVL_ADMIN 1

/**
 * nvl_copy() flags: fail (Fast Copy Not Possible) where blocks could only be read and written.
 */
#define NVL_COPY_FAST_ONLY 1

/**
 * nvl_copy() takes at most so many ranges, whatever a volume's limits are.
 */
#define NVL_COPY_RANGES_MAX 256

/**
 * nvl_copy_to_all() takes at most so many targets.
 */
#define NVL_COPY_TARGETS_MAX 32768

/**
 * Bytes of nvl_path.name and nvl_path.reason, the zero at the end included.
 */
#define NVL_PATH_TEXT_BYTES 256

/**
 * nvl_path.access: live, and optimized by ANA, or there is no ANA.
 */
#define NVL_PATH_OPTIMIZED 0

/**
 * nvl_path.access: live; non-optimized by ANA: used where there is nothing optimized.
 */
#define NVL_PATH_NON_OPTIMIZED 1

/**
 * nvl_path.access: live, but commands would fail: inaccessible, persistent loss or change by ANA.
 */
#define NVL_PATH_INACCESSIBLE 2

/**
 * nvl_path.access: no connection now; one is being made.
 */
#define NVL_PATH_LOST 3

/**
 * nvl_path.access: the same, and what waits for it fails (fast_io_fail_tmo is over).
 */
#define NVL_PATH_FAILING 4

/**
 * nvl_path.access: given up for good (ctrl_loss_tmo is over).
 */
#define NVL_PATH_GONE 5

/**
 * Memory that the kernel has registered for the session's ring, where it allows that.
 */
struct nvl_buffer;

/**
 * Volumes with one ring for all of them. It belongs to the thread that made it.
 */
struct nvl_session;

/**
 * A volume that a session has open.
 */
struct nvl_volume;

/**
 * How a session is set up. Zeroes are defaults.
 */
struct nvl_config {
    /**
     * sizeof(struct nvl_config): later versions may have more fields.
     */
    uint32_t size;
    /**
     * Commands in flight, at most NVL_DEPTH_MAX; 0 for 128.
     */
    uint32_t depth;
    /**
     * Address space for buffers of nvl_buffer_new(), in bytes; 0 for 32 MiB.
     */
    uint64_t buffer_bytes;
    /**
     * NVL_POLL.
     */
    uint32_t flags;
    /**
     * Microseconds for which nvl_wait() spins before it sleeps, where that pays; 0 for 50.
     */
    uint32_t spin_us;
};

/**
 * What a volume is.
 */
struct nvl_limits {
    /**
     * Logical blocks.
     */
    uint64_t blocks;
    /**
     * Bytes of a logical block.
     */
    uint32_t block_bytes;
    /**
     * Bytes of the largest data transfer of one command.
     */
    uint32_t transfer_bytes_max;
    /**
     * Bytes of metadata of each block, where they are transferred apart.
     */
    uint32_t metadata_bytes;
    /**
     * NVL_LIMITS_*.
     */
    uint32_t flags;
    /**
     * Blocks of all source ranges of one Copy together; 0 where there is no Copy.
     */
    uint32_t copy_blocks_max;
    /**
     * Blocks of one of them.
     */
    uint32_t copy_range_blocks_max;
    /**
     * How many there may be.
     */
    uint32_t copy_ranges_max;
    /**
     * 0.
     */
    uint32_t reserved;
};

/**
 * Any NVMe command. What is left zero is zero in the command.
 */
struct nvl_command {
    /**
     * Opcode.
     */
    uint8_t opcode;
    /**
     * Byte 1 of the command: FUSE and PSDT. Fused commands are refused.
     */
    uint8_t flags;
    /**
     * 0.
     */
    uint16_t reserved;
    /**
     * Namespace. Of an I/O command it is the volume's own, whatever stands here; an admin command names none (0), all
     * (FFFFFFFFh) or the volume's own (1 where that has no such id), or it is refused (Invalid Namespace or Format).
     */
    uint32_t nsid;
    /**
     * Command dword 2.
     */
    uint32_t cdw2;
    /**
     * Command dword 3.
     */
    uint32_t cdw3;
    /**
     * Command dword 10.
     */
    uint32_t cdw10;
    /**
     * Command dword 11.
     */
    uint32_t cdw11;
    /**
     * Command dword 12.
     */
    uint32_t cdw12;
    /**
     * Command dword 13.
     */
    uint32_t cdw13;
    /**
     * Command dword 14.
     */
    uint32_t cdw14;
    /**
     * Command dword 15.
     */
    uint32_t cdw15;
    /**
     * NVL_IO or NVL_ADMIN.
     */
    uint32_t queue;
    /**
     * Milliseconds that a device may take; 0 for its own time-out.
     */
    uint32_t timeout_ms;
    /**
     * What is written, or where is read to; with a buffer, a place in it, or null for its start. It must stay
     * until the command was reaped.
     */
    void *data;
    /**
     * Bytes at `data`.
     */
    uint32_t data_len;
    /**
     * Bytes at `metadata`.
     */
    uint32_t metadata_len;
    /**
     * Metadata of the blocks, likewise.
     */
    void *metadata;
    /**
     * The buffer that `data` lies in; null for other memory.
     */
    struct nvl_buffer *buffer;
    /**
     * Comes back with the completion.
     */
    uint64_t token;
};

/**
 * What became of a command.
 */
struct nvl_completion {
    /**
     * nvl_command.token.
     */
    uint64_t token;
    /**
     * Dwords 0 and 1 of the completion: the block that a Zone Append wrote to, for example.
     */
    uint64_t result;
    /**
     * 0, or SC in bits 7:0, SCT in 10:8, CRD in 12:11, More in 13, Do Not Retry in 14; see nvl_status_text().
     */
    uint16_t status;
    /**
     * 0.
     */
    uint16_t reserved;
    /**
     * nvl_volume_id() of the volume.
     */
    uint32_t volume;
};

/**
 * Blocks that are copied.
 */
struct nvl_copy_source {
    /**
     * Where they are: any volume of the session; null for the one that is written to.
     */
    struct nvl_volume *volume;
    /**
     * The first one there.
     */
    uint64_t first;
    /**
     * How many.
     */
    uint32_t blocks;
    /**
     * 0.
     */
    uint32_t reserved;
};

/**
 * Where blocks are copied to.
 */
struct nvl_copy_target {
    /**
     * A volume of the session.
     */
    struct nvl_volume *volume;
    /**
     * The first block there.
     */
    uint64_t first;
};

/**
 * One way to a volume. Counts are since the volume was opened.
 */
struct nvl_path {
    /**
     * What tells it from the others, "tcp://192.0.2.1:4420"; cut off where it is longer.
     */
    char name[NVL_PATH_TEXT_BYTES];
    /**
     * Why it is not live, in words; empty if it is.
     */
    char reason[NVL_PATH_TEXT_BYTES];
    /**
     * NVL_PATH_*: connection and ANA state, the better the smaller. Commands are sent up to NVL_PATH_NON_OPTIMIZED.
     */
    uint32_t access;
    /**
     * What the policy gives it, 0 to 128.
     */
    uint32_t weight;
    /**
     * Of the commands sent by all paths since the last call that filled in paths, 0 to 1; at the first, since the volume was opened.
     */
    double share;
    /**
     * Commands in flight.
     */
    uint64_t in_flight;
    /**
     * Commands sent.
     */
    uint64_t commands;
    /**
     * Those that came back with an error of the path.
     */
    uint64_t errors;
    /**
     * Connections made after the first.
     */
    uint64_t reconnects;
    /**
     * Half of the latencies of the last some seconds are below, in nanoseconds; 0 where nothing was sent.
     */
    uint64_t p50_ns;
    /**
     * 99 of 100 are.
     */
    uint64_t p99_ns;
    /**
     * 0; for what later versions know.
     */
    uint64_t reserved[4];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Makes a session of the calling thread; `config` may be null for defaults.
 *
 * Where io_uring is refused, epoll and threads do its work: nvl_refusal() tells.
 *
 * Errors: -EINVAL; -EMFILE, -ENOMEM and others where something is missing, and nvl_error() says what would mend it.
 *
 * # Safety
 * `config` is null or points to a structure of `config->size` bytes; `session` is writable.
 */
int nvl_session_new(const struct nvl_config *config,
                    struct nvl_session **session);

/**
 * Ends a session: waits for its commands, and forgets what they give back. Its volumes and buffers take no more
 * commands (-ESHUTDOWN) and are still to be closed and freed.
 *
 * # Safety
 * `session` is null or a session, not freed; it is not used again if this returns 0.
 */
int nvl_session_free(struct nvl_session *session);

/**
 * Hands what was submitted to the kernel and to sockets. Never blocks.
 *
 * # Safety
 * `session` is null or a session, not freed.
 */
int nvl_flush(struct nvl_session *session);

/**
 * Hands over what was submitted, and sleeps until `min` commands can be reaped, or as many as there are if that is
 * fewer; at most for `timeout_ns` nanoseconds, or for as long as it takes if that is negative. Gives how many can
 * be reaped. Signals do not end it.
 *
 * # Safety
 * `session` is null or a session, not freed.
 */
int nvl_wait(struct nvl_session *session,
             uint32_t min,
             int64_t timeout_ns);

/**
 * Gives a descriptor for a loop of the program's own to poll for reading (poll, epoll, libuv), level- or edge-triggered;
 * to be polled, and neither read nor closed. It serves all volumes of the session, and is the same at each call. Before
 * sleeping call nvl_arm(), each time; when it is readable, nvl_reap(). Take it out of the loop before
 * nvl_session_free().
 *
 * Errors: -EOPNOTSUPP with NVL_POLL; what the kernel says where there is no descriptor to be had.
 *
 * # Safety
 * `session` is null or a session, not freed.
 */
int nvl_poll_fd(struct nvl_session *session);

/**
 * Hands over what was submitted, and gives how many commands can be reaped. If that is 0, the program may sleep on
 * nvl_poll_fd(), which becomes readable as soon as there is something for the session to do; now and then for nothing that
 * the program would see. Then, and when something was submitted meanwhile, this is to be called again. Never blocks.
 *
 * Errors: as for nvl_poll_fd(); -EOPNOTSUPP also where commands are in flight whose completions are polled for, or that a thread of
 * the kernel submits (poll, hybrid, sqpoll of a device): only nvl_wait() and nvl_reap() tell of those.
 *
 * # Safety
 * `session` is null or a session, not freed.
 */
int nvl_arm(struct nvl_session *session);

/**
 * Gives how many commands were submitted and not yet reaped: what counts towards the depth.
 *
 * # Safety
 * `session` is null or a session, not freed.
 */
int nvl_outstanding(struct nvl_session *session);

/**
 * Writes why io_uring is not used, and what would allow it, with a zero at the end, cut off where it is longer than `bytes`. Until
 * then files are slower and NVMe devices are not to be had. Gives its length without the zero, as snprintf does: 0 where io_uring is
 * used.
 *
 * # Safety
 * `session` is null or a session, not freed; `text` is writable for `bytes` bytes, or null if `bytes` is 0.
 */
int nvl_refusal(struct nvl_session *session,
                char *text,
                size_t bytes);

/**
 * Opens any volume by its path or URI: "/dev/ng0n1", "disk.img", "mem:1G", "tcp://192.0.2.1:4420/NQN?ns=1". May
 * block, for a remote one until it has answered. `flags` are NVL_READ_ONLY, NVL_SHARED.
 *
 * Errors: -EINVAL, also for a URI that makes no sense; -ENOENT, -EACCES, -EBUSY, -EHOSTUNREACH and what else the kernel
 * says. nvl_error() names the mend.
 *
 * # Safety
 * `session` is null or a session, not freed; `uri` is null or a text that ends with a zero; `volume` is null or
 * writable.
 */
int nvl_open(struct nvl_session *session,
             const char *uri,
             uint32_t flags,
             struct nvl_volume **volume);

/**
 * Closes a volume. It takes no more commands; those in flight complete.
 *
 * # Safety
 * `volume` is null or a volume, not closed; it is not used again if this returns 0.
 */
int nvl_close(struct nvl_volume *volume);

/**
 * Fills in what the volume is now. Its size may change while it is open: this looks at it, and may block for as long as
 * that takes (a look at a file, a command to an NVMe namespace of this machine). Commands are checked against the size of
 * such namespaces as it was found by the last call of this, of other volumes as it was within the last second or two.
 *
 * # Safety
 * `volume` is null or a volume, not closed; `limits` is null or writable.
 */
int nvl_volume_limits(struct nvl_volume *volume,
                      struct nvl_limits *limits);

/**
 * Gives what completions call the volume: a number above 0.
 *
 * # Safety
 * `volume` is null or a volume, not closed.
 */
int nvl_volume_id(struct nvl_volume *volume);

/**
 * Writes the volume's URI in canonical form, with a zero at the end, cut off where it is longer than `bytes`. Gives its
 * length without the zero, as snprintf does.
 *
 * # Safety
 * `volume` is null or a volume, not closed; `text` is writable for `bytes` bytes, or null if `bytes` is 0.
 */
int nvl_uri(struct nvl_volume *volume,
            char *text,
            size_t bytes);

/**
 * Makes a buffer of `bytes` bytes, at most NVL_BUFFER_BYTES_MAX, aligned to 4096 and filled with zeroes.
 *
 * Errors: -EINVAL for no length or too much; -ENOBUFS if the session's pool is used up.
 *
 * # Safety
 * `session` is null or a session, not freed; `buffer` is null or writable.
 */
int nvl_buffer_new(struct nvl_session *session,
                   size_t bytes,
                   struct nvl_buffer **buffer);

/**
 * Frees a buffer.
 *
 * Errors: -EBUSY while a command that uses it is in flight, or waits to be reaped.
 *
 * # Safety
 * `buffer` is null or a buffer, not freed; it is not used again if this returns 0.
 */
int nvl_buffer_free(struct nvl_buffer *buffer);

/**
 * Gives the buffer's memory; null if it is no buffer of this thread's.
 *
 * # Safety
 * `buffer` is null or a buffer, not freed.
 */
void *nvl_buffer_data(struct nvl_buffer *buffer);

/**
 * Gives the buffer's length in bytes; 0 if it is no buffer of this thread's.
 *
 * # Safety
 * `buffer` is null or a buffer, not freed.
 */
size_t nvl_buffer_len(struct nvl_buffer *buffer);

/**
 * Gives 1 if the kernel has registered the buffer, 0 if it refused to (RLIMIT_MEMLOCK): it works all the same.
 *
 * # Safety
 * `buffer` is null or a buffer, not freed.
 */
int nvl_buffer_is_fixed(struct nvl_buffer *buffer);

/**
 * Starts a command: notes it, to be handed over by nvl_flush(), nvl_wait() or nvl_reap(). Never blocks. What is
 * wrong with the command itself is told by its completion's status.
 *
 * Errors: -EAGAIN if the depth is reached, reap first; -ENOBUFS if memory must be copied and the pool is used up;
 * -EINVAL; -ESHUTDOWN after nvl_session_free().
 *
 * # Safety
 * `volume` is null or a volume, not closed; `command` is null or readable; its memory is as long as it says, and stays
 * until the command was reaped or the session freed.
 */
int nvl_submit(struct nvl_volume *volume,
               const struct nvl_command *command);

/**
 * The same for data in several pieces of memory that is no buffer's, together as long as the command says; `data`,
 * `data_len` and `buffer` are 0. A device of this machine is given the pieces as they are, up to 1,024 of them, but for
 * Compare and Dataset Management; otherwise, and with every other volume, what they hold is copied by way of the
 * session's pool. The list may go as soon as this returns. A Copy's ranges come in one piece: Invalid Field otherwise.
 *
 * Errors: as nvl_submit().
 *
 * # Safety
 * As for nvl_submit(); `vectors` has `count` elements, or is null if `count` is 0, and what they point to stays until
 * the command was reaped or the session freed.
 */
int nvl_submit_vectors(struct nvl_volume *volume,
                       const struct nvl_command *command,
                       const struct iovec *vectors,
                       uint32_t count);

/**
 * Hands over what was submitted, and fills in up to `most` commands that have completed, in that order. Never
 * blocks. Gives how many.
 *
 * # Safety
 * `session` is null or a session, not freed; `completions` is writable for `most` elements, or null if `most` is 0.
 */
int nvl_reap(struct nvl_session *session,
             struct nvl_completion *completions,
             uint32_t most);

/**
 * Starts a Copy of `count` source ranges, one after another, to the blocks of `volume` from `first` on, as nvl_submit()
 * starts a command; nvl_limits.copy_* say how much one may be. On failure nvl_completion.result is the lowest range
 * that was not copied whole. Volumes may differ, but not in the size of their blocks. A range may overlap what is
 * written, and is copied as if it were read whole before; but what earlier ranges have written, it reads as they left it.
 *
 * nvl_submit() takes Copies as well, with source ranges as NVMe has them; in formats 2h and 3h the namespace id is then
 * nvl_volume_id() of a volume of the session.
 *
 * Errors: those of nvl_submit(); -EXDEV if a volume is of another session.
 *
 * # Safety
 * `volume` is null or a volume, not closed; `sources` has `count` elements, whose volumes are null or not closed.
 */
int nvl_copy(struct nvl_volume *volume,
             uint64_t first,
             const struct nvl_copy_source *sources,
             uint32_t count,
             uint32_t flags,
             uint64_t token);

/**
 * Starts a Copy of the same source ranges to each of `target_count` targets; they count as so many commands in
 * flight, and complete as one. Its nvl_completion.result is the lowest target whose Copy has failed, with the status of
 * that and its volume, or `target_count` if none has; all are tried. They are at work at once.
 *
 * Errors: those of nvl_copy(); -EAGAIN if the depth has no room for all; -EINVAL if what is written to one is written
 * or read for another, as far as volumes tell that their blocks are the same. None was started then.
 *
 * # Safety
 * `targets` has `target_count` elements, and `sources` has `count`; their volumes are null or not closed.
 */
int nvl_copy_to_all(const struct nvl_copy_target *targets,
                    uint32_t target_count,
                    const struct nvl_copy_source *sources,
                    uint32_t count,
                    uint32_t flags,
                    uint64_t token);

/**
 * Copies `blocks` blocks of `source` from `source_first` on to `target` from `target_first` on, and waits for it, as
 * copy_file_range() does between files. Gives how many were copied: fewer than asked for if the volume allows no more
 * at once, or if it failed in the middle. What else is in flight goes on meanwhile.
 *
 * Errors: those of nvl_copy(); -EINVAL, as of copy_file_range(), if what is read and what is written overlap, as far as
 * volumes tell that their blocks are the same (one Copy of one range may: nvl_copy()); -EIO if the volume has failed
 * it, and nvl_error() has the status in words. Nothing was copied then.
 *
 * # Safety
 * `target` and `source` are null or volumes, not closed.
 */
int64_t nvl_copy_range(struct nvl_volume *target,
                       uint64_t target_first,
                       struct nvl_volume *source,
                       uint64_t source_first,
                       uint64_t blocks);

/**
 * Fills in how the paths to a volume are, up to `most` of them, and gives how many there are: 0 where there is but one way
 * and nothing is known of it, as to a file. Never blocks; not for every command. A path is live once this session's own
 * connection by it is made, which happens in the session's calls. What `nvlane paths` tells beside that (its details) is for
 * people, and differs by policy.
 *
 * These are structures and not the JSON of `nvlane paths`, as with all else here: a program needs nothing to read them.
 *
 * # Safety
 * `volume` is null or a volume, not closed; `paths` is writable for `most` elements, or null if `most` is 0.
 */
int nvl_paths(struct nvl_volume *volume,
              struct nvl_path *paths,
              uint32_t most);

/**
 * Gives the specification's words for a completion's status, or null if it has none that are known here.
 */
const char *nvl_status_words(uint16_t status);

/**
 * The same after I/O command `opcode`: numbers of statuses that are specific to commands mean something else after
 * each.
 */
const char *nvl_io_status_words(uint8_t opcode,
                                uint16_t status);

/**
 * Writes a completion's status in words and numbers, "LBA Out of Range (SCT 0x0 SC 0x80)", with a zero at the end,
 * cut off where it is longer than `bytes`. Gives its length without the zero, as snprintf does.
 *
 * # Safety
 * `text` is writable for `bytes` bytes, or null if `bytes` is 0.
 */
int nvl_status_text(uint16_t status,
                    char *text,
                    size_t bytes);

/**
 * The same after I/O command `opcode`, "Command Size Limit Exceeded (SCT 0x1 SC 0x83)".
 *
 * # Safety
 * `text` is writable for `bytes` bytes, or null if `bytes` is 0.
 */
int nvl_io_status_text(uint8_t opcode, uint16_t status, char *text, size_t bytes);

/**
 * Gives the library's version, "0.1.0".
 */
const char *nvl_version(void);

/**
 * What the last call of this thread that failed failed of, in one line; never null. It stays until another call
 * of this thread fails.
 */
const char *nvl_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVLANE_H */

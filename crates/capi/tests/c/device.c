/* NVMe devices by the C interface: admin commands, metadata, time-outs, memory that the kernel does not take, and a
 * loop of the program's own. For tests/guest/library.sh; built with sanitizers.
 *
 *   device NAMESPACE NAMESPACE_WITH_METADATA IDENTIFY_FILE
 *
 * Of the second namespace (blocks of 4096 bytes, 8 bytes of metadata) block 7 is overwritten. Identify Controller is
 * written to the file.
 */
#include <errno.h>
#include <nvlane.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { WRITE = 0x01, READ = 0x02, IDENTIFY = 0x06, BYTES = 4096, METADATA = 8, SECONDS = 5 };

static int line;
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d (called from %d): not so: %s; %s\n", __LINE__, line, #what, nvl_error()); \
            exit(1); \
        } \
    } while (0)
#define DO(what) (line = __LINE__, what)

/* The status of the one command that is in flight. */
static unsigned ended(struct nvl_session *session)
{
    struct nvl_completion done;

    CHECK(nvl_wait(session, 1, 60000000000) == 1);
    CHECK(nvl_reap(session, &done, 1) == 1);
    CHECK(done.token == 4711);
    return done.status & 0x7ff;
}

static unsigned carry_out(struct nvl_session *session, struct nvl_volume *volume, struct nvl_command command)
{
    command.token = 4711;
    command.timeout_ms = 10000;
    CHECK(nvl_submit(volume, &command) == 0);
    return ended(session);
}

static struct nvl_volume *open_volume(struct nvl_session *session, const char *name, const char *options)
{
    char uri[256];
    struct nvl_volume *volume = NULL;

    snprintf(uri, sizeof(uri), "%s%s", name, options);
    CHECK(nvl_open(session, uri, 0, &volume) == 0);
    return volume;
}

/* What the kernel refuses ends with a status, soon: it is not tried again and again. */
static void refused(struct nvl_session *session, struct nvl_volume *volume, void *data)
{
    struct nvl_command read = {.opcode = READ, .cdw12 = 7, .data = data, .data_len = BYTES};
    time_t begin = time(NULL);
    char text[128];
    unsigned status = carry_out(session, volume, read);

    CHECK(status != 0);
    CHECK(time(NULL) - begin < SECONDS);
    CHECK(nvl_status_text((uint16_t)status, text, sizeof(text)) > 0);
    printf("a read to no memory: %s\n", text);
}

/* More pieces than a driver takes of memory that does not lie together. */
static void in_many(struct nvl_session *session, struct nvl_volume *volume)
{
    enum { PIECES = 160, PIECE = 512 };
    static unsigned char whole[PIECES * PIECE], apart[PIECES][2 * PIECE];
    struct iovec list[PIECES];
    struct nvl_command read = {.opcode = READ, .cdw12 = PIECES - 1, .token = 4711};

    for (int at = 0; at < PIECES; at++)
        list[at] = (struct iovec){apart[at], PIECE};
    CHECK(nvl_submit_vectors(volume, &read, list, PIECES) == 0);
    CHECK(ended(session) == 0);
    read.data = whole, read.data_len = sizeof(whole);
    CHECK(carry_out(session, volume, read) == 0);
    for (int at = 0; at < PIECES; at++)
        CHECK(memcmp(whole + at * PIECE, apart[at], PIECE) == 0);
}

/* What is written from pieces that lie anywhere, the device reads into one; and the other way. An admin command likewise, and
 * one that the device is given in one piece all the same. */
static void in_pieces(struct nvl_session *session, struct nvl_volume *volume, unsigned char *data, unsigned char *seen)
{
    static unsigned char spare[3 * BYTES];
    struct iovec out[] = {{spare + 1, 1000}, {spare + 5000, BYTES - 1000 - 4}, {spare + 9001, 4}};
    struct iovec in[] = {{spare + 3, 17}, {spare + 600, BYTES - 17}};
    struct nvl_command write = {.opcode = WRITE, .cdw10 = 64, .cdw12 = 7, .token = 4711}, read = write, compare = write;
    struct nvl_command identify = {.opcode = IDENTIFY, .queue = NVL_ADMIN, .cdw10 = 1, .token = 4711};

    read.opcode = READ;
    compare.opcode = 5;
    for (int at = 0; at < BYTES; at++)
        data[at] = (unsigned char)(at * 5 + at / 256);
    memcpy(spare + 1, data, 1000);
    memcpy(spare + 5000, data + 1000, BYTES - 1004);
    memcpy(spare + 9001, data + BYTES - 4, 4);
    CHECK(nvl_submit_vectors(volume, &write, out, 3) == 0);
    CHECK(ended(session) == 0);
    CHECK(nvl_submit_vectors(volume, &compare, out, 3) == 0);
    CHECK(ended(session) == 0);
    read.data = seen, read.data_len = BYTES;
    CHECK(carry_out(session, volume, read) == 0);
    CHECK(memcmp(data, seen, BYTES) == 0);
    memset(spare, 0, sizeof(spare));
    read.data = NULL, read.data_len = 0;
    CHECK(nvl_submit_vectors(volume, &read, in, 2) == 0);
    CHECK(ended(session) == 0);
    CHECK(memcmp(data, spare + 3, 17) == 0 && memcmp(data + 17, spare + 600, BYTES - 17) == 0);
    CHECK(nvl_submit_vectors(volume, &identify, in, 2) == 0);
    CHECK(ended(session) == 0);
    identify.data = seen, identify.data_len = BYTES;
    CHECK(carry_out(session, volume, identify) == 0);
    CHECK(memcmp(seen, spare + 3, 17) == 0 && memcmp(seen + 17, spare + 600, BYTES - 17) == 0);
    in_many(session, volume);
    /* Too little for the command, and memory that is none. */
    CHECK(nvl_submit_vectors(volume, &read, in, 1) == 0);
    CHECK(ended(session) != 0);
    in[0] = (struct iovec){(void *)8192, BYTES}; /* below what may be mapped */
    CHECK(nvl_submit_vectors(volume, &read, in, 1) == 0);
    CHECK(ended(session) != 0);
}

/* Reads, with all sleep in poll(2); where completions are polled for, that is refused. */
static void slept_for(struct nvl_session *session, struct nvl_volume *volume, unsigned char *data, int is_told)
{
    struct nvl_completion done[8];
    struct pollfd event = {.fd = nvl_poll_fd(session), .events = POLLIN};
    int ended = 0, sent = 0, ready, count;

    CHECK(event.fd >= 0);
    while (ended < 64) {
        for (; sent < 64 && sent - ended < 8; sent++) {
            struct nvl_command read = {.opcode = READ, .cdw12 = 7, .data = data, .data_len = BYTES, .token = sent};
            CHECK(nvl_submit(volume, &read) == 0);
        }
        ready = nvl_arm(session);
        CHECK(is_told ? ready >= 0 : ready > 0 || ready == -EOPNOTSUPP);
        if (ready == 0) {
            while ((count = poll(&event, 1, 10000)) < 0 && errno == EINTR)
                continue;
            CHECK(count == 1);
        }
        count = nvl_reap(session, done, 8);
        CHECK(count >= 0);
        for (int at = 0; at < count; at++)
            CHECK(done[at].status == 0);
        ended += count;
    }
}

int main(int argc, char **argv)
{
    static unsigned char data[BYTES] __attribute__((aligned(4096))), seen[BYTES] __attribute__((aligned(4096)));
    static unsigned char tags[METADATA] = {9, 8, 7, 6, 5, 4, 3, 2}, found[METADATA];
    struct nvl_session *session = NULL;

    CHECK(argc == 4);
    CHECK(nvl_session_new(NULL, &session) == 0);

    struct nvl_volume *plain = open_volume(session, argv[1], "");
    struct nvl_command identify = {
        .opcode = IDENTIFY, .queue = NVL_ADMIN, .cdw10 = 1, .data = data, .data_len = BYTES};
    CHECK(DO(carry_out(session, plain, identify)) == 0);
    FILE *file = fopen(argv[3], "w");
    CHECK(file != NULL && fwrite(data, BYTES, 1, file) == 1 && fclose(file) == 0);

    struct nvl_volume *other = open_volume(session, argv[2], "");
    memset(data, 0xa5, sizeof(data));
    struct nvl_command write = {.opcode = WRITE, .cdw10 = 7, .data = data, .data_len = BYTES,
                                .metadata = tags, .metadata_len = METADATA};
    CHECK(DO(carry_out(session, other, write)) == 0);
    struct nvl_command read = {.opcode = READ, .cdw10 = 7, .data = seen, .data_len = BYTES,
                               .metadata = found, .metadata_len = METADATA};
    CHECK(DO(carry_out(session, other, read)) == 0);
    CHECK(memcmp(data, seen, BYTES) == 0 && memcmp(tags, found, METADATA) == 0);
    CHECK(nvl_close(other) == 0);

    const char *options[] = {"", "?poll", "?sqpoll"};
    for (int at = 0; at < 3; at++) {
        struct nvl_volume *volume = open_volume(session, argv[1], options[at]);
        DO(in_pieces(session, volume, data, seen));
        DO(refused(session, volume, (void *)8192)); /* below what may be mapped */
        /* And the next one is done. */
        struct nvl_command again = {.opcode = READ, .cdw12 = 7, .data = seen, .data_len = BYTES};
        CHECK(DO(carry_out(session, volume, again)) == 0);
        DO(slept_for(session, volume, seen, at == 0));
        CHECK(nvl_close(volume) == 0);
    }
    CHECK(nvl_close(plain) == 0);
    CHECK(nvl_outstanding(session) == 0);
    nvl_session_free(session);
    puts("devices behave");
    return 0;
}

/* Every function, with what is right and what is wrong (those that copy are in copies.c). Given a folder for files, the URI of a remote namespace of 1 MiB in
 * blocks of 4096 bytes, that of another that takes its time, and of this one by two paths, round-robin. LOCKS_FREELY is in the
 * environment where the kernel registers every buffer. Prints what fails, and exits 1. */
#include "calls.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int failures;

static void sessions(void)
{
    struct nvl_session *session = (void *)1;
    struct nvl_config config = {.size = sizeof(config)};

    FAILS(EINVAL, nvl_session_new(NULL, NULL));
    config.size = 1;
    FAILS(EINVAL, nvl_session_new(&config, &session));
    CHECK(session == NULL);
    config = (struct nvl_config){.size = sizeof(config), .flags = 1u << 31};
    FAILS(EINVAL, nvl_session_new(&config, &session));
    config = (struct nvl_config){.size = sizeof(config), .depth = NVL_DEPTH_MAX + 1};
    FAILS(EINVAL, nvl_session_new(&config, &session));
    CHECK(strstr(nvl_error(), "depth") != NULL);
    CHECK(nvl_session_new(NULL, &session) == 0 && session != NULL);
    CHECK(nvl_flush(session) == 0);
    CHECK(nvl_wait(session, 1, -1) == 0); /* nothing is in flight */
    /* Where io_uring is not used, that is told, in as many bytes as there are. */
    const char *off = getenv("NVLANE_IO_URING");
    char why[200] = "untouched";
    int length = nvl_refusal(session, why, sizeof(why));
    if (off)
        CHECK(length > 0 && (size_t)length == strlen(why) && strstr(why, "NVLANE_IO_URING=off"));
    else
        CHECK(length == 0 && why[0] == 0);
    CHECK(nvl_refusal(session, why, 4) == length && strlen(why) == (off ? 3 : 0));
    FAILS(EINVAL, nvl_refusal(session, NULL, 4));
    FAILS(EINVAL, nvl_refusal(NULL, why, sizeof(why)));
    CHECK(nvl_outstanding(session) == 0 && nvl_reap(session, NULL, 0) == 0);
    FAILS(EINVAL, nvl_reap(session, NULL, 1));
    CHECK(nvl_session_free(session) == 0);
    config = (struct nvl_config){
        .size = sizeof(config), .depth = 4, .buffer_bytes = 4 << 20, .flags = NVL_POLL, .spin_us = 10};
    CHECK(nvl_session_new(&config, &session) == 0);
    CHECK(nvl_session_free(session) == 0);
    FAILS(EINVAL, nvl_session_free(NULL));
    FAILS(EINVAL, nvl_flush(NULL));
    FAILS(EINVAL, nvl_wait(NULL, 0, 0));
    FAILS(EINVAL, nvl_outstanding(NULL));
    FAILS(EINVAL, nvl_reap(NULL, NULL, 0));
}

static void volumes(struct nvl_session *session, const char *folder)
{
    struct nvl_volume *volume = (void *)1;
    struct nvl_limits limits;
    char uri[512], text[8];

    FAILS(EINVAL, nvl_open(NULL, "mem:1M", 0, &volume));
    FAILS(EINVAL, nvl_open(session, NULL, 0, &volume));
    CHECK(volume == NULL);
    FAILS(EINVAL, nvl_open(session, "mem:1M", 0, NULL));
    FAILS(EINVAL, nvl_open(session, "mem:1M", 1u << 31, &volume));
    FAILS(EINVAL, nvl_open(session, "mem:much", 0, &volume));
    FAILS(EINVAL, nvl_open(session, "\xff\xfe", 0, &volume));
    FAILS(EINVAL, nvl_open(session, "floppy:1", 0, &volume));
    CHECK(strstr(nvl_error(), "floppy") != NULL);
    snprintf(uri, sizeof(uri), "%s/nothing", folder);
    FAILS(ENOENT, nvl_open(session, uri, 0, &volume));
    FAILS(EHOSTUNREACH, nvl_open(session, "tcp://127.0.0.1:1/nqn.2026-11.org.example:a", 0, &volume));
    CHECK(volume == NULL);
    snprintf(uri, sizeof(uri), "%s/image?create&size=1M&bs=4096", folder);
    CHECK(nvl_open(session, uri, 0, &volume) == 0);
    if (!volume)
        return;
    struct nvl_volume *second = NULL;
    snprintf(uri, sizeof(uri), "%s/image?bs=4096", folder);
    FAILS(EBUSY, nvl_open(session, uri, 0, &second));
    CHECK(nvl_volume_id(volume) > 0);
    CHECK(nvl_volume_limits(volume, &limits) == 0);
    CHECK(limits.blocks == 256 && limits.block_bytes == BLOCK && limits.metadata_bytes == 0);
    CHECK(limits.transfer_bytes_max >= BLOCK && !(limits.flags & NVL_LIMITS_READ_ONLY));
    /* Others may change its size. */
    snprintf(uri, sizeof(uri), "%s/image", folder);
    CHECK(truncate(uri, 300 * BLOCK) == 0);
    CHECK(nvl_volume_limits(volume, &limits) == 0 && limits.blocks == 300);
    CHECK(truncate(uri, 256 * BLOCK) == 0);
    CHECK(nvl_volume_limits(volume, &limits) == 0 && limits.blocks == 256);
    FAILS(EINVAL, nvl_volume_limits(volume, NULL));
    FAILS(EINVAL, nvl_volume_limits(NULL, &limits));
    int length = nvl_uri(volume, NULL, 0);
    CHECK(length > 20 && nvl_uri(volume, uri, sizeof(uri)) == length);
    CHECK((int)strlen(uri) == length && strncmp(uri, "file:", 5) == 0);
    CHECK(nvl_uri(volume, text, sizeof(text)) == length && strncmp(text, uri, 7) == 0 && text[7] == 0);
    FAILS(EINVAL, nvl_uri(volume, NULL, 1));
    FAILS(EINVAL, nvl_uri(NULL, uri, sizeof(uri)));
    FAILS(EINVAL, nvl_volume_id(NULL));
    /* One kind of handle for another. */
    FAILS(EINVAL, nvl_close((struct nvl_volume *)session));
    FAILS(EINVAL, nvl_flush((struct nvl_session *)volume));
    FAILS(EINVAL, nvl_buffer_free((struct nvl_buffer *)volume));
    CHECK(nvl_close(volume) == 0);
    FAILS(EINVAL, nvl_close(NULL));

    CHECK(nvl_open(session, "mem:1M?bs=4096", NVL_READ_ONLY, &volume) == 0);
    CHECK(nvl_volume_limits(volume, &limits) == 0 && (limits.flags & NVL_LIMITS_READ_ONLY));
    static char block[BLOCK];
    struct nvl_completion done = carry_out(session, volume, blocks(WRITE, 0, block, BLOCK, 1));
    CHECK(done.status != 0 && strcmp(nvl_status_words(done.status), "Namespace is Write Protected") == 0);
    CHECK(nvl_close(volume) == 0);
}

/* A namespace that another machine serves. */
static void remote(struct nvl_session *session, const char *uri)
{
    enum { FLUSH = 0, COMPARE = 5, MANY = 8 };
    struct nvl_volume *volume = NULL;
    struct nvl_limits limits;
    struct nvl_completion done[MANY];
    static char written[MANY * BLOCK], read[MANY * BLOCK];
    char text[512];

    CHECK(nvl_open(session, uri, 0, &volume) == 0);
    if (!volume)
        return;
    CHECK(nvl_volume_limits(volume, &limits) == 0 && limits.blocks == 256 && limits.block_bytes == BLOCK);
    CHECK(nvl_uri(volume, text, sizeof(text)) > 0 && strncmp(text, "tcp://", 6) == 0);
    for (int i = 0; i < MANY * BLOCK; i++)
        written[i] = (char)(i / BLOCK * 31 + i);
    /* As many as the session takes, one block each, then all blocks at once. */
    for (int i = 0; i < MANY; i++) {
        struct nvl_command command = blocks(WRITE, 100 + i, written + i * BLOCK, BLOCK, 1 + i);
        CHECK(nvl_submit(volume, &command) == 0);
    }
    uint64_t tokens = 0;
    for (int came = 0, count; came < MANY; came += count) {
        CHECK(nvl_wait(session, 1, -1) >= 1);
        count = nvl_reap(session, done, MANY);
        CHECK(count >= 1);
        if (count < 1)
            return;
        for (int i = 0; i < count; i++) {
            CHECK(done[i].status == 0);
            tokens |= 1ull << done[i].token;
        }
    }
    CHECK(tokens == 0x1fe);
    CHECK(carry_out(session, volume, blocks(READ, 100, read, sizeof(read), 9)).status == 0);
    CHECK(memcmp(written, read, sizeof(read)) == 0);
    CHECK(carry_out(session, volume, blocks(COMPARE, 100, written, sizeof(written), 10)).status == 0);
    read[5] ^= 1;
    done[0] = carry_out(session, volume, blocks(COMPARE, 100, read, sizeof(read), 11));
    CHECK(strcmp(nvl_status_words(done[0].status), "Compare Failure") == 0);
    done[0] = carry_out(session, volume, blocks(READ, 256, read, BLOCK, 12));
    CHECK(strcmp(nvl_status_words(done[0].status), "LBA Out of Range") == 0);
    CHECK(carry_out(session, volume, (struct nvl_command){.opcode = FLUSH, .token = 13}).status == 0);
    CHECK(nvl_close(volume) == 0);
}

static void buffers(struct nvl_session *session)
{
    struct nvl_buffer *buffer = (void *)1;

    FAILS(EINVAL, nvl_buffer_new(NULL, 1, &buffer));
    FAILS(EINVAL, nvl_buffer_new(session, 1, NULL));
    FAILS(EINVAL, nvl_buffer_new(session, 0, &buffer));
    CHECK(buffer == NULL);
    FAILS(EINVAL, nvl_buffer_new(session, NVL_BUFFER_BYTES_MAX + 1, &buffer));
    CHECK(nvl_buffer_new(session, 5000, &buffer) == 0);
    unsigned char *data = nvl_buffer_data(buffer);
    CHECK(data != NULL && (uintptr_t)data % 4096 == 0 && nvl_buffer_len(buffer) == 5000);
    CHECK(data[0] == 0 && data[4999] == 0);
    int fixed = nvl_buffer_is_fixed(buffer);
    /* 0 only where the kernel may have refused it. */
    CHECK(fixed == 1 || (fixed == 0 && !getenv("LOCKS_FREELY")));
    CHECK(nvl_buffer_free(buffer) == 0);
    FAILS(EINVAL, nvl_buffer_free(NULL));
    FAILS(EINVAL, nvl_buffer_is_fixed(NULL));
    CHECK(nvl_buffer_data(NULL) == NULL && nvl_buffer_len(NULL) == 0);
    /* The pool is used up. */
    struct nvl_buffer *all[64];
    int count = 0, outcome;
    while (count < 64 && (outcome = nvl_buffer_new(session, NVL_BUFFER_BYTES_MAX, &all[count])) == 0)
        count++;
    CHECK(outcome == -ENOBUFS && count > 0);
    while (count > 0)
        CHECK(nvl_buffer_free(all[--count]) == 0);
}

static void commands(struct nvl_session *session)
{
    struct nvl_volume *volume = NULL, *slow = NULL;
    struct nvl_buffer *buffer = NULL;
    struct nvl_completion done[8];
    static unsigned char written[2 * BLOCK], received[2 * BLOCK];

    CHECK(nvl_open(session, "mem:1M?bs=4096", 0, &volume) == 0);
    CHECK(nvl_open(session, "delay:2s(mem:1M?bs=4096)", 0, &slow) == 0);
    CHECK(nvl_buffer_new(session, 4 * BLOCK, &buffer) == 0);
    for (unsigned at = 0; at < sizeof(written); at++)
        written[at] = at % 251;
    CHECK(carry_out(session, volume, blocks(WRITE, 3, written, sizeof(written), 7)).status == 0);
    CHECK(carry_out(session, volume, blocks(READ, 3, received, sizeof(received), 8)).status == 0);
    CHECK(memcmp(written, received, sizeof(written)) == 0);

    /* Into a part of a buffer, and from its start. */
    unsigned char *data = nvl_buffer_data(buffer);
    struct nvl_command command = blocks(READ, 3, data + BLOCK, 2 * BLOCK, 9);
    command.buffer = buffer;
    CHECK(carry_out(session, volume, command).status == 0);
    CHECK(memcmp(data + BLOCK, written, 2 * BLOCK) == 0);
    command = blocks(READ, 4, NULL, BLOCK, 10);
    command.buffer = buffer;
    CHECK(carry_out(session, volume, command).status == 0);
    CHECK(memcmp(data, written + BLOCK, BLOCK) == 0);

    /* What makes no sense. */
    FAILS(EINVAL, nvl_submit(NULL, &command));
    FAILS(EINVAL, nvl_submit(volume, NULL));
    command = blocks(READ, 0, NULL, BLOCK, 0);
    FAILS(EINVAL, nvl_submit(volume, &command));
    command = blocks(READ, 0, data + 3 * BLOCK, 2 * BLOCK, 0);
    command.buffer = buffer;
    FAILS(EINVAL, nvl_submit(volume, &command)); /* beyond its end */
    command = blocks(READ, 0, received, BLOCK, 0);
    command.buffer = buffer;
    FAILS(EINVAL, nvl_submit(volume, &command)); /* elsewhere */
    command.buffer = (struct nvl_buffer *)session;
    FAILS(EINVAL, nvl_submit(volume, &command));
    command = blocks(READ, 0, received, BLOCK, 0);
    command.queue = 7;
    FAILS(EINVAL, nvl_submit(volume, &command));
    command = blocks(READ, 0, received, BLOCK, 0);
    command.metadata_len = 8;
    FAILS(EINVAL, nvl_submit(volume, &command));
    command = blocks(READ, 0, received, BLOCK, 0);
    command.reserved = 1;
    FAILS(EINVAL, nvl_submit(volume, &command));
    CHECK(nvl_outstanding(session) == 0);

    /* What the volume refuses, it tells by its status. */
    char text[128];
    struct nvl_completion one = carry_out(session, volume, blocks(READ, 256, received, BLOCK, 11));
    CHECK(strcmp(nvl_status_words(one.status), "LBA Out of Range") == 0);
    CHECK(nvl_status_text(one.status, text, sizeof(text)) == (int)strlen(text));
    CHECK(strstr(text, "SC 0x80") != NULL);
    command = (struct nvl_command){.opcode = 0xc1, .queue = NVL_ADMIN, .token = 12};
    one = carry_out(session, volume, command);
    CHECK(strcmp(nvl_status_words(one.status), "Invalid Command Opcode") == 0);
    CHECK(nvl_status_words(0x7ff) == NULL);
    CHECK(strcmp(nvl_status_words(0), "Successful Completion") == 0);
    CHECK(nvl_status_text(0x7ff, NULL, 0) > 0);
    FAILS(EINVAL, nvl_status_text(0, NULL, 1));
    CHECK(strcmp(nvl_io_status_words(0x19, 0x183), "Command Size Limit Exceeded") == 0);
    CHECK(nvl_io_status_words(0x19, 0x4183) == nvl_io_status_words(0x19, 0x183));
    CHECK(nvl_io_status_words(0x01, 0x186) == NULL);
    CHECK(nvl_io_status_words(0x02, 0x080) == nvl_status_words(0x080));
    CHECK(nvl_io_status_text(0x19, 0x186, text, sizeof(text)) == (int)strlen(text));
    CHECK(strcmp(text, "Fast Copy Not Possible (SCT 0x1 SC 0x86)") == 0);
    FAILS(EINVAL, nvl_io_status_text(0x19, 0, NULL, 1));
    CHECK(strchr(nvl_version(), '.') != NULL);

    /* The depth, which is 8 here; a buffer in use; fewer places than completions. */
    for (int token = 0; token < 8; token++) {
        command = blocks(READ, token, NULL, BLOCK, token);
        command.buffer = buffer;
        CHECK(nvl_submit(slow, &command) == 0);
    }
    command = blocks(READ, 0, received, BLOCK, 8);
    FAILS(EAGAIN, nvl_submit(slow, &command));
    FAILS(EAGAIN, nvl_submit(volume, &command));
    FAILS(EBUSY, nvl_buffer_free(buffer));
    CHECK(nvl_outstanding(session) == 8);
    CHECK(nvl_wait(session, 8, 0) == 0 && nvl_reap(session, done, 8) == 0);
    CHECK(nvl_wait(session, 8, 1000) == 0); /* a microsecond */
    CHECK(nvl_wait(session, 8, -1) == 8);
    FAILS(EBUSY, nvl_buffer_free(buffer));
    CHECK(nvl_reap(session, done, 3) == 3 && nvl_outstanding(session) == 5);
    CHECK(nvl_reap(session, done + 3, 8) == 5);
    unsigned seen = 0;
    for (int at = 0; at < 8; at++)
        seen |= 1u << done[at].token;
    CHECK(seen == 0xff);
    CHECK(nvl_buffer_free(buffer) == 0);
    CHECK(nvl_close(slow) == 0 && nvl_close(volume) == 0);
}

/* Sleeps in poll(2) alone while commands are in flight; gives how often. */
static int polled(struct nvl_session *session, const char *uri)
{
    struct nvl_volume *volume = NULL;
    struct nvl_completion done[8];
    static unsigned char memory[8 * BLOCK];
    struct pollfd event = {.fd = nvl_poll_fd(session), .events = POLLIN};
    struct timespec before, after;
    int slept = 0;

    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(event.fd >= 0 && nvl_poll_fd(session) == event.fd);
    CHECK(nvl_open(session, uri, 0, &volume) == 0);
    if (!volume)
        return 0;
    for (int round = 0; round < 20; round++) {
        int seen = 0;
        for (int at = 0; at < 8; at++) {
            unsigned char *block = memory + at * BLOCK;
            if (round % 2 == 0)
                memset(block, round + at, BLOCK);
            struct nvl_command command = blocks(round % 2 == 0 ? WRITE : READ, at, block, BLOCK, at);
            CHECK(nvl_submit(volume, &command) == 0);
        }
        while (seen < 8) {
            int ready = nvl_arm(session), count;
            CHECK(ready >= 0);
            if (ready == 0) {
                while ((count = poll(&event, 1, 20000)) < 0 && errno == EINTR)
                    continue;
                CHECK(count == 1);
                if (count != 1) {
                    printf("%s: round %d: %d of 8 came\n", uri, round, seen);
                    return slept;
                }
                slept++;
            }
            count = nvl_reap(session, done, 8);
            CHECK(count >= 0);
            for (int at = 0; at < count; at++) {
                CHECK(done[at].status == 0 && done[at].volume == (uint32_t)nvl_volume_id(volume));
                CHECK(round % 2 == 0 || memory[done[at].token * BLOCK] == round - 1 + (int)done[at].token);
            }
            seen += count;
        }
        CHECK(seen == 8 && nvl_outstanding(session) == 0);
        if (round % 2 == 0)
            memset(memory, 0xee, sizeof(memory));
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK(nvl_close(volume) == 0);
    /* What is told late, by whatever else wakes the session, is not told. */
    return after.tv_sec - before.tv_sec < 10 ? slept : -1;
}

/* Whether it does so often, in time, one time of five: on a busy machine it may be late, or all have come before it would. */
static int sleeps(struct nvl_session *session, const char *uri, int least)
{
    int tries = 5;
    while (tries > 0 && polled(session, uri) < least)
        tries--;
    return tries;
}

/* Data in several pieces. */
static void vectors(struct nvl_session *session)
{
    static unsigned char data[BLOCK], seen[BLOCK];
    struct nvl_volume *volume = NULL;
    struct nvl_completion done = {0};
    struct iovec out[] = {{data, 1}, {NULL, 0}, {data + 1, BLOCK - 1}};
    struct iovec in[] = {{seen, 4000}, {seen + 4000, 96}};
    struct nvl_command write = {.opcode = WRITE, .cdw10 = 3, .token = 1}, read = write, beside = write;

    read.opcode = READ, beside.data = data;
    for (int at = 0; at < BLOCK; at++)
        data[at] = (unsigned char)(at * 7 + at / 256);
    CHECK(nvl_open(session, "mem:1M?bs=4096", 0, &volume) == 0);
    for (int round = 0; round < 3; round++) { /* their room is used again */
        memset(seen, 0, sizeof(seen));
        CHECK(nvl_submit_vectors(volume, &write, out, 3) == 0);
        CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1 && done.status == 0);
        CHECK(nvl_submit_vectors(volume, &read, in, 2) == 0);
        CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1 && done.status == 0);
        CHECK(memcmp(data, seen, BLOCK) == 0);
    }
    CHECK(nvl_submit_vectors(volume, &read, in, 1) == 0); /* too short: the status says so */
    CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1 && done.status != 0);
    in[1].iov_base = NULL;
    FAILS(EINVAL, nvl_submit_vectors(volume, &read, in, 2));
    FAILS(EINVAL, nvl_submit_vectors(volume, &read, NULL, 1));
    FAILS(EINVAL, nvl_submit_vectors(volume, &beside, out, 3));
    CHECK(nvl_outstanding(session) == 0 && nvl_close(volume) == 0);
}

/* A loop of the program's own. */
static void polling(const char *folder, const char *uri, const char *slow_uri)
{
    struct nvl_config config = {.size = sizeof(config), .depth = 8, .flags = NVL_POLL};
    struct nvl_session *session = NULL;
    char file[512];

    FAILS(EINVAL, nvl_poll_fd(NULL));
    FAILS(EINVAL, nvl_arm(NULL));
    CHECK(nvl_session_new(&config, &session) == 0);
    FAILS(EOPNOTSUPP, nvl_poll_fd(session));
    FAILS(EOPNOTSUPP, nvl_arm(session));
    config.flags = 0;
    CHECK(nvl_session_free(session) == 0 && nvl_session_new(&config, &session) == 0);
    snprintf(file, sizeof(file), "%s/polled?create&size=1M&bs=4096", folder);
    CHECK(sleeps(session, "mem:1M?bs=4096", 0) && sleeps(session, file, 0));
    CHECK(sleeps(session, "delay:5ms(mem:1M?bs=4096)", 20));
    CHECK(sleeps(session, uri, 0) && sleeps(session, slow_uri, 20));
    CHECK(nvl_session_free(session) == 0);
}

/* How the two paths of a remote volume are, one of which takes its time; and of volumes without paths. */
static void paths(struct nvl_session *session, const char *uri)
{
    struct nvl_volume *volume = NULL, *local = NULL;
    struct nvl_path found[4];
    struct nvl_completion done[8];
    static unsigned char memory[8 * BLOCK];
    double shares = 0;
    uint64_t sent = 0, in_flight = 0;

    CHECK(nvl_open(session, "mem:1M", 0, &local) == 0);
    CHECK(nvl_paths(local, found, 4) == 0 && nvl_close(local) == 0);
    CHECK(nvl_open(session, uri, 0, &volume) == 0);
    if (!volume)
        return;
    FAILS(EINVAL, nvl_paths(NULL, found, 4));
    FAILS(EINVAL, nvl_paths(volume, NULL, 4));
    CHECK(nvl_paths(volume, NULL, 0) == 2);
    memset(found, 0xee, sizeof(found));
    CHECK(nvl_paths(volume, found, 1) == 2);
    CHECK(strncmp(found[0].name, "tcp://127.0.0.1:", 16) == 0 && found[0].share == 0);
    CHECK(found[1].access == 0xeeeeeeee); /* no room for it */

    /* Connected in the session's calls, one after the other. */
    for (int tries = 0; found[0].access != NVL_PATH_OPTIMIZED || found[1].access != NVL_PATH_OPTIMIZED; tries++) {
        CHECK(carry_out(session, volume, blocks(READ, 0, memory, BLOCK, 1)).status == 0);
        CHECK(nvl_paths(volume, found, 4) == 2);
        CHECK(tries < 2000);
        if (tries == 2000)
            return;
    }
    sent = found[0].commands + found[1].commands;
    /* Commands under way, and what they have come to. */
    for (int round = 0; round < 5; round++) {
        for (int at = 0; at < 8; at++) {
            struct nvl_command command = blocks(READ, at, memory + at * BLOCK, BLOCK, at);
            CHECK(nvl_submit(volume, &command) == 0);
        }
        CHECK(nvl_flush(session) == 0);
        CHECK(nvl_paths(volume, found, 4) == 2);
        in_flight = found[0].in_flight + found[1].in_flight;
        CHECK(in_flight == 8);
        CHECK(nvl_wait(session, 8, -1) == 8 && nvl_reap(session, done, 8) == 8);
    }
    CHECK(nvl_paths(volume, found, 4) == 2 && strcmp(found[0].name, found[1].name) != 0);
    for (int at = 0; at < 2; at++) {
        struct nvl_path *path = &found[at];
        CHECK(strncmp(path->name, "tcp://127.0.0.1:", 16) == 0 && path->reason[0] == 0);
        CHECK(path->access == NVL_PATH_OPTIMIZED && path->weight <= 128 && path->in_flight == 0);
        CHECK(path->errors == 0 && path->reconnects == 0 && path->reserved[3] == 0);
        CHECK(path->commands >= 20); /* round-robin */
        CHECK(path->p50_ns >= 4000000 && path->p99_ns >= path->p50_ns);
    }
    CHECK(found[0].commands + found[1].commands == sent + 40);
    /* Shares are of what was sent since then: one command. */
    CHECK(carry_out(session, volume, blocks(READ, 0, memory, BLOCK, 1)).status == 0);
    CHECK(nvl_paths(volume, found, 4) == 2);
    shares = found[0].share + found[1].share;
    CHECK(shares == 1 && (found[0].share == 0 || found[1].share == 0));
    CHECK(found[0].commands + found[1].commands == sent + 41);
    CHECK(nvl_paths(volume, found, 4) == 2 && found[0].share == 0 && found[1].share == 0);
    CHECK(nvl_close(volume) == 0);
}

static void *elsewhere(void *argument)
{
    void **handles = argument;
    struct nvl_session *session = handles[0];
    struct nvl_volume *volume = handles[1], *other = NULL;
    struct nvl_buffer *buffer = handles[2], *another = NULL;
    struct nvl_command command = {.opcode = 0};
    struct nvl_completion done;
    struct nvl_limits limits;
    char text[16];

    FAILS(EPERM, nvl_session_free(session));
    FAILS(EPERM, nvl_flush(session));
    FAILS(EPERM, nvl_wait(session, 1, 0));
    FAILS(EPERM, nvl_reap(session, &done, 1));
    FAILS(EPERM, nvl_outstanding(session));
    FAILS(EPERM, nvl_poll_fd(session));
    FAILS(EPERM, nvl_arm(session));
    FAILS(EPERM, nvl_open(session, "mem:1M", 0, &other));
    FAILS(EPERM, nvl_submit(volume, &command));
    FAILS(EPERM, nvl_close(volume));
    FAILS(EPERM, nvl_volume_limits(volume, &limits));
    FAILS(EPERM, nvl_volume_id(volume));
    FAILS(EPERM, nvl_paths(volume, NULL, 0));
    FAILS(EPERM, nvl_uri(volume, text, sizeof(text)));
    FAILS(EPERM, nvl_buffer_new(session, 1, &another));
    FAILS(EPERM, nvl_buffer_free(buffer));
    FAILS(EPERM, nvl_buffer_is_fixed(buffer));
    CHECK(nvl_buffer_data(buffer) == NULL && nvl_buffer_len(buffer) == 0);
    CHECK(strstr(nvl_error(), "another thread") != NULL);
    /* A session of its own does. */
    CHECK(nvl_session_new(NULL, &session) == 0);
    CHECK(nvl_open(session, "mem:1M?bs=4096", 0, &volume) == 0);
    static unsigned char block[BLOCK];
    CHECK(carry_out(session, volume, blocks(READ, 0, block, BLOCK, 1)).status == 0);
    CHECK(nvl_close(volume) == 0);
    CHECK(nvl_session_free(session) == 0);
    return NULL;
}

static void threads(struct nvl_session *session)
{
    struct nvl_volume *volume = NULL;
    struct nvl_buffer *buffer = NULL;
    pthread_t thread;

    CHECK(nvl_open(session, "mem:1M", 0, &volume) == 0);
    CHECK(nvl_buffer_new(session, BLOCK, &buffer) == 0);
    void *handles[] = {session, volume, buffer};
    CHECK(pthread_create(&thread, NULL, elsewhere, handles) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(nvl_buffer_free(buffer) == 0);
    CHECK(nvl_close(volume) == 0);
}

/* A session that ends with commands in flight waits for them; its volumes and buffers may go after it. */
static void ending(void)
{
    struct nvl_session *session = NULL;
    struct nvl_volume *slow = NULL;
    struct nvl_buffer *buffer = NULL;
    struct timespec before, after;
    /* As many as there may be are under way when it is freed. */
    struct nvl_config config = {.size = sizeof(config), .depth = 2};

    CHECK(nvl_session_new(&config, &session) == 0);
    CHECK(nvl_open(session, "delay:200ms(mem:1M?bs=4096)", 0, &slow) == 0);
    CHECK(nvl_buffer_new(session, BLOCK, &buffer) == 0);
    unsigned char *ordinary = malloc(BLOCK);
    struct nvl_command command = blocks(READ, 0, ordinary, BLOCK, 1);
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK(nvl_submit(slow, &command) == 0);
    command = blocks(READ, 0, NULL, BLOCK, 2);
    command.buffer = buffer;
    CHECK(nvl_submit(slow, &command) == 0);
    CHECK(nvl_session_free(session) == 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    long long taken = (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec;
    CHECK(taken >= 200000000LL);
    free(ordinary);
    command = blocks(READ, 0, NULL, BLOCK, 3);
    command.buffer = buffer;
    FAILS(ESHUTDOWN, nvl_submit(slow, &command));
    CHECK(nvl_buffer_free(buffer) == 0 && nvl_close(slow) == 0);
}

int main(int argc, char **argv)
{
    struct nvl_config config = {.size = sizeof(config), .depth = 8, .buffer_bytes = 4 << 20};
    struct nvl_session *session = NULL;

    if (argc != 5)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0); /* a sanitizer that ends the program loses what is kept */
    CHECK(nvl_error() != NULL);
    sessions();
    CHECK(nvl_session_new(&config, &session) == 0);
    if (!session)
        return 1;
    volumes(session, argv[1]);
    remote(session, argv[2]);
    buffers(session);
    commands(session);
    vectors(session);
    copies(session);
    paths(session, argv[4]);
    threads(session);
    CHECK(nvl_session_free(session) == 0);
    /* The same for whoever never sleeps. */
    config.flags = NVL_POLL;
    CHECK(nvl_session_new(&config, &session) == 0);
    if (!session)
        return 1;
    remote(session, argv[2]);
    commands(session);
    CHECK(nvl_session_free(session) == 0);
    polling(argv[1], argv[2], argv[3]);
    ending();
    if (failures == 0)
        printf("all calls behave\n");
    return failures != 0;
}

/* Raw passthrough: reads a block by its command dwords, at a depth, from any volume.
 *
 *   cc passthrough.c -lnvlane -o passthrough
 *   ./passthrough /dev/ng0n1            or a file, mem:1G, tcp://192.0.2.1:4420/NQN?ns=1
 *
 * Exit status: 0, or 1 when anything failed, which standard error says in words.
 */
#include <nvlane.h>
#include <stdio.h>
#include <string.h>

enum { READ = 0x02, DEPTH = 8, COMMANDS = 64 };

static int failed(const char *doing)
{
    fprintf(stderr, "passthrough: %s: %s\n", doing, nvl_error());
    return 1;
}

/* Reads blocks 0, 1, 2 ... with DEPTH commands in flight, each into its own part of one buffer. */
static int run(struct nvl_session *session, struct nvl_volume *volume, struct nvl_buffer *buffer,
               const struct nvl_limits *limits)
{
    struct nvl_completion done[DEPTH];
    unsigned char *memory = nvl_buffer_data(buffer);
    int free_parts[DEPTH], free_count = DEPTH, sent = 0, ended = 0;
    unsigned long long sum = 0;

    for (int part = 0; part < DEPTH; part++)
        free_parts[part] = part;
    while (ended < COMMANDS) {
        while (sent < COMMANDS && free_count > 0) {
            int part = free_parts[--free_count];
            unsigned long long slba = sent % limits->blocks;
            struct nvl_command command = {
                .opcode = READ,
                .cdw10 = (uint32_t)slba,
                .cdw11 = (uint32_t)(slba >> 32),
                .cdw12 = 0, /* one block, zero-based */
                .data = memory + (size_t)part * limits->block_bytes,
                .data_len = limits->block_bytes,
                .buffer = buffer,
                .token = part,
            };
            if (nvl_submit(volume, &command) < 0)
                return failed("submitting a Read");
            sent++;
        }
        /* One call into the kernel hands over all of them, and waits for the first. */
        if (nvl_wait(session, 1, -1) < 0)
            return failed("waiting");
        int count = nvl_reap(session, done, DEPTH);
        if (count < 0)
            return failed("reaping");
        for (int at = 0; at < count; at++) {
            if (done[at].status != 0) {
                char text[128];
                nvl_io_status_text(READ, done[at].status, text, sizeof(text));
                fprintf(stderr, "passthrough: Read: %s\n", text);
                return 1;
            }
            for (unsigned byte = 0; byte < limits->block_bytes; byte++)
                sum += memory[done[at].token * limits->block_bytes + byte];
            free_parts[free_count++] = (int)done[at].token;
            ended++;
        }
    }
    printf("read %d blocks of %u bytes, sum of their bytes %llu\n", ended, limits->block_bytes, sum);
    return 0;
}

int main(int argc, char **argv)
{
    struct nvl_config config = {.size = sizeof(config), .depth = DEPTH};
    struct nvl_session *session = NULL;
    struct nvl_volume *volume = NULL;
    struct nvl_buffer *buffer = NULL;
    struct nvl_limits limits;
    int outcome = 1;

    if (argc != 2) {
        fprintf(stderr, "usage: passthrough VOLUME\n");
        return 1;
    }
    if (nvl_session_new(&config, &session) < 0)
        return failed("making a session");
    if (nvl_open(session, argv[1], NVL_READ_ONLY, &volume) < 0)
        failed(argv[1]);
    else if (nvl_volume_limits(volume, &limits) < 0)
        failed("limits");
    else if (nvl_buffer_new(session, (size_t)DEPTH * limits.block_bytes, &buffer) < 0)
        failed("a buffer");
    else
        outcome = run(session, volume, buffer, &limits);
    nvl_session_free(session); /* waits for what is in flight */
    if (buffer)
        nvl_buffer_free(buffer);
    if (volume)
        nvl_close(volume);
    return outcome;
}

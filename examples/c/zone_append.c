/* Zone Append: adds a block to the first zone, and says where it went. For zoned namespaces (/dev/ngXnY); a volume
 * without zones says that it has no such command.
 *
 *   cc zone_append.c -lnvlane -o zone_append
 *   ./zone_append /dev/ng0n1 [ZONE_START_LBA]
 *
 * Exit status: 0, or 1 when anything failed, which standard error says in words.
 */
#include <nvlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ZONE_APPEND = 0x7d };

static int failed(const char *doing)
{
    fprintf(stderr, "zone_append: %s: %s\n", doing, nvl_error());
    return 1;
}

static int append(struct nvl_session *session, struct nvl_volume *volume, unsigned long long zone)
{
    struct nvl_limits limits;
    struct nvl_completion done;

    if (nvl_volume_limits(volume, &limits) < 0)
        return failed("limits");
    /* Ordinary memory will do; it must stay until the command was reaped. */
    void *block = NULL;
    if (posix_memalign(&block, 4096, limits.block_bytes) != 0)
        return 1;
    memset(block, 'a', limits.block_bytes);
    struct nvl_command command = {
        .opcode = ZONE_APPEND,
        .cdw10 = (uint32_t)zone,
        .cdw11 = (uint32_t)(zone >> 32),
        .cdw12 = 0, /* one block, zero-based */
        .data = block,
        .data_len = limits.block_bytes,
        .timeout_ms = 10000,
    };
    int outcome = 1;
    if (nvl_submit(volume, &command) < 0)
        failed("submitting a Zone Append");
    else if (nvl_wait(session, 1, -1) < 0 || nvl_reap(session, &done, 1) != 1)
        failed("waiting");
    else if (done.status != 0) {
        char text[128];
        nvl_io_status_text(ZONE_APPEND, done.status, text, sizeof(text));
        fprintf(stderr, "zone_append: Zone Append: %s\n", text);
    } else {
        printf("appended at block %llu\n", (unsigned long long)done.result);
        outcome = 0;
    }
    free(block);
    return outcome;
}

int main(int argc, char **argv)
{
    struct nvl_session *session = NULL;
    struct nvl_volume *volume = NULL;
    int outcome = 1;

    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: zone_append VOLUME [ZONE_START_LBA]\n");
        return 1;
    }
    if (nvl_session_new(NULL, &session) < 0)
        return failed("making a session");
    if (nvl_open(session, argv[1], 0, &volume) < 0)
        failed(argv[1]);
    else
        outcome = append(session, volume, argc == 3 ? strtoull(argv[2], NULL, 0) : 0);
    if (volume)
        nvl_close(volume);
    nvl_session_free(session);
    return outcome;
}

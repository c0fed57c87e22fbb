/* Copies a volume to one or several others of the same size, with Copy commands: nothing is read here where the
 * volumes can do without.
 *
 *   cc copy.c -lnvlane -o copy
 *   ./copy disk.img 'copy.img?size=1G&create'
 *
 * Exit status: 0, or 1 when anything failed, which standard error says in words.
 */
#include <nvlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLUSH = 0x00, TARGETS_MAX = 16, RANGES_MAX = 128 };

static int failed(const char *doing)
{
    fprintf(stderr, "copy: %s: %s\n", doing, nvl_error());
    return 1;
}

/* Waits for one command, and says what was wrong with it. */
static int ended(struct nvl_session *session, const char *doing)
{
    struct nvl_completion done;

    if (nvl_wait(session, 1, -1) < 0 || nvl_reap(session, &done, 1) != 1)
        return failed(doing);
    if (done.status != 0) {
        char text[128];
        nvl_io_status_text(0x19, done.status, text, sizeof(text));
        fprintf(stderr, "copy: %s: volume %u: %s\n", doing, (unsigned)done.volume, text);
        return 1;
    }
    return 0;
}

/* Fills in ranges of as many blocks as one Copy takes. Gives how many ranges there are. */
static uint32_t cut(struct nvl_volume *source, uint64_t first, uint64_t left, const struct nvl_limits *most,
                    struct nvl_copy_source *ranges)
{
    uint64_t room = most->copy_blocks_max;
    uint32_t count = 0;

    while (left > 0 && room > 0 && count < most->copy_ranges_max && count < RANGES_MAX) {
        uint64_t blocks = most->copy_range_blocks_max;
        if (blocks > left)
            blocks = left;
        if (blocks > room)
            blocks = room;
        ranges[count++] =
            (struct nvl_copy_source){.volume = source, .first = first, .blocks = (uint32_t)blocks};
        first += blocks;
        left -= blocks;
        room -= blocks;
    }
    return count;
}

static int copy(struct nvl_session *session, struct nvl_volume *source, struct nvl_copy_target *targets,
                uint32_t count)
{
    struct nvl_copy_source ranges[RANGES_MAX];
    struct nvl_limits limits, most;
    uint64_t first = 0;

    if (nvl_volume_limits(source, &limits) < 0 || nvl_volume_limits(targets[0].volume, &most) < 0)
        return failed("limits");
    while (first < limits.blocks) {
        uint32_t used = cut(source, first, limits.blocks - first, &most, ranges);
        for (uint32_t at = 0; at < count; at++)
            targets[at].first = first;
        if (nvl_copy_to_all(targets, count, ranges, used, 0, 0) < 0)
            return failed("submitting a Copy");
        if (ended(session, "Copy") != 0)
            return 1;
        while (used > 0)
            first += ranges[--used].blocks;
    }
    for (uint32_t at = 0; at < count; at++) {
        struct nvl_command flush = {.opcode = FLUSH};
        if (nvl_submit(targets[at].volume, &flush) < 0)
            return failed("submitting a Flush");
        if (ended(session, "Flush") != 0)
            return 1;
    }
    printf("copied %llu blocks to %u volume(s)\n", (unsigned long long)limits.blocks, (unsigned)count);
    return 0;
}

int main(int argc, char **argv)
{
    struct nvl_session *session = NULL;
    struct nvl_volume *source = NULL;
    struct nvl_copy_target targets[TARGETS_MAX] = {{0}};
    uint32_t count = 0;
    int outcome = 0;

    if (argc < 3 || argc > 2 + TARGETS_MAX) {
        fprintf(stderr, "usage: copy SOURCE TARGET...\n");
        return 1;
    }
    if (nvl_session_new(NULL, &session) < 0)
        return failed("making a session");
    if (nvl_open(session, argv[1], NVL_READ_ONLY, &source) < 0)
        outcome = failed(argv[1]);
    for (; outcome == 0 && count < (uint32_t)argc - 2; count++) {
        if (nvl_open(session, argv[2 + count], 0, &targets[count].volume) < 0)
            outcome = failed(argv[2 + count]);
    }
    if (outcome == 0)
        outcome = copy(session, source, targets, count);
    for (uint32_t at = 0; at < count; at++)
        if (targets[at].volume)
            nvl_close(targets[at].volume);
    if (source)
        nvl_close(source);
    nvl_session_free(session);
    return outcome;
}

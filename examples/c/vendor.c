/* A vendor's commands: an I/O command that reads, and an admin command, by opcodes from the command line. What a
 * volume does not know, it says by its status.
 *
 *   cc vendor.c -lnvlane -o vendor
 *   ./vendor /dev/ng0n1 0x92 0xc2
 *
 * Exit status: 0, or 1 when anything failed, which standard error says in words.
 */
#include <nvlane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096, IO_TOKEN = 1, ADMIN_TOKEN = 2 };

static int failed(const char *doing)
{
    fprintf(stderr, "vendor: %s: %s\n", doing, nvl_error());
    return 1;
}

static int run(struct nvl_session *session, struct nvl_volume *volume, uint8_t io, uint8_t admin)
{
    static unsigned char io_data[BYTES], admin_data[BYTES];
    struct nvl_completion done[2];
    struct nvl_command commands[2] = {
        {.opcode = io, .queue = NVL_IO, .data = io_data, .data_len = BYTES, .token = IO_TOKEN},
        {.opcode = admin, .queue = NVL_ADMIN, .data = admin_data, .data_len = BYTES, .token = ADMIN_TOKEN},
    };
    int outcome = 0;

    for (int at = 0; at < 2; at++)
        if (nvl_submit(volume, &commands[at]) < 0)
            return failed("submitting");
    if (nvl_wait(session, 2, -1) < 0)
        return failed("waiting");
    int count = nvl_reap(session, done, 2);
    for (int at = 0; at < count; at++) {
        const char *queue = done[at].token == IO_TOKEN ? "I/O" : "admin";
        unsigned code = done[at].token == IO_TOKEN ? io : admin;
        if (done[at].status != 0) {
            char text[128];
            if (done[at].token == IO_TOKEN)
                nvl_io_status_text(io, done[at].status, text, sizeof(text));
            else
                nvl_status_text(done[at].status, text, sizeof(text));
            fprintf(stderr, "vendor: %s command %#04x: %s\n", queue, code, text);
            outcome = 1;
        } else {
            printf("%s command %#04x: result %#llx\n", queue, code, (unsigned long long)done[at].result);
        }
    }
    return outcome;
}

int main(int argc, char **argv)
{
    struct nvl_session *session = NULL;
    struct nvl_volume *volume = NULL;
    int outcome = 1;

    if (argc != 4) {
        fprintf(stderr, "usage: vendor VOLUME IO_OPCODE ADMIN_OPCODE\n");
        return 1;
    }
    if (nvl_session_new(NULL, &session) < 0)
        return failed("making a session");
    if (nvl_open(session, argv[1], 0, &volume) < 0)
        failed(argv[1]);
    else
        outcome = run(session, volume, (uint8_t)strtoul(argv[2], NULL, 0),
                      (uint8_t)strtoul(argv[3], NULL, 0));
    if (volume)
        nvl_close(volume);
    nvl_session_free(session);
    return outcome;
}

/* What the parts of calls.c have in common: how they check, and commands on a volume of blocks of 4096 bytes. */
#ifndef CALLS_H
#define CALLS_H

#include <nvlane.h>
#include <stdio.h>
#include <string.h>

/* How many checks have failed. */
extern int failures;

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            printf("%s:%d: %s; %s\n", __FILE__, __LINE__, #condition, nvl_error());          \
            failures++;                                                                      \
        }                                                                                    \
    } while (0)

/* A call that fails with this error number, and says why. */
#define FAILS(errno_, call)                                                                  \
    do {                                                                                     \
        int outcome = (call);                                                                \
        if (outcome != -(errno_) || strlen(nvl_error()) == 0) {                              \
            printf("%s:%d: %s gave %d; %s\n", __FILE__, __LINE__, #call, outcome, nvl_error()); \
            failures++;                                                                      \
        }                                                                                    \
    } while (0)

enum { WRITE = 1, READ = 2, BLOCK = 4096 };

static inline struct nvl_command blocks(uint8_t opcode, uint32_t slba, void *data, uint32_t len, uint64_t token)
{
    struct nvl_command command = {
        .opcode = opcode, .cdw10 = slba, .cdw12 = len / BLOCK - 1, .data = data, .data_len = len, .token = token,
    };
    return command;
}

static inline struct nvl_completion carry_out(struct nvl_session *session, struct nvl_volume *volume,
                                       struct nvl_command command)
{
    struct nvl_completion done = {0};
    CHECK(nvl_submit(volume, &command) == 0);
    CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1);
    CHECK(done.token == command.token && done.volume == (uint32_t)nvl_volume_id(volume));
    return done;
}

/* In copies.c. */
void copies(struct nvl_session *session);

#endif

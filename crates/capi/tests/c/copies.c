/* The calls that copy, as a part of calls.c. */
#include "calls.h"
#include <errno.h>
#include <stdlib.h>

/* Copies: of ranges of two volumes, to several, waited for; and what is wrong with them. */
void copies(struct nvl_session *session)
{
    struct nvl_volume *a = NULL, *b = NULL, *c = NULL, *there = NULL;
    struct nvl_session *other = NULL;
    struct nvl_completion done;
    struct nvl_limits limits;
    unsigned char *page = aligned_alloc(BLOCK, BLOCK);

    CHECK(nvl_open(session, "mem:1M?bs=4096", 0, &a) == 0);
    CHECK(nvl_open(session, "mem:1M?bs=4096", 0, &b) == 0);
    CHECK(nvl_open(session, "volatile:(mem:1M?bs=4096)", 0, &c) == 0);
    CHECK(nvl_volume_limits(a, &limits) == 0);
    CHECK(limits.copy_ranges_max >= 2 && limits.copy_range_blocks_max > 0 && limits.copy_blocks_max > 0);
    for (int at = 0; at < 4; at++) {
        memset(page, 'a' + at, BLOCK);
        CHECK(carry_out(session, a, blocks(WRITE, at, page, BLOCK, 1)).status == 0);
    }
    struct nvl_copy_source ranges[] = {
        {.volume = a, .first = 2, .blocks = 2},
        {.first = 100, .blocks = 1},
    };
    for (int round = 0; round < 20; round++) {
        CHECK(nvl_copy(b, 10, ranges, 2, 0, 42) == 0);
        CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1);
        CHECK(done.token == 42 && done.status == 0 && done.volume == (uint32_t)nvl_volume_id(b));
    }
    for (int at = 0; at < 3; at++) {
        CHECK(carry_out(session, b, blocks(READ, 10 + at, page, BLOCK, 1)).status == 0);
        CHECK(page[0] == (at < 2 ? 'c' + at : 0));
    }
    struct nvl_copy_target targets[] = {{.volume = a, .first = 20}, {.volume = b, .first = 1000}};
    CHECK(nvl_copy_to_all(targets, 2, ranges, 2, 0, 43) == 0);
    CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1);
    CHECK(done.token == 43 && (done.status & 0x7ff) == 0x80 && done.result == 1);
    CHECK(done.volume == (uint32_t)nvl_volume_id(b));
    CHECK(nvl_outstanding(session) == 0);

    /* Not to be read and written: memory is copied by itself, and a cache over it is not. */
    struct nvl_copy_source cached[] = {{.blocks = 1}, {.volume = c, .blocks = 1}};
    CHECK(nvl_copy(b, 30, ranges, 2, NVL_COPY_FAST_ONLY, 44) == 0);
    CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1 && done.status == 0);
    CHECK(nvl_copy(b, 30, cached, 2, NVL_COPY_FAST_ONLY, 45) == 0);
    CHECK(nvl_wait(session, 1, -1) == 1 && nvl_reap(session, &done, 1) == 1);
    CHECK(done.token == 45 && (done.status & 0x7ff) == 0x186 && done.result == 1);

    CHECK(nvl_copy_range(b, 0, a, 0, 4) == 4);
    CHECK(carry_out(session, b, blocks(READ, 3, page, BLOCK, 1)).status == 0 && page[0] == 'd');
    FAILS(EIO, (int)nvl_copy_range(b, 0, a, 250, 10));
    FAILS(EINVAL, (int)nvl_copy_range(b, 0, NULL, 0, 1));
    FAILS(EINVAL, (int)nvl_copy_range(b, 3, b, 0, 4));
    FAILS(EINVAL, (int)nvl_copy_range(b, 0, b, 3, 4));
    CHECK(nvl_copy_range(b, 4, b, 0, 4) == 4);
    FAILS(EINVAL, nvl_copy_to_all((struct nvl_copy_target[2]){{b, 0}, {b, 2}}, 2, ranges, 2, 0, 0));

    FAILS(EINVAL, nvl_copy(NULL, 0, ranges, 2, 0, 0));
    FAILS(EINVAL, nvl_copy(b, 0, NULL, 2, 0, 0));
    FAILS(EINVAL, nvl_copy(b, 0, ranges, 0, 0, 0));
    FAILS(EINVAL, nvl_copy(b, 0, ranges, 257, 0, 0));
    FAILS(EINVAL, nvl_copy(b, 0, ranges, 2, 2, 0));
    FAILS(EINVAL, nvl_copy_to_all(NULL, 1, ranges, 2, 0, 0));
    FAILS(EINVAL, nvl_copy_to_all(targets, 0, ranges, 2, 0, 0));
    FAILS(EAGAIN, nvl_copy_to_all((struct nvl_copy_target[9]){{b, 0}, {b, 0}, {b, 0}, {b, 0}, {b, 0}, {b, 0},
                                                              {b, 0}, {b, 0}, {b, 0}}, 9, ranges, 2, 0, 0));
    CHECK(nvl_session_new(NULL, &other) == 0);
    CHECK(nvl_open(other, "mem:1M?bs=4096", 0, &there) == 0);
    ranges[0].volume = there;
    FAILS(EXDEV, nvl_copy(b, 0, ranges, 2, 0, 0));
    ranges[0].reserved = 1;
    FAILS(EINVAL, nvl_copy(b, 0, ranges, 2, 0, 0));
    CHECK(nvl_close(there) == 0);
    CHECK(nvl_session_free(other) == 0);
    free(page);
    CHECK(nvl_close(a) == 0);
    CHECK(nvl_close(b) == 0);
    CHECK(nvl_close(c) == 0);
}

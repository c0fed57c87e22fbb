/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* mild: what hostile does and the kernel takes: wrong lists of actions. For tests. */
#define MILD
#include "hostile.bpf.c"

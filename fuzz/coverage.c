/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * coverage.c: tells libFuzzer where C code has been, which gcc compiles so that it calls this (-fsanitize-coverage=trace-pc).
 *
 * libFuzzer takes no such calls any more (its own function of that name ends the program, so the linker takes this one for it); it
 * takes counters in a section of this name. Each place has one by its distance from here, which is the same wherever the program
 * is loaded.
 */
#include <stdint.h>

#define COUNTERS 65536

__attribute__((section("__libfuzzer_extra_counters"), aligned(64))) static uint8_t counters[COUNTERS];

void __wrap___sanitizer_cov_trace_pc(void);

void __wrap___sanitizer_cov_trace_pc(void)
{
	uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)__wrap___sanitizer_cov_trace_pc;
	uint8_t *counter = &counters[(place * 0x9e3779b97f4a7c15u >> 40) % COUNTERS];

	if (*counter < UINT8_MAX)
		++*counter;
}

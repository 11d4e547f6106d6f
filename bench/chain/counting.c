/* What a program asks callgrind for while it is observed by it; without it nothing happens. */
#include <valgrind/callgrind.h>

/* Begins to count, or ends. */
void toggle(void) { CALLGRIND_TOGGLE_COLLECT; }

/* Writes what was counted since the last time, under a name. */
void write_as(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }

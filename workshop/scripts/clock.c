// workshop/scripts/test-clocks and internal/testkit/redistest preload this into redis-server: its clock is then ahead by SHIFT seconds, and by
// the seconds that the file SHIFT_FILE holds, in 64 bits, at each moment. If the next 64 bits of the file are not 0, the clock
// stands still instead, at that many microseconds since the Unix epoch. Monotonic clocks do not change. The functions below call
// the system directly, because they replace those of the C library.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift;
static const int64_t none[2];
static volatile const int64_t *more = none; // seconds ahead, and where the clock stands

__attribute__((constructor)) static void read_shift(void) {
	const char *text = getenv("SHIFT");
	shift = text ? atol(text) : 0;
	const char *file = getenv("SHIFT_FILE");
	if (file) {
		void *at = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, open(file, O_RDONLY), 0);
		if (at == MAP_FAILED)
			abort();
		more = at;
	}
}

int clock_gettime(clockid_t clock, struct timespec *t) {
	int result = syscall(SYS_clock_gettime, clock, t);
	if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
		return result;
	int64_t still = more[1];
	if (still) {
		t->tv_sec = still / 1000000;
		t->tv_nsec = still % 1000000 * 1000;
	} else {
		t->tv_sec += shift + more[0];
	}
	return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec now;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

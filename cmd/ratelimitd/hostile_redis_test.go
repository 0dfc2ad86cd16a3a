package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A hostile server in the place of Redis sends replies that kill a client that trusts lengths, fill its memory, or fill
// the log. The service survives: on_error decides within the time of a call, its memory stays small, and the log stays
// short.
func TestHostileRedis(t *testing.T) {
	const most, mostLog = 300 << 10, 100 << 10 // KiB, bytes
	for name, sent := range map[string]struct{ answer, then string }{
		"nothing else than errors": {"-ERR no\r\n", ""},
		"a long text":              {"$2000000000\r\nabc", ""},
		"a long array":             {"*2000000000\r\n", ""},
		"a long text that comes":   {"$1400000000\r\n", "0"},
		"texts within bounds":      {"*1000000\r\n", "$16000000\r\n" + strings.Repeat("0", 16_000_000) + "\r\n"},
		"a line without an end":    {"+", "x"},
		"arrays within arrays":     {"", "*1\r\n"},
		"an error of 10 MB":        {"-" + strings.Repeat("E", 10<<20) + "\r\n", ""},
		"errors of 60 KB":          {"-" + strings.Repeat("E", 60<<10) + "\r\n", ""},
		"a garbled line of 60 KB":  {strings.Repeat("\x01", 60<<10) + "\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProcess(t, map[string]string{"REDIS_URL": redistest.Answering(t, nil, sent.answer, sent.then), "RATELIMITD_ON_ERROR": "allow", "REDIS_TIMEOUT": "1s"},
				"--rules", rulesOf(t, "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: year, requests_per_unit: 10}\n"))
			client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
			const callers, calls = 8, 40
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range calls {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						answer, err := client.ShouldRateLimit(ctx, ask("d", "k", "v"))
						cancel()
						if err != nil || answer.OverallCode != ratelimitv3.RateLimitResponse_OK {
							t.Errorf("%v, %v", answer.GetOverallCode(), err)
							return
						}
					}
				})
			}
			wg.Wait()
			if !p.Running() {
				t.Fatal("the process has ended")
			}
			used := peak(p.Cmd.Process.Pid)
			t.Logf("%d MB, %d KB of log", used>>10, len(p.Log.String())>>10)
			if used > most && !racetest.On { // the race detector needs several times as much
				t.Errorf("the process had %d MB in memory", used>>10)
			}
			if n := len(p.Log.String()); n > mostLog {
				t.Errorf("%d KB of log, such as %.300s", n>>10, p.Log.String())
			}
		})
	}
}

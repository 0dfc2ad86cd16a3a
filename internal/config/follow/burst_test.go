package follow

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

// After a write the wait is longer than after a rename. A look while events still come leads to another look.
func TestBurstsOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		events := make(chan fsnotify.Event)
		type reload struct {
			ms    int64
			quiet bool
		}
		var got []reload
		growing := 0 // how many of the next looks find a growing file
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			loop(ctx, time.Hour, events, nil, func(fsnotify.Event) bool { return true }, func(quiet bool) bool {
				got = append(got, reload{time.Since(start).Milliseconds(), quiet})
				growing--
				return growing >= 0
			})
		}()
		at := func(ms int, op fsnotify.Op) {
			<-time.After(time.Until(start.Add(time.Duration(ms) * time.Millisecond)))
			events <- fsnotify.Event{Name: "a.yaml", Op: op}
		}
		at(1000, fsnotify.Create)
		at(2000, fsnotify.Write)
		at(2050, fsnotify.Chmod) // 400 ms after the write, not 100 ms after this event
		at(3000, fsnotify.Write) // without a pause: looked at after 500 ms, while events still come
		growing = 2
		for ms := 3100; ms <= 4000; ms += 100 {
			at(ms, fsnotify.Write)
		}
		<-time.After(2 * time.Second)
		cancel()
		<-done
		want := []reload{{0, false}, {1100, true}, {2400, true}, {3500, false}, {4000, false}, {4400, true}}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(reload{})); diff != "" {
			t.Errorf("reloads (-want +got):\n%s", diff)
		}
	})
}

package config

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, err)
	must(t, f.Close())
}

// look loads the directory while a file may still be written.
func look(t *testing.T, f *Folder, quiet bool) (Result, bool) {
	t.Helper()
	r, _, growing, err := f.load(nil, quiet)
	must(t, err)
	return r, growing
}

// Half of a file can be valid, with half of its limits. A changed file is read when two looks find it the same, or when
// events show that writing has stopped. Other files do not wait.
func TestAFileThatGrowsIsNotRead(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, a, rules("a", 1)+"  #\n")
	write(t, b, rules("b", 1))
	f := NewFolder(Options{Dir: dir, Logger: new(logged).logger()})
	load(t, f, "a.yaml=loaded", "b.yaml=loaded")

	const half = "domain: a\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 2}}\n"
	write(t, a, half)
	if r, growing := look(t, f, false); !growing || r.Changed || requests(r.Tree, "a") != 1 {
		t.Fatalf("the first look at half a file: growing %t, %d", growing, requests(r.Tree, "a"))
	}
	appendTo(t, a, "  - {key: j, rate_limit: {unit: day, requests_per_unit: 3}}\n")
	if r, growing := look(t, f, true); !growing || requests(r.Tree, "a") != 1 {
		t.Fatal("it has grown between two looks, and was read")
	}
	appendTo(t, a, "  - {key: l, rate_limit: {unit: day, requests_per_unit: 4}}\n")
	if r, growing := look(t, f, false); !growing || requests(r.Tree, "a") != 1 {
		t.Fatal("it has grown again, and was read")
	}
	if r, growing := look(t, f, false); growing || requests(r.Tree, "a") != 2 || r.Tree.Domain("a").Rules != 3 {
		t.Fatalf("it has stopped growing: growing %t, %d", growing, requests(r.Tree, "a"))
	}

	// The same holds for a new file. When writing has stopped, the first look reads it.
	write(t, filepath.Join(dir, "c.yaml"), half)
	if r, growing := look(t, f, false); !growing || len(r.Files) != 2 {
		t.Fatalf("a new file: %v", states(r))
	}
	write(t, b, rules("b", 5))
	if r, growing := look(t, f, true); growing || requests(r.Tree, "b") != 5 || len(r.Files) != 3 {
		t.Fatalf("quiet: growing %t, %v", growing, states(r))
	}
}

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

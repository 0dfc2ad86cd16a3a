package destination

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	f, err := newFile(path)
	if err != nil {
		t.Fatal(err)
	}
	send := func(events ...string) {
		for _, e := range events {
			if err := f.Send(t.Context(), []byte(e)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(path, want string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	send("1")
	send("2", "3")
	want(path, "1\n2\n3\n")
	if err := os.Rename(path, path+".old"); err != nil { // logrotate does the same
		t.Fatal(err)
	}
	send("4")
	want(path, "4\n")
	want(path+".old", "1\n2\n3\n")
}

// full is a disk with little room.
type full struct {
	bytes.Buffer
	room int
}

var errFull = errors.New("no space left")

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), f.room)
	f.room -= n
	_, _ = f.Buffer.Write(b[:n])
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

// After a write that failed in the middle of a line, each event is on a separate line.
func TestTornLine(t *testing.T) {
	to := &full{room: 6}
	w := &writer{to: to}
	for _, step := range []struct {
		event string
		room  int
		fails bool
	}{{"one", 0, false}, {"two", 0, true}, {"two", 0, true}, {"two", 100, false}, {"three", 0, false}} {
		to.room += step.room
		if err := w.Send(t.Context(), []byte(step.event)); (err != nil) != step.fails {
			t.Errorf("%s: %v", step.event, err)
		}
	}
	if got, want := to.String(), "one\ntw\ntwo\nthree\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

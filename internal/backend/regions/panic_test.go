package regions

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// A step that panics fails, is logged, and leaves its record as it was: other takes of the counter are answered.
func TestStepsThatPanic(t *testing.T) {
	var log strings.Builder
	s, err := New(Options{
		Region: "a", Regions: []string{"a"}, Epoch: 1, Store: memory.New(memory.Options{}), Records: memory.NewRecords(0),
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.readGeneration(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	r := &record[region.Role, *region.Role]{of: s, key: []byte("test|k"), kind: "role"}
	w := s.waitOf(t.Context())
	defer w.end()
	write := func(known uint64) error {
		return do(w, r, &step[region.Role]{run: func(v *region.Role, _ region.Reading) int64 {
			if v.Known != 0 && v.Known != 7 {
				t.Errorf("a step found %d", v.Known)
			}
			if v.Known = known; known > 7 {
				panic("a defect")
			}
			return never
		}})
	}
	if err := write(7); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := write(8)
		if _, ok := errors.AsType[*async.PanicError](err); !ok || !strings.Contains(log.String(), "a defect") {
			t.Errorf("%v, log %q", err, log.String())
		}
		if err := write(7); err != nil {
			t.Errorf("the next step: %v", err)
		}
	}
}

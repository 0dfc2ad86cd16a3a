package memory_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
)

func TestRecords(t *testing.T) { backendtest.RunRecords(t, memory.NewRecords(0)) }

// Records are bounded, and those that have expired make room.
func TestRecordsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := memory.NewRecords(3)
		write := func(i int) error {
			c := backend.RecordChange{Key: fmt.Appendf(nil, "k%d", i), Kind: "a", Value: backend.AppendHead(nil, 1), Lives: time.Minute, NotAfter: math.MaxInt64, Done: func() {}}
			records.Change(&c)
			return c.Err
		}
		for i := range 3 {
			if err := write(i); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(3); !errors.Is(err, backend.ErrFull) {
			t.Errorf("a fourth record: %v", err)
		}
		// A full store looks for room once a second: whoever sends new keys must not make it look each time.
		time.Sleep(59900 * time.Millisecond) //nolint:forbidigo // virtual time
		if err := write(3); !errors.Is(err, backend.ErrFull) {
			t.Errorf("just before the others expire: %v", err)
		}
		time.Sleep(200 * time.Millisecond) //nolint:forbidigo // virtual time
		if err := write(3); !errors.Is(err, backend.ErrFull) {
			t.Errorf("it has looked again after 200 ms: %v", err)
		}
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		if err := write(3); err != nil || records.Len() != 1 {
			t.Errorf("after the others have expired: %v, %d records", err, records.Len())
		}
	})
}

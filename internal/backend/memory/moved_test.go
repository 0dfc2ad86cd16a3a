package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A penalty that starts may make its shard copy all records, because resets have left many unused ones. The hits that
// the other takes of its group have counted there are kept, and no counter gets another one's log.
func TestPenaltyThatMovesRecords(t *testing.T) {
	once := descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Day}}
	log := descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Day}, Algorithm: descriptor.SlidingLog}
	for _, l := range []*descriptor.Limit{&once, &log} {
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
	}
	for name, more := range map[string][]backend.Take{
		"all counters exist": nil,
		"one is new":         {{Key: []byte("new"), Limit: &log, Hits: 1, Member: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(Options{})
			settle := func(takes ...backend.Take) []backend.Outcome {
				t.Helper()
				r := &backend.Request{Takes: takes, Outcomes: make([]backend.Outcome, len(takes)), Together: true}
				if err := backend.Await(t.Context(), s, march, r); err != nil {
					t.Fatal(err)
				}
				return r.Outcomes
			}
			// the offender is in shadow mode, so that the others pass
			offender := backend.Take{Key: []byte("offender"), Limit: &once, Hits: 1, Vote: backend.VoteNone}
			guard := backend.Take{Key: descriptor.AppendPenaltyKey(nil, offender.Key, true), Limit: descriptor.NewPenalty(time.Hour), Vote: backend.VoteNone, Guards: true}
			settle(offender)

			// Counters in the shard of the penalty. Some are reset, so that the next addition there copies the others.
			var keys [][]byte
			for i := 0; len(keys) < 150; i++ {
				if key := fmt.Append(nil, "caller ", i); s.shardOf(key) == s.shardOf(guard.Key) {
					keys = append(keys, key)
				}
			}
			var reset []backend.Counter
			for i, key := range keys {
				settle(backend.Take{Key: key, Limit: &log, Hits: 1})
				if i < 100 {
					reset = append(reset, backend.Counter{Key: key, Limit: &log})
				}
			}
			if err := s.Reset(t.Context(), reset); err != nil {
				t.Fatal(err)
			}
			if !s.shards[s.shardOf(guard.Key)].table.records.wasteful() {
				t.Fatal("nothing would be copied")
			}

			last := keys[len(keys)-1]
			o := settle(append([]backend.Take{guard, offender, {Key: last, Limit: &log, Hits: 3, Member: 1}}, more...)...)
			if o[0].Used == o[0].Before || o[1].Allowed || !o[2].Allowed {
				t.Fatalf("%+v: a penalty begins, and the others pass", o)
			}
			for i, key := range keys {
				want := int64(1)
				switch {
				case i < 100:
					want = 0
				case i == len(keys)-1:
					want = 4
				}
				if o := settle(backend.Take{Key: key, Limit: &log}); o[0].Used != want {
					t.Errorf("counter %d has %d hits, want %d", i, o[0].Used, want)
				}
			}
		})
	}
}

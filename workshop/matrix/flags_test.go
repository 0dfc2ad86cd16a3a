package matrix

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// told is information that a request gives to the layers that count it: some fields of backend.Take, backend.Request
// and backend.Reservation. A layer that drops one of them changes the results of the steps.
type told struct {
	fields []string
	steps  []backend.Request // requests on a limit of 100 an hour, after 6 single hits
	want   []string          // each step's result: whether each take passes, and the hits used afterwards
	absent string            // why no layer here gets the fields; then there are no steps
}

// of returns a request of takes. Each take is a separate member unless it sets one.
func of(together bool, takes ...backend.Take) backend.Request {
	for i := range takes {
		if takes[i].Member == 0 {
			takes[i].Member = i
		}
	}
	return backend.Request{Together: together, Takes: takes}
}

func reserving(op backend.ReservationOp, hits, least int64, final, unknown bool) backend.Take {
	id := backend.ReservationID{1}
	if unknown {
		id[0] = 2
	}
	return backend.Take{Hits: hits, Reservation: &backend.Reservation{ID: id, Op: op, Least: least, Final: final, ChargeUnknown: unknown, TTL: time.Minute.Microseconds()}}
}

var flags = []told{
	{
		fields: []string{"Take.Key", "Take.Limit", "Take.Rule", "Take.Hits", "Request.Takes", "Request.Outcomes"},
		steps:  []backend.Request{of(false, backend.Take{Hits: 70}), of(false, backend.Take{Hits: 70}), of(false, backend.Take{Hits: -50}), of(false, backend.Take{Hits: 70}), of(false, backend.Take{})},
		want:   []string{"yes 76", "no 76", "yes 26", "yes 96", "yes 96"},
	},
	{
		fields: []string{"Take.CountDenied"},
		steps:  []backend.Request{of(false, backend.Take{Hits: 95, CountDenied: true}), of(false, backend.Take{Hits: -2}), of(false, backend.Take{Hits: -3})},
		want:   []string{"no 101", "yes 99", "yes 96"},
	},
	{
		fields: []string{"Take.Settled"}, // counted although the counter is known to deny it
		steps: []backend.Request{
			of(false, backend.Take{Hits: 90}), of(false, backend.Take{Hits: 5}), of(false, backend.Take{Hits: 9, Settled: true, CountDenied: true}),
			of(true, backend.Take{Hits: 30, Settled: true, CountDenied: true}), of(false, backend.Take{Hits: -1}),
		},
		want: []string{"yes 96", "no 96", "no 105", "no 135", "yes 134"},
	},
	{
		fields: []string{"Take.Member"}, // the limits of one member are settled together
		steps: []backend.Request{
			of(false, backend.Take{Hits: 40, Member: 5}, backend.Take{Key: []byte("small"), Hits: 40, Member: 5}),
			of(false, backend.Take{Hits: 40, Member: 5}, backend.Take{Key: []byte("small"), Hits: 40, Member: 6}),
		},
		want: []string{"yes 6, no 0", "yes 46, no 0"},
	},
	{
		fields: []string{"Request.Together", "Take.Vote"},
		steps: []backend.Request{
			of(true, backend.Take{Hits: 40}, backend.Take{Key: []byte("small"), Hits: 40}),
			of(true, backend.Take{Hits: 40}, backend.Take{Key: []byte("small"), Hits: 40, Vote: backend.VoteNone}),
			of(true, backend.Take{Hits: 70, Vote: backend.VoteAny}, backend.Take{Key: []byte("small"), Hits: 5, Vote: backend.VoteAny}),
			of(true, backend.Take{Hits: 70, Vote: backend.VoteAny}, backend.Take{Key: []byte("small"), Hits: 40, Vote: backend.VoteAny}),
		},
		want: []string{"yes 6, no 0", "yes 46, no 0", "no 46, yes 5", "no 46, no 5"},
	},
	{
		// a request that is denied from memory only needs the used hits of its other takes
		fields: []string{"Request.PeekWhenKnown"},
		steps: []backend.Request{
			of(false, backend.Take{Key: []byte("small"), Hits: 11, CountDenied: true}),
			{Together: true, PeekWhenKnown: true, Takes: []backend.Take{{Key: []byte("small"), Hits: 1}, {Hits: 5, Member: 1}}},
			of(false, backend.Take{}),
		},
		want: []string{"no 11", "no 11, yes 6", "yes 6"},
	},
	{
		fields: []string{"Take.Guards"},
		steps: []backend.Request{
			of(false, backend.Take{Key: []byte("penalty"), Guards: true, Member: 1}, backend.Take{Hits: 95, Member: 1}),
			of(false, backend.Take{Key: []byte("penalty"), Guards: true, Member: 1}, backend.Take{Hits: 1, Member: 1}),
		},
		want: []string{"no 1, no 6", "no 1, yes 6"},
	},
	{
		fields: []string{"Take.Reservation", "Reservation.ID", "Reservation.Op", "Reservation.TTL", "Reservation.Final", "Reservation.Result", "Reservation.Granted", "Reservation.Expires", "Reservation.Stored", "Reservation.Late"},
		steps: []backend.Request{
			of(false, reserving(backend.OpReserve, 40, 0, false, false)), of(false, reserving(backend.OpCommit, 10, 0, false, false)),
			of(false, reserving(backend.OpExtend, 0, 0, false, false)), of(false, reserving(backend.OpCommit, 20, 0, true, false)),
			of(false, reserving(backend.OpCommit, 20, 0, true, false)),
		},
		want: []string{"yes 46 done 40", "yes 46 done 0", "yes 46 done 0", "yes 26 done 0", "yes 26 unknown 0"},
	},
	{
		fields: []string{"Reservation.Least"},
		steps:  []backend.Request{of(false, reserving(backend.OpReserve, 99, 20, false, false))},
		want:   []string{"yes 100 done 94"},
	},
	{
		fields: []string{"Reservation.ChargeUnknown"},
		steps:  []backend.Request{of(false, reserving(backend.OpCommit, 20, 0, true, true))},
		want:   []string{"yes 26 unknown 0"},
	},
	{fields: []string{"Take.Origin"}, absent: "package regions, which has a matrix of its own"},
}

// Each layer honours each flag, alone and above other layers. A field without a row fails this test.
func TestEveryLayerKnowsEveryFlag(t *testing.T) {
	known := make(map[string]bool)
	for _, kind := range []any{backend.Take{}, backend.Request{}, backend.Reservation{}} {
		of := reflect.TypeOf(kind)
		for i := range of.NumField() {
			known[of.Name()+"."+of.Field(i).Name] = false
		}
	}
	for _, f := range flags {
		for _, name := range f.fields {
			if _, ok := known[name]; !ok {
				t.Errorf("there is no field %s", name)
			}
			known[name] = true
		}
	}
	for name, tested := range known {
		if !tested {
			t.Errorf("the field %s is in no row of flags: add what it changes for a store, so that a layer that drops it is found", name)
		}
	}
	for k, w := range append(ways(t), plain) {
		if w.stores == nil || w.grade == within || w.settings.OnError != descriptor.OnErrorDefault {
			continue // the way has no separate store, or is not exact
		}
		for i := range flags {
			if flags[i].absent == "" {
				t.Run(strings.Join(flags[i].fields, ",")+"/"+w.column, func(t *testing.T) { flags[i].test(t, &w, fmt.Sprintf("f%d.%d.", k, i)) })
			}
		}
	}
}

func (f *told) test(t *testing.T, w *way, prefix string) {
	t.Helper()
	all := w.stores(t, prefix)
	limits := map[string]*descriptor.Limit{
		"": {Requests: 100, Lease: w.times > 1, Window: descriptor.Window{Unit: descriptor.Hour}}, "small": {Requests: 10, Window: descriptor.Window{Unit: descriptor.Hour}},
	}
	for _, l := range limits {
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
	}
	// shorter than the window, so that the counter of the limit is read
	limits["penalty"] = descriptor.NewPenalty(time.Minute)
	turn := 0
	ask := func(r *backend.Request) string {
		for i := range r.Takes {
			t := &r.Takes[i]
			t.Limit = limits[string(t.Key)]
			if t.Guards {
				t.Key = descriptor.AppendPenaltyKey(nil, []byte(prefix), false)
			} else {
				t.Key = fmt.Appendf(nil, "%s%s", prefix, t.Key)
			}
			if h := t.Reservation; h != nil {
				copied := *h
				t.Reservation = &copied
			}
		}
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		turn++
		if err := backend.Await(t.Context(), all.replicas[turn%len(all.replicas)], start, r); err != nil {
			return err.Error()
		}
		var found []string
		for i := range r.Takes {
			o, text := &r.Outcomes[i], "no"
			if o.Allowed {
				text = "yes"
			}
			text += fmt.Sprintf(" %d", o.Used)
			if h := r.Takes[i].Reservation; h != nil {
				text += fmt.Sprintf(" %s %d", [...]string{"done", "unknown", "too many", "too large"}[h.Result], h.Granted)
			}
			found = append(found, text)
		}
		return strings.Join(found, ", ")
	}
	for range 6 {
		ask(&backend.Request{Takes: []backend.Take{{Hits: 1}}})
	}
	for i := range f.steps {
		step := f.steps[i]
		step.Takes = append([]backend.Take(nil), step.Takes...)
		if got := ask(&step); got != f.want[i] {
			t.Errorf("step %d: %s, want %s", i, got, f.want[i])
		}
	}
}

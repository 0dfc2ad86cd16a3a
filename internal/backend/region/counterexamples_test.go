package region

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// counterexamples are the histories in which the model of regions breaks without one of its guards (workshop/models/regions.tla), on the code:
// one home, and the account of one region. drain follows each of them.
var counterexamples = map[string]func(*history){
	// A question is answered twice.
	"seq": func(h *history) {
		q := h.ask(noon, 10)
		first := h.answer(noon, q)
		h.answer(noon+second, q)
		h.apply(noon+second, first)
		h.wantCounted(noon+second, 10)
	},
	// Two processes apply one answer.
	"apply": func(h *history) {
		h.serve(noon, fixed-10)
		a := h.answer(noon, h.ask(noon, 10))
		h.apply(noon, a)
		h.apply(noon, a)
	},
	// The Redis of an account that has used its grant is flushed, and the new account asks its first question.
	"incarnation": func(h *history) {
		h.serve(noon, fixed-10)
		q := h.ask(noon, 10)
		h.apply(noon, h.answer(noon, q))
		h.use(noon, 10)
		h.a = Account{}
		h.apply(noon+second, h.answer(noon+second, q)) // the answer to the flushed one
		h.apply(noon+second, h.answer(noon+second, h.ask(noon+second, 10)))
	},
	// An account returns something and is flushed; its question arrives again after the first one of the new account.
	"record": func(h *history) {
		h.apply(noon, h.answer(noon, h.ask(noon, 10)))
		h.use(noon, 3)
		late := h.ask(noon+5*second, 0)
		h.answer(noon+5*second, late)
		h.a = Account{}
		h.answer(noon+6*second, h.ask(noon+6*second, 1))
		h.wantCounted(noon+6*second, 4)
		h.answer(noon+7*second, late)
		h.wantCounted(noon+7*second, 4)
	},
	// A question that returns something arrives twice.
	"cumulative": func(h *history) {
		h.apply(noon, h.answer(noon, h.ask(noon, 10)))
		h.use(noon, 3)
		q := h.ask(noon+5*second, 0)
		q.Grants[0].Returned = 4 // and keeps 3
		h.a.Grants[0].Returned = 4
		h.answer(noon+5*second, q)
		h.answer(noon+6*second, q)
		h.wantCounted(noon+6*second, 6)
	},
	// A question that returns permits of a window arrives in the next one.
	"window": func(h *history) {
		h.apply(noon+50*second, h.answer(noon+50*second, h.ask(noon+50*second, 10)))
		late := h.ask(noon+55*second, 0)
		h.used = 0
		h.serve(noon+60*second, fixed)
		h.answer(noon+61*second, late)
	},
	// A process pauses before it applies an answer, until the window of the permits is over.
	"expiry": func(h *history) {
		a := h.answer(noon+50*second, h.ask(noon+50*second, 10))
		h.serve(noon+60*second, fixed)
		h.apply(noon+61*second, a)
	},
	// The first answer is lost, and the question is answered again before its permits end.
	"first": func(h *history) {
		q := h.ask(noon+40*second, 10)
		h.answer(noon+40*second, q)
		again, ok := h.a.Ask(at(noon+58*second), "b", h.d.Epoch, 10, 7)
		if !ok {
			h.t.Fatal("the question is not repeated")
		}
		h.apply(noon+59*second, h.answer(noon+59*second, again))
		h.serve(noon+60*second, fixed)
		if left := h.a.Left(noon + 60*second); left != 0 {
			h.t.Errorf("%d permits of the last window are left", left)
		}
	},
	// An account returns permits to the old home, and reports them to the new one.
	"epoch": func(h *history) {
		h.serve(noon, fixed-10)
		h.apply(noon, h.answer(noon, h.ask(noon, 10)))
		h.use(noon, 3)
		h.answer(noon+5*second, h.ask(noon+5*second, 0)) // 7 are free at the old home
		h.serve(noon+5*second, 7)
		h.c = Counter{}
		h.d.Epoch, h.d.From = 2, noon+8*second
		h.apply(noon+9*second, h.answer(noon+9*second, h.ask(noon+9*second, 7)))
		if h.c.Learning != 0 || len(h.c.Peers[0].Grants) != 0 {
			h.t.Errorf("the new home takes in what the old one has granted: %+v", h.c)
		}
	},
	// A home is cut off: it hears of no other region for longer than a lease.
	"role": func(h *history) {
		e := &Epoch{Number: 1, Home: "a", Regions: []string{"a", "b", "c"}}
		var r Role
		r.Begin(at(noon), e)
		r.Consented(at(noon), e, "b", noon)
		kept := r.Duty(at(noon), e)
		for name, d := range map[string]Duty{"kept": kept, "new": r.Duty(at(noon+lease), e)} {
			if d.Grants = true; d.acts(at(noon + lease)) {
				h.t.Errorf("with a %s duty, it acts for longer than a lease", name)
			}
		}
	},
	// A new home begins while the old one may still act.
	"wait": func(h *history) {
		e := &Epoch{Number: 2, Home: "c", Regions: []string{"a", "b", "c"}, Before: []string{"a", "b", "c"}}
		var r Role
		r.Begin(at(noon), e)
		r.Consented(at(noon+second), e, "b", noon+second)
		for _, now := range []int64{noon + second, noon + second + lease + longestLife} { // the old home, and what it has granted then
			r.Consented(at(now), e, "b", now)
			if d := r.Duty(at(now), e); d.acts(at(now)) {
				h.t.Errorf("it acts %d us after it was consented to", now-noon-second)
			}
		}
	},
	// A new home does not know what the old one has granted in the window.
	"full": func(h *history) {
		h.apply(noon, h.answer(noon, h.ask(noon, 10)))
		h.serve(noon, fixed-10)
		h.c = Counter{}
		h.d.Epoch, h.d.From = 2, noon+10*second
		h.serve(noon+10*second, 1)
		h.apply(noon+11*second, h.answer(noon+11*second, h.ask(noon+11*second, 5)))
	},
}

// history is a home and an account, and what was used in the window.
type history struct {
	*system
	used, now int64
}

func (h *history) apply(now int64, a Answer) {
	h.now = max(h.now, now)
	h.a.Apply(at(now), &a)
}

// use makes a take from the account, if it has so much.
func (h *history) use(now, hits int64) {
	h.now = max(h.now, now)
	if h.a.Take(at(now), hits).Allowed {
		h.used += hits
	}
}

// serve makes takes at the home, as far as it has room.
func (h *history) serve(now, hits int64) {
	h.now = max(h.now, now)
	for ; hits > 0; hits-- {
		if o, ok := h.c.Take(at(now), h.l, h.d, 1); ok && o.Allowed {
			h.used++
		}
	}
}

// drain uses all that the account and the home have left: never more than the limit in all.
func (h *history) drain() {
	h.use(h.now, h.a.Left(h.now))
	h.serve(h.now, fixed)
	if h.used > fixed {
		h.t.Errorf("%d of %d were used in a window", h.used, fixed)
	}
}

func TestCounterexamples(t *testing.T) {
	for _, guard := range slices.Sorted(maps.Keys(counterexamples)) {
		t.Run(guard, func(t *testing.T) {
			h := &history{system: newSystem(t, descriptor.Limit{}), now: noon}
			counterexamples[guard](h)
			h.drain()
		})
	}
}

// Every guard of the model has its history here.
func TestEveryGuardHasACounterexample(t *testing.T) {
	model, err := os.ReadFile("../../../workshop/models/regions.tla")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`ASSUME Off \\subseteq \{(.+)\}`).FindSubmatch(model)
	if m == nil {
		t.Fatal("the model does not say which guards there are")
	}
	guards := strings.Split(strings.ReplaceAll(string(m[1]), `"`, ""), ", ")
	slices.Sort(guards)
	if all := slices.Sorted(maps.Keys(counterexamples)); !slices.Equal(all, guards) {
		t.Errorf("the model has the guards %v, and there are histories for %v", guards, all)
	}
}

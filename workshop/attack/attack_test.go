package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestNoticed(t *testing.T) {
	began := time.Unix(1000, 0)
	var c calls
	for i := range 400 { // 100 a second; in the second one nothing is answered, the third is slow
		one := call{began: began.Add(time.Duration(i) * 10 * time.Millisecond), took: 2 * time.Millisecond, ok: true}
		switch i / 100 {
		case 1:
			one.took, one.ok = time.Second, false
		case 2:
			one.took = 100 * time.Millisecond
		}
		c.all = append(c.all, one)
	}
	second := func(n int) time.Time { return began.Add(time.Duration(n) * time.Second) }
	for n, want := range []noticed{{2 * time.Millisecond, 1, 100}, {time.Second, 0, 100}, {100 * time.Millisecond, 1, 100}, {2 * time.Millisecond, 1, 100}} {
		if got := c.between(second(n), second(n+1)); got != want {
			t.Errorf("second %d: %+v, want %+v", n, got, want)
		}
	}
	if took, ok := c.recovered(second(1), second(4), 2*time.Millisecond); !ok || took != 2*time.Second {
		t.Errorf("recovered after %v, %v", took, ok)
	}
	if _, ok := c.recovered(second(1), second(3), 2*time.Millisecond); ok {
		t.Error("recovered while calls are slow")
	}
	if took, ok := c.recovered(second(3), second(4), 2*time.Millisecond); !ok || took != 0 {
		t.Errorf("all is well: %v, %v", took, ok)
	}
}

func TestVerdict(t *testing.T) {
	well := func() *outcome {
		all := noticed{p99: time.Millisecond, answered: 1, calls: 100}
		return &outcome{
			scenario: scenarios()[0], idle: 30 << 20, peak: 300 << 20, left: 100 << 20,
			victims: []victimOutcome{{name: "old counters", before: all, during: all, after: all, recovered: true}},
		}
	}
	if err := well().verdict(false); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*outcome){
		"301 MB more than idle":                     func(o *outcome) { o.peak = 331 << 20 },
		"keeps 100 MB for clients that it does not": func(o *outcome) { o.own.live, o.kept = 10<<20, kept{live: 120 << 20, clients: 10 << 20} },
		"80.0 % of the calls were answered during":  func(o *outcome) { o.victims[0].during.answered = 0.8 },
		"50.0 % of the calls were answered after":   func(o *outcome) { o.victims[0].after.answered = 0.5 },
	} {
		o := well()
		change(o)
		if err := o.verdict(false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	short := well()
	short.victims[0].during.answered = 0.4
	if err := short.verdict(true); err != nil {
		t.Errorf("in a short attack: %v", err)
	}
	var table bytes.Buffer
	if err := report(&table, []*outcome{well()}); err != nil || !strings.Contains(table.String(), "| full-store | 30 MB    | 300 MB  | 100 MB") {
		t.Errorf("%v\n%s", err, &table)
	}
}

// An attacker only attacks this machine, and only for a limited time.
func TestAttackersAreBounded(t *testing.T) {
	for _, o := range []options{
		{attack: "flood", at: "192.0.2.1:8081", lasts: time.Second},
		{attack: "flood", at: "127.0.0.1:8081"},
		{attack: "flood", at: "127.0.0.1:8081", lasts: time.Hour},
		{attack: "none", at: "127.0.0.1:8081", lasts: time.Second},
	} {
		if err := attack(t.Context(), &o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

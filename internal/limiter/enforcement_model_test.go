package limiter_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// Rules with all kinds of limits decide like a plain model, which has neither takes nor votes.
func TestEnforcementModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawEnforcementModel(rt)
		f := newFixture(t, limiter.Settings{Admission: m.admission}, m.nodes()...)
		for n := range rapid.IntRange(1, 12).Draw(rt, "requests") {
			hits := uint32(rapid.IntRange(1, 4).Draw(rt, "hits"))
			req := &limiter.Request{Domain: "d", Hits: hits}
			asked := rapid.SliceOfNDistinct(rapid.IntRange(0, len(m.rules)-1), 1, len(m.rules), rapid.ID).Draw(rt, "descriptors")
			caller := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "caller")
			for _, i := range asked {
				req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: entries(fmt.Sprintf("k%d=%s", i, caller))})
			}
			d := f.decide(req)
			code, statuses, notices := m.decide(asked, caller, int64(hits))
			if d.Code != code {
				rt.Fatalf("request %d %v: %s, the model says %s", n, asked, d.Code, code)
			}
			for i := range statuses {
				if d.Statuses[i].Code != statuses[i] {
					rt.Fatalf("request %d %v, descriptor %d: %s, the model says %s", n, asked, i, d.Statuses[i].Code, statuses[i])
				}
			}
			if len(d.Notices) != notices {
				rt.Fatalf("request %d %v: %d notices, the model says %d: %+v", n, asked, len(d.Notices), notices, d.Notices)
			}
			m.compare(rt, f)
		}
	})
}

// enforcementModel has rules of fixed windows, and counts in maps. Time stands still.
type enforcementModel struct {
	admission descriptor.Admission
	rules     [][]descriptor.Limit
	used      map[string]int64 // hits keyed by rule, limit and customer
}

func drawEnforcementModel(t *rapid.T) *enforcementModel {
	m := &enforcementModel{used: map[string]int64{}, admission: rapid.SampledFrom([]descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing}).Draw(t, "admission")}
	for range rapid.IntRange(1, 3).Draw(t, "rules") {
		var limits []descriptor.Limit
		for j := range rapid.IntRange(1, 3).Draw(t, "limits") {
			l := fixedLimit(fmt.Sprint("l", j), uint64(rapid.IntRange(0, 9).Draw(t, "limit")))
			l.CountDenied = rapid.SampledFrom([]descriptor.Denied{descriptor.DeniedCount, descriptor.DeniedDrop}).Draw(t, "count_denied")
			switch rapid.IntRange(0, 3).Draw(t, "enforcement") {
			case 1:
				inShadow(&l)
			case 2:
				soft(&l)
			case 3:
				enforcedFor(uint8(rapid.IntRange(1, 100).Draw(t, "percent")))(&l)
			}
			if l.Enforcement == descriptor.EnforcedForAll {
				// a window that no other limit has, so a separate counter
				l.Window = descriptor.Window{Unit: descriptor.Year, Multiplier: uint32(j + 1)}
			}
			limits = append(limits, l)
		}
		m.rules = append(m.rules, limits)
	}
	return m
}

func (m *enforcementModel) nodes() []descriptor.NodeSpec {
	var nodes []descriptor.NodeSpec
	for i, limits := range m.rules {
		nodes = append(nodes, listNode(fmt.Sprint("k", i), append([]descriptor.Limit(nil), limits...)))
	}
	return nodes
}

// decide returns the expected answer to a request, and counts the request.
func (m *enforcementModel) decide(asked []int, caller string, hits int64) (code limiter.Code, statuses []limiter.Code, notices int) {
	code = limiter.OK
	for _, i := range asked {
		status := limiter.OK
		for j := range m.rules[i] {
			switch over, enforced := m.over(i, j, caller, hits), m.enforced(i, j, caller); {
			case over && enforced:
				status, code = limiter.OverLimit, limiter.OverLimit
			case over:
				notices++
			}
		}
		statuses = append(statuses, status)
	}
	for at, i := range asked {
		denied := statuses[at] == limiter.OverLimit
		if m.admission == descriptor.AllOrNothing {
			denied = code == limiter.OverLimit
		}
		for j := range m.rules[i] {
			over := m.over(i, j, caller, hits)
			if !over && !denied || over && m.rules[i][j].CountDenied == descriptor.DeniedCount {
				m.used[m.key(i, j, caller)] += hits
			}
		}
	}
	return code, statuses, notices
}

func (m *enforcementModel) key(i, j int, caller string) string { return fmt.Sprint(i, j, caller) }

func (m *enforcementModel) over(i, j int, caller string, hits int64) bool {
	return m.used[m.key(i, j, caller)]+hits > int64(m.rules[i][j].Requests)
}

// enforced asks for whom the limit is enforced; TestEnforcedForVectors pins the answers.
func (m *enforcementModel) enforced(i, j int, caller string) bool {
	return m.rules[i][j].EnforcedFor(fmt.Appendf(nil, "d|k%d=%s|l%d", i, caller, j))
}

// compare compares the hits in use under all limits.
func (m *enforcementModel) compare(t *rapid.T, f *fixture) {
	for i := range m.rules {
		for _, caller := range []string{"a", "b"} {
			c, err := f.Peek(f.t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries(fmt.Sprintf("k%d=%s", i, caller))})
			if err != nil {
				t.Fatal(err)
			}
			for j := range c.List {
				if got, want := c.List[j].Used, m.used[m.key(i, j, caller)]; got != want {
					t.Fatalf("rule %d, limit %d, caller %s: %d used, the model says %d", i, j, caller, got, want)
				}
			}
		}
	}
}

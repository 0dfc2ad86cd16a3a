package server

import "testing"

// The parents of spans that envoyproxy/ratelimit at f2fb157 derives from these headers.
func TestParentsOfB3(t *testing.T) {
	const (
		half, span, up = "463ac35c9f6413ad", "a2fb4a1d1a96d312", "0020000000000001"
		id             = "80f198ee56343ba864fe8b2a57d3eff7"
		w3c            = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
		yes, no        = "00-" + id + "-" + span + "-01", "00-" + id + "-" + span + "-00"
	)
	multi := func(more ...string) map[string]string {
		m := map[string]string{"x-b3-traceid": id, "x-b3-spanid": span, "traceparent": w3c, "tracestate": "a=1"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	single := func(b3 string) map[string]string {
		return map[string]string{"b3": b3, "traceparent": w3c, "tracestate": "a=1"}
	}
	for _, c := range []struct {
		headers map[string]string
		want    string
	}{
		{nil, ""},
		{single(id + "-" + span + "-1"), yes},
		{single(id + "-" + span + "-d"), yes},
		{single(id + "-" + span + "-0"), no},
		{single(id + "-" + span), no},
		{single(id + "-" + span + "-1-" + up), yes},
		{single(half + "-" + span + "-1"), "00-0000000000000000" + half + "-" + span + "-01"},
		{single("0"), w3c},
		{single("1"), w3c},
		{single(id), w3c},
		{single(id + "-" + span + "-"), w3c},
		{single(id + "-" + span + "--" + up), w3c},
		{single(id + "-" + span + "-1-"), w3c},
		{single(id + "-" + span + "-1-" + up + "-x"), w3c},
		{single(id + "-" + span + "-" + up), w3c},
		{single(id + "-" + span + "-2"), w3c},
		{single("80F198EE56343BA864FE8B2A57D3EFF7-" + span + "-1"), w3c},
		{single(id + "-0000000000000000-1"), w3c},
		{single(id[1:] + "-" + span + "-1"), w3c},
		{multi(), no},
		{multi("x-b3-sampled", "1"), yes},
		{multi("x-b3-sampled", "True"), yes},
		{multi("x-b3-sampled", "false"), no},
		{multi("x-b3-sampled", "d"), w3c},
		{multi("x-b3-sampled", "x", "x-b3-flags", "1"), w3c},
		{multi("x-b3-sampled", "0", "x-b3-flags", "1"), yes},
		{multi("x-b3-flags", "2"), no},
		{multi("x-b3-parentspanid", up, "x-b3-sampled", "1"), yes},
		{multi("x-b3-parentspanid", "x", "x-b3-sampled", "1"), w3c},
		{multi("x-b3-spanid", ""), w3c},
		{multi("x-b3-traceid", ""), w3c},
		{multi("b3", half+"-"+span+"-1"), "00-0000000000000000" + half + "-" + span + "-01"},
		{multi("b3", "broken", "x-b3-sampled", "1"), yes},
	} {
		parent, state := parentOf(func(name string) string { return c.headers[name] })
		if wantState := map[bool]string{true: "a=1"}[c.want == w3c]; parent != c.want || state != wantState {
			t.Errorf("%v: parent %q with %q, want %q with %q", c.headers, parent, state, c.want, wantState)
		}
	}
}

func BenchmarkParentOfW3C(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		parentOf(func(name string) string {
			if name == traceparent {
				return "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
			}
			return ""
		})
	}
}

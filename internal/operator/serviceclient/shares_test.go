package serviceclient

import (
	"bytes"
	"testing"
	"time"
)

// A bucket has a line for each of its clients and their sum, and no text of a client changes the terminal.
func TestWriteShares(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &Shares{
		Host: "host\x1b[31m", Domain: "api", Known: true, Total: 12, More: true,
		Buckets: []BucketShares{
			{
				Entries: []Entry{{"plan", "gold"}, {"user", "a\x1b[31m\n"}}, Rule: "api.plan_gold.user", Limit: "100 per second, token bucket, burst 200", Processes: 2, Demand: 1035.5, Clients: 1004,
				LimitRate: &TokenRate{100, 200}, ProcessRate: &TokenRate{62.5, 125}, HeldRate: &TokenRate{60, 119},
				Held: []HeldShare{
					{Client: "10.0.0.1:51234", Since: now.Add(-5 * time.Minute), Demand: 25, Assignment: "token_bucket", Rate: &TokenRate{30, 60}, Expires: now.Add(12 * time.Second)},
					{Client: "[2001:db8::1]:5", Since: now.Add(-3 * time.Second), Demand: 0.5, Assignment: "token_bucket", Rate: &TokenRate{0.1, 1}, Expires: now.Add(30 * time.Second)},
					{Client: "10.0.0.3:5", Since: now, Demand: 0.0001, Assignment: "deny_all", Expires: now},
					{Client: "10.0.0.4:5\x1b[31m", Assignment: "none"},
				},
			},
			{Entries: []Entry{{"plan", "free"}}, Demand: 7, Clients: 1, Held: []HeldShare{{Client: "10.0.0.1:51234", Since: now, Demand: 7, Assignment: "allow_all", Expires: now.Add(time.Minute)}}},
		},
	}
	var text bytes.Buffer
	if err := WriteShares(&text, s, now, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "shares.txt", text.String())
	if bytes.ContainsRune(text.Bytes(), '\x1b') {
		t.Error("the terminal changes")
	}
	for want, s := range map[string]*Shares{
		"no rules are loaded for the domain \"api\"\n":                                                                                           {Domain: "api"},
		"no client of this process uses a quota bucket of this domain\n":                                                                         {Known: true},
		"no client of this process uses a quota bucket of this domain with these entries\n":                                                      {Known: true, Where: []Entry{{"k", "v"}}, Total: 7},
		"k=v\nrule     none\nCLIENT  MAY PASS  BURST  DEMAND  SINCE  EXPIRES\ntotal                    0/s\n\n1 bucket, with the clients of h\n": {Known: true, Host: "h", Total: 1, Buckets: []BucketShares{{Entries: []Entry{{"k", "v"}}}}},
	} {
		text.Reset()
		if err := WriteShares(&text, s, now, false); err != nil || text.String() != want {
			t.Errorf("%v\ngot  %q\nwant %q", err, text.String(), want)
		}
	}
}

func TestPerTime(t *testing.T) {
	for want, perSecond := range map[string]float64{
		"0/s": 0, "1234567/s": 1234567, "100/s": 100, "99.5/s": 99.5, "1.0/s": 1, "30.0/min": 0.5, "1.0/h": 1.0 / 3600, "2.5/day": 2.5 / 86400, "0.003/day": 1.0 / (365 * 86400),
	} {
		if got := perTime(perSecond); got != want {
			t.Errorf("%v: got %s, want %s", perSecond, got, want)
		}
	}
}

package backendtest

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// A script is read line by line:
//
//	# a comment
// 	case NAME                        starts a case: all counters are fresh
// 	AT [together]                    starts a request at this time after the epoch, or at 2028-03-26T01:00:00+01:00
//	AT TAKE -> OUTCOME               a request of one take
//	    TAKE -> OUTCOME              a further take of the request
//
// A TAKE is KEY LIMIT HITS and then words: count_denied; any or none (its vote); same (another limit of the same
// descriptor as the take before). limit.go explains LIMIT. KEY and LIMIT name the counter, as in descriptor.KeyBuilder.
// An OUTCOME is ok or over, the hits in use before and after the take, and its times.
//
// A word with a colon makes a take an operation on a reservation: reserve:ID, report:ID (the hits used so far),
// commit:ID or extend:ID. Words after it: ttl:30s (default 1m), least:N (the smallest grant) and unknown (a commit
// without a reservation is charged). The OUTCOME of such an operation also has the reserved hits and the end of the
// reservation, counted from the epoch, or the reason why the operation did nothing.

//go:embed testdata
var testdata embed.FS

func runScripts(t *testing.T, open func(t testing.TB) backend.Store, directory string) {
	entries, err := testdata.ReadDir(directory)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d scripts, %v", len(entries), err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".txt") {
			continue
		}
		t.Run(strings.TrimSuffix(e.Name(), ".txt"), func(t *testing.T) {
			want, err := testdata.ReadFile(directory + "/" + e.Name())
			if err != nil {
				t.Fatal(err)
			}
			got, err := play(open(t), string(want))
			if err != nil {
				t.Fatalf("%s:%v", e.Name(), err)
			}
			if *update {
				_, here, _, _ := runtime.Caller(0)
				if err := os.WriteFile(filepath.Join(filepath.Dir(here), directory, e.Name()), []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			wants, gots := strings.Split(string(want), "\n"), strings.Split(got, "\n")
			for i := range wants {
				if wants[i] != gots[i] {
					t.Errorf("%s:%d:\n want %s\n got  %s", e.Name(), i+1, wants[i], gots[i])
				}
			}
		})
	}
}

// pending is a request that is being read, and the lines where its outcomes belong.
type pending struct {
	request backend.Request
	at      time.Time
	lines   []int
}

// play runs a script and returns it with the outcomes of the store.
func play(s backend.Store, script string) (string, error) {
	lines := strings.Split(script, "\n")
	prefix := newCase()
	var p *pending
	flush := func() error {
		if p == nil {
			return nil
		}
		r := &p.request
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		if err := backend.Await(context.Background(), s, p.at, r); err != nil {
			return err
		}
		for i, n := range p.lines {
			left, _, _ := strings.Cut(lines[n], "->")
			lines[n] = fmt.Sprintf("%-44s -> %s%s", strings.TrimRight(left, " "), outcomeText(&r.Outcomes[i]),
				reservationText(r.Takes[i].Reservation))
		}
		p = nil
		return nil
	}

	for n, line := range lines {
		left, _, _ := strings.Cut(line, "->")
		words := strings.Fields(left)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		indented := line[0] == ' '
		if !indented {
			if err := flush(); err != nil {
				return "", fmt.Errorf("%d: %w", n, err) // the request ended on a line before
			}
		}
		switch {
		case words[0] == "case":
			prefix = newCase()
			continue
		case indented && p == nil:
			return "", fmt.Errorf("%d: no request begins before this take", n+1)
		case !indented:
			at, err := parseTime(words[0])
			if err != nil {
				return "", fmt.Errorf("%d: %w", n+1, err)
			}
			p = &pending{at: at}
			words = words[1:]
			if len(words) == 1 && words[0] == "together" {
				p.request.Together = true
				continue
			}
		}
		take, same, err := parseTake(prefix, words)
		if err != nil {
			return "", fmt.Errorf("%d: %w", n+1, err)
		}
		if k := len(p.request.Takes); k > 0 {
			take.Member = p.request.Takes[k-1].Member
			if !same {
				take.Member++
			}
		}
		p.request.Takes = append(p.request.Takes, take)
		p.lines = append(p.lines, n)
	}
	if err := flush(); err != nil {
		return "", fmt.Errorf("%d: %w", len(lines), err)
	}
	return strings.Join(lines, "\n"), nil
}

func parseTime(s string) (time.Time, error) {
	if strings.Contains(s, "T") {
		return time.Parse(time.RFC3339Nano, s)
	}
	d, err := time.ParseDuration(s)
	return epoch.Add(d), err
}

func parseTake(prefix string, words []string) (take backend.Take, same bool, err error) {
	if len(words) < 3 {
		return take, false, fmt.Errorf("a take is KEY LIMIT HITS, not %q", words)
	}
	if take.Limit, err = parseLimit(words[1]); err != nil {
		return take, false, err
	}
	take.Key = key(prefix, words[0], take.Limit)
	if words[2] == "max" {
		take.Hits = backend.MaxHits
	} else if take.Hits, err = strconv.ParseInt(words[2], 10, 64); err != nil {
		return take, false, err
	}
	for _, word := range words[3:] {
		switch word {
		case "count_denied":
			take.CountDenied = true
		case "any":
			take.Vote = backend.VoteAny
		case "none":
			take.Vote = backend.VoteNone
		case "same":
			same = true
		default:
			if err := parseReservation(&take, word); err != nil {
				return take, false, err
			}
		}
	}
	return take, same, nil
}

// parseReservation reads one word about a reservation.
func parseReservation(take *backend.Take, word string) error {
	name, value, _ := strings.Cut(word, ":")
	op, begins := map[string]backend.ReservationOp{
		"reserve": backend.OpReserve, "report": backend.OpCommit, "commit": backend.OpCommit, "extend": backend.OpExtend,
	}[name]
	if begins {
		take.Reservation = &backend.Reservation{Op: op, Final: name == "commit"}
		copy(take.Reservation.ID[:], value)
		if op != backend.OpCommit {
			take.Reservation.TTL = time.Minute.Microseconds()
		}
		return nil
	}
	var err error
	switch {
	case take.Reservation == nil:
		return fmt.Errorf("unknown word %q", word)
	case name == "unknown":
		take.Reservation.ChargeUnknown = true
	case name == "least":
		take.Reservation.Least, err = strconv.ParseInt(value, 10, 64)
	case name == "ttl":
		var d time.Duration
		d, err = time.ParseDuration(value)
		take.Reservation.TTL = d.Microseconds()
	default:
		return fmt.Errorf("unknown word %q", word)
	}
	return err
}

// reservationText describes the result of an operation on a reservation.
func reservationText(h *backend.Reservation) string {
	switch {
	case h == nil:
		return ""
	case h.Result == backend.ReservationUnknown:
		return " unknown"
	case h.Result == backend.TooManyReservations:
		return " too many"
	case h.Result == backend.ReservationTooLarge:
		return " too large"
	case h.Op == backend.OpCommit || h.Op == backend.OpReserve && h.Granted == 0:
		return ""
	}
	until := time.UnixMicro(h.Expires).Sub(epoch)
	if h.Op == backend.OpExtend {
		return fmt.Sprintf(" until %v", until)
	}
	return fmt.Sprintf(" reserved %d until %v", h.Granted, until)
}

func outcomeText(o *backend.Outcome) string {
	verdict, retry := "ok  ", ""
	if !o.Allowed {
		verdict, retry = "over", " retry "+o.RetryAfter.String()
		if o.RetryAfter == backend.Never {
			retry = " retry never"
		}
	}
	if o.Allowed && o.RetryAfter != 0 {
		retry = " retry " + o.RetryAfter.String() + " although it passed"
	}
	text := fmt.Sprintf("%s %d>%d%s reset %v", verdict, o.Before, o.Used, retry, o.ResetAfter)
	if o.Delay != 0 {
		text += " delay " + o.Delay.String()
	}
	if o.Failed || o.Cached {
		text += fmt.Sprintf(" failed=%v cached=%v", o.Failed, o.Cached)
	}
	return text
}

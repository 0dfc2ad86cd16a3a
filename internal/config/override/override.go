package override

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// Override is the record of one override.
type Override struct {
	Identity
	Numbers

	Reason string // why, for people; at most MaxText bytes
	Author string // who made the last change; at most MaxText bytes

	Version int64     // source's version when this record was last written; 0 if never
	Changed time.Time // time of that write
}

// Identity names the counters that an override is for. A source has at most one override of an identity.
type Identity struct {
	Domain string
	Rule   string // the rule's path
	Limit  string // the name of one of the rule's limits; empty means the only one, or all
	// the descriptor that the client sends, with grouped values if the rule groups them
	Entries []descriptor.Entry
}

// Numbers replace a rule's numbers.
type Numbers struct {
	Kind     Kind
	Requests uint64 // Replace: requests per unit. Scale: the factor in millionths
	// Replace: the burst of a bucket; 0 means the rule's, or Requests where the rule's is as large as its requests
	Burst uint64

	NotBefore int64 // seconds since the Unix epoch; 0 means immediately
	ExpiresAt int64 // seconds since the Unix epoch; 0 means never
}

// Kind is the effect of an override on a limit.
type Kind uint8

// The kinds.
const (
	Replace   Kind = iota + 1 // other numbers
	Scale                     // the rule's numbers times a factor
	Unlimited                 // every request passes, and nothing is counted
	Blocked                   // no request passes, and nothing is counted
)

// Bounds of a record.
const (
	MaxText    = 512       // bytes of Reason and of Author
	MaxEntries = 32        // entries of a descriptor
	MaxName    = 4096      // bytes of the domain, of the path, of a key and of a value
	MaxFactor  = 1000      // largest factor of Scale
	One        = 1_000_000 // a factor of 1

	maxTime = 253_402_300_799 // the last second of the year 9999
)

// Validate checks everything that does not depend on rules.
func (o *Override) Validate() error {
	switch {
	case o.Domain == "":
		return errors.New("domain: it is missing")
	case o.Rule == "":
		return errors.New("rule: it is missing")
	case len(o.Entries) == 0:
		return errors.New("entries: there are none")
	case len(o.Entries) > MaxEntries:
		return fmt.Errorf("entries: more than %d", MaxEntries)
	case len(o.Reason) > MaxText:
		return fmt.Errorf("reason: more than %d bytes", MaxText)
	case len(o.Author) > MaxText:
		return fmt.Errorf("author: more than %d bytes", MaxText)
	case max(len(o.Domain), len(o.Rule), len(o.Limit)) > MaxName:
		return fmt.Errorf("domain, rule or limit: more than %d bytes", MaxName)
	}
	for _, text := range []struct{ what, text string }{{"domain", o.Domain}, {"rule", o.Rule}, {"limit", o.Limit},
		{"reason", o.Reason}, {"author", o.Author}} {
		if !utf8.ValidString(text.text) {
			return fmt.Errorf("%s: it is not UTF-8", text.what)
		}
	}
	for i, e := range o.Entries {
		if !utf8.ValidString(e.Key) || !utf8.ValidString(e.Value) {
			return fmt.Errorf("entries[%d]: it is not UTF-8", i)
		}
		if max(len(e.Key), len(e.Value)) > MaxName {
			return fmt.Errorf("entries[%d]: a key or a value of more than %d bytes", i, MaxName)
		}
	}
	return o.Numbers.validate()
}

func (n *Numbers) validate() error {
	switch n.Kind {
	case Replace:
		if max(n.Requests, n.Burst) > descriptor.MaxRequests {
			return fmt.Errorf("requests_per_unit and burst: they must be at most %d", descriptor.MaxRequests)
		}
	case Scale:
		if n.Requests == 0 || n.Requests > MaxFactor*One {
			return fmt.Errorf("factor: it must be above 0 and at most %d", MaxFactor)
		}
	case Unlimited, Blocked:
		if n.Requests != 0 {
			return errors.New("requests_per_unit: it has no meaning together with unlimited or blocked")
		}
	default:
		return errKind
	}
	if n.Burst != 0 && n.Kind != Replace {
		return errors.New("burst: it belongs to requests_per_unit")
	}
	if min(n.NotBefore, n.ExpiresAt) < 0 || max(n.NotBefore, n.ExpiresAt) > maxTime {
		return fmt.Errorf("not_before and expires_at: %w", errYears)
	}
	if n.ExpiresAt != 0 && n.ExpiresAt <= n.NotBefore {
		return errors.New("expires_at: it is not after not_before")
	}
	return nil
}

var (
	errKind  = errors.New("exactly one of requests_per_unit, factor, unlimited and blocked is needed")
	errYears = errors.New("it must lie between the years 1970 and 9999")
)

// Choose sets the Kind and its number, of which exactly one must be given. A factor of 0 is not given.
func (n *Numbers) Choose(requests *uint64, factor float64, unlimited, blocked bool) error {
	given := 0
	choose := func(is bool, k Kind, number uint64) {
		if is {
			given++
			n.Kind, n.Requests = k, number
		}
	}
	choose(unlimited, Unlimited, 0)
	choose(blocked, Blocked, 0)
	if factor != 0 {
		millionths := math.Round(factor * One)
		if !(millionths >= 1 && factor <= MaxFactor) {
			return fmt.Errorf("factor: it must be at least 0.000001 and at most %d", MaxFactor)
		}
		choose(true, Scale, uint64(millionths))
	}
	if requests != nil {
		choose(true, Replace, *requests)
	}
	if given != 1 {
		return errKind
	}
	return nil
}

// Second returns a time of Numbers in seconds since the Unix epoch.
func Second(t time.Time) (int64, error) {
	switch at := t.Unix(); {
	case t.Nanosecond() != 0:
		return 0, errors.New("it must be a whole second")
	case at <= 0 || at > maxTime:
		return 0, errYears
	default:
		return at, nil
	}
}

// InForce reports whether the override applies at a time in seconds since the Unix epoch.
func (n *Numbers) InForce(now int64) bool {
	return now >= n.NotBefore && (n.ExpiresAt == 0 || now < n.ExpiresAt)
}

// Words describes the numbers and the time in which they apply, such as "5000 requests per unit until
// 2026-12-01T00:00:00Z".
func (n *Numbers) Words() string {
	var text string
	switch n.Kind {
	case Replace:
		text = fmt.Sprintf("%d requests per unit", n.Requests)
		if n.Burst != 0 {
			text += fmt.Sprintf(", burst %d", n.Burst)
		}
	case Scale:
		text = "the rule's numbers times " + Factor(n.Requests)
	case Unlimited:
		text = "unlimited"
	case Blocked:
		text = "blocked"
	}
	for _, t := range []struct {
		word string
		at   int64
	}{{" from ", n.NotBefore}, {" until ", n.ExpiresAt}} {
		if t.at != 0 {
			text += t.word + time.Unix(t.at, 0).UTC().Format(time.RFC3339)
		}
	}
	return text
}

// Apply replaces the numbers of a rule's limit by at most most. It returns a *descriptor.LimitError, and leaves the
// limit as it was, if it cannot be counted with these numbers. Blocked makes a limit that denies everything and counts
// nothing. Unlimited has no limit: it changes nothing.
func (n *Numbers) Apply(l *descriptor.Limit, most uint64) error {
	was := *l
	switch n.Kind {
	case Blocked:
		*l = descriptor.Limit{Name: l.Name, Window: l.Window, CountDenied: descriptor.DeniedDrop}
	case Scale:
		l.Requests, l.Burst = scaled(l.Requests, n.Requests), scaled(l.Burst, n.Requests)
	case Replace:
		l.Requests = n.Requests
		switch {
		case n.Burst != 0:
			l.Burst = n.Burst
		case was.Burst == was.Requests:
			l.Burst = n.Requests
		}
	default:
		return nil
	}
	l.Requests = min(l.Requests, most)
	if l.Has(descriptor.SettingBurst) {
		l.Burst = min(l.Burst, most)
	}
	if err := l.Compile(); err != nil {
		*l = was
		return err //nolint:wrapcheck // the reason is complete: Compile is about this limit
	}
	return nil
}

// scaled returns n times a factor in millionths, rounded down, but not to 0.
func scaled(n, factor uint64) uint64 {
	if n == 0 {
		return 0
	}
	high, low := bits.Mul64(n, factor)
	if high >= One {
		return descriptor.MaxRequests
	}
	product, _ := bits.Div64(high, low, One)
	return min(max(product, 1), descriptor.MaxRequests)
}

// String is the identity in readable form, the same for equal identities only.
func (i *Identity) String() string {
	var b strings.Builder
	b.WriteString(escaper.Replace(i.Rule))
	b.WriteByte('|')
	b.WriteString(escaper.Replace(i.Limit))
	for _, e := range i.Entries {
		b.WriteByte('|')
		b.WriteString(escaper.Replace(e.Key))
		b.WriteByte('=')
		b.WriteString(escaper.Replace(e.Value))
	}
	return b.String()
}

// Attrs are the identity in a log.
func (i *Identity) Attrs() []slog.Attr {
	all := []slog.Attr{slog.String("domain", logging.Shorten(i.Domain)), slog.String("rule", logging.Shorten(i.Rule))}
	if i.Limit != "" {
		all = append(all, slog.String("limit", logging.Shorten(i.Limit)))
	}
	return append(all, slog.String("entries", ShortText(i.Entries)))
}

var escaper = strings.NewReplacer(`\`, `\\`, `|`, `\|`, `=`, `\=`)

// maxLogged bounds the text of a descriptor in a log, in bytes.
const maxLogged = 256

// ShortText is a descriptor for a log, truncated if it is long: key=value, key=value.
func ShortText(entries []descriptor.Entry) string {
	var b strings.Builder
	for i := range entries {
		if b.Len() > maxLogged {
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(logging.Shorten(entries[i].Key))
		b.WriteByte('=')
		b.WriteString(logging.Shorten(entries[i].Value))
	}
	return logging.Shorten(b.String())
}

package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Replica is the status record of a replica.
type Replica struct {
	ID      string    `json:"-"` // random, new at each start
	Host    string    `json:"host"`
	Version string    `json:"version"` // version of the program
	Started time.Time `json:"started"`
	Stopped bool      `json:"stopped,omitempty"` // the replica has reported that it stops

	Rules     Rules     `json:"rules"`
	Overrides Overrides `json:"overrides"`
	Redis     []Redis   `json:"redis,omitempty"`
	Caches    []Cache   `json:"caches,omitempty"`
	PerSecond Rates     `json:"per_second"` // over the last Every

	Decisions Decisions `json:"-"` // decisions since it started; set only for this replica
	State     State     `json:"-"`
	Seen      time.Time `json:"-"` // when it last wrote, by the clock of the reader

	RulesDiffer bool `json:"-"` // whether its rules differ from those of most replicas
	// whether its overrides differ from those of most replicas, or are older than another replica's
	OverridesDiffer bool `json:"-"`
}

// State is whether a replica runs.
type State uint8

// The states of a replica.
const (
	Live    State = iota
	Stopped       // it has recorded that it stops
	Gone          // it was killed, or cannot reach Redis
)

func (s State) String() string { return [...]string{"live", "stopped", "gone"}[s] }

// Rules are the active rules.
type Rules struct {
	Checksum uint64    `json:"checksum"` // 0 before the first rules are loaded
	Since    time.Time `json:"since"`    // time at which these became active
	Count    int       `json:"count"`
	Files    int       `json:"files"`
	Stale    int       `json:"stale,omitempty"`    // files whose last good version is in use
	Rejected int       `json:"rejected,omitempty"` // files of which nothing is in use
}

// Overrides are the active overrides.
type Overrides struct {
	Source  string `json:"source,omitempty"` // OverridesInRedis, OverridesInFile, or empty if overrides are off
	Version int64  `json:"version,omitempty"`
	Earlier int64  `json:"earlier,omitempty"` // the version that it had two beats before, or a lower one
	Count   int    `json:"count,omitempty"`
	Error   string `json:"error,omitempty"` // why the source cannot be reached; empty if it can
}

// The sources of overrides.
const (
	OverridesInRedis = "redis"
	OverridesInFile  = "file"
)

// Redis is the state of one Redis as a replica sees it.
type Redis struct {
	Name string `json:"name"`
	// nodes that do not answer, so that their breakers are open; only some of them if there are many
	Open        []string `json:"open,omitempty"`
	Connections uint64   `json:"connections"`
}

// Cache is something that a replica remembers.
type Cache struct {
	Name    string `json:"name"`
	Entries uint64 `json:"entries"`
}

// Decisions are numbers of requests.
type Decisions struct{ Passed, Denied, Failed, OnError uint64 }

// Rates are requests per second.
type Rates struct {
	Passed  float64 `json:"passed"`
	Denied  float64 `json:"denied"`
	Failed  float64 `json:"failed"`   // the backend could not answer
	OnError float64 `json:"on_error"` // passed or denied without the backend; these also count as Passed or Denied
}

// since returns the rates between two numbers of decisions.
func (d Decisions) since(before Decisions, took time.Duration) Rates {
	rate := func(now, before uint64) float64 {
		if now <= before || took <= 0 {
			return 0
		}
		return float64(now-before) / took.Seconds()
	}
	return Rates{rate(d.Passed, before.Passed), rate(d.Denied, before.Denied), rate(d.Failed, before.Failed),
		rate(d.OnError, before.OnError)}
}

// Size limits of a replica's record. Together they keep a list of 1,000 replicas below the 4 MiB that a gRPC client
// accepts.
const (
	maxRecord   = 8 << 10 // bytes of the record in Redis
	maxHost     = 128     // bytes
	maxVersion  = 64
	maxError    = 200
	maxName     = 32 // bytes in the name of a Redis or a cache
	maxNode     = 100
	maxNodes    = 4
	maxRedis    = 4
	maxCaches   = 8
	maxPerSec   = 1e12
	maxCount    = 1e12
	oldestStart = 1970 // year
)

// cut makes a text short and printable.
func cut(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// encode returns a replica's entry as it is written, within the bounds.
func (p Replica) encode() []byte {
	p.Host, p.Version, p.Overrides.Error = cut(p.Host, maxHost), cut(p.Version, maxVersion),
		cut(p.Overrides.Error, maxError)
	p.Redis = slices.Clone(p.Redis[:min(len(p.Redis), maxRedis)])
	for i := range p.Redis {
		r := &p.Redis[i]
		r.Name, r.Open = cut(r.Name, maxName), slices.Clone(r.Open[:min(len(r.Open), maxNodes)])
		for j := range r.Open {
			r.Open[j] = cut(r.Open[j], maxNode)
		}
	}
	p.Caches = slices.Clone(p.Caches[:min(len(p.Caches), maxCaches)])
	for i := range p.Caches {
		p.Caches[i].Name = cut(p.Caches[i].Name, maxName)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(p) // cannot fail: p holds only texts, numbers and times between the years 0 and 9999
	return bytes.TrimSpace(b.Bytes())
}

var isID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// decode decodes a record that a replica wrote.
func decode(id, text string) (Replica, error) {
	var p Replica
	if !isID.MatchString(id) || len(text) > maxRecord {
		return p, errors.New("it is not the entry of a replica")
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("read the entry of a replica: %w", err)
	}
	p.ID = id
	return p, p.check()
}

var errBounds = errors.New("it is outside the bounds of what a replica writes")

func (p *Replica) check() error {
	ok := len(p.Host) <= maxHost && len(p.Version) <= maxVersion && len(p.Redis) <= maxRedis &&
		len(p.Caches) <= maxCaches &&
		isTime(p.Started) && (p.Rules.Since.IsZero() || isTime(p.Rules.Since)) &&
		areCounts(p.Rules.Count, p.Rules.Files, p.Rules.Stale, p.Rules.Rejected, p.Overrides.Count) &&
		slices.Contains([]string{"", OverridesInRedis, OverridesInFile}, p.Overrides.Source) &&
		len(p.Overrides.Error) <= maxError
	for _, r := range p.Redis {
		ok = ok && len(r.Name) <= maxName && len(r.Open) <= maxNodes && r.Connections <= maxCount
		for _, node := range r.Open {
			ok = ok && len(node) <= maxNode
		}
	}
	for _, c := range p.Caches {
		ok = ok && len(c.Name) <= maxName && c.Entries <= maxCount
	}
	for _, rate := range []float64{p.PerSecond.Passed, p.PerSecond.Denied, p.PerSecond.Failed, p.PerSecond.OnError} {
		ok = ok && rate >= 0 && rate <= maxPerSec
	}
	if !ok {
		return errBounds
	}
	return nil
}

func isTime(t time.Time) bool { return t.Year() >= oldestStart && t.Year() <= 9999 }

func areCounts(all ...int) bool {
	return !slices.ContainsFunc(all, func(n int) bool { return n < 0 || n > maxCount })
}

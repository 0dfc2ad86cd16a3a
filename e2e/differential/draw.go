package differential

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// drawer draws a World. Everything that it draws follows from the seed.
type drawer struct {
	*rand.Rand
	start   time.Time
	shapes  []shape
	domains []string
	trees   []*descriptor.Tree // by version
	ids     [][16]byte         // of reservations
	names   []string           // the same, as entries name them

	tried, kept int // descriptors that were drawn, and drawn descriptors that the rule language accepts
}

// shape says what to send so that a rule matches.
type shape struct {
	domain   string
	levels   []level
	reserves bool
}

// level is one level of a rule, with entries that match it, and others.
type level struct {
	keys   []string
	values []string
	other  []string
}

// Draw returns the World of a seed.
func Draw(seed uint64, steps int) *World {
	d := &drawer{Rand: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
	w := &World{Seed: seed}
	d.start = pick(d, starts...).Add(time.Duration(d.Int64N(int64(time.Minute))).Truncate(time.Microsecond))
	w.Start = d.start
	w.Options = d.options()
	for range d.between(1, 3) {
		d.domains = append(d.domains, fmt.Sprint("d", len(d.domains)))
	}
	for range 2 {
		w.Versions = append(w.Versions, Version{d.files(&w.Options), d.settings()})
	}
	for range 4 {
		var id [16]byte
		for i := range id {
			id[i] = byte(d.Uint32())
		}
		d.ids = append(d.ids, id)
	}
	d.names = []string{"r", "", "0123456789abcdef", "1e2c3d4e-0000-4000-8000-0123456789ab", "1E2C3D4E-0000-4000-8000-0123456789AB", "a name with more bytes than an id has"}
	d.steps(w, steps)
	return w
}

// starts are moments at which something ends: a day, a month, a year, a weekend, summer time.
var starts = []time.Time{
	time.Date(2026, 3, 28, 23, 59, 30, 0, time.UTC),
	time.Date(2026, 3, 29, 0, 59, 30, 0, time.UTC),
	time.Date(2026, 12, 31, 23, 59, 30, 0, time.UTC),
	time.Date(2026, 7, 4, 21, 59, 30, 0, time.UTC), // a Saturday
	time.Date(2027, 2, 28, 22, 59, 30, 0, time.UTC),
	time.Date(2026, 9, 16, 12, 0, 0, 0, time.UTC),
	time.Date(2028, 2, 29, 7, 59, 30, 0, time.UTC),
}

func (d *drawer) options() Options {
	o := Options{
		NoMetrics: d.oneIn(6), MaxSeries: pick(d, 10_000, 10_000, 3),
		Local:     !d.oneIn(4),
		KeyPrefix: pick(d, "", "", "p:"), LyftKeys: d.oneIn(5), CalendarMonths: d.oneIn(4),
	}
	if !o.NoMetrics || d.oneIn(2) { // else some decisions are plain
		o.HotKeys, o.Usage, o.Events = d.oneIn(2), d.oneIn(2), !d.oneIn(3)
	}
	return o
}

func (d *drawer) settings() Settings {
	return Settings{
		Shadow: d.oneIn(10), Quota: d.oneIn(10), StopWhenOver: d.oneIn(5), Admission: uint8(d.between(0, 2)),
		OnError: uint8(d.between(0, 4)), Replicas: pick(d, 0, 0, 1, 2, 3),
		Headers: pick[uint8](d, 0, 1, 2, 4, 8, 15), OwnNames: d.oneIn(4),
		CalendarMonths: d.oneIn(4), HideShadow: d.oneIn(4), Metadata: d.oneIn(3), Explain: d.oneIn(4), NearLimitRatio: pick[float32](d, 0, 0, 0.5, 1),
	}
}

// files draws a rule file for each domain, and remembers what matches.
func (d *drawer) files(o *Options) (texts []string) {
	var files []config.File
	for _, domain := range d.domains {
		file := d.file(domain)
		text, err := json.Marshal(file)
		if err != nil {
			panic(err) // maps of texts and numbers always have a JSON
		}
		texts = append(texts, string(text))
		files = append(files, config.File{Name: domain, Data: text})
	}
	tree, errs := config.Compile(files, config.CompileOptions{Tree: descriptor.Options{CalendarMonths: o.CalendarMonths}})
	if len(errs) > 0 {
		panic(fmt.Sprintf("seed of accepted descriptors: %v\n%s", errs[0], texts))
	}
	d.trees = append(d.trees, tree)
	return texts
}

// tree returns the tree of a file, or nil if the file has errors.
func compiles(file object) bool {
	text, err := json.Marshal(file)
	if err != nil {
		panic(err)
	}
	_, errs := config.Compile([]config.File{{Name: "one", Data: text}}, config.CompileOptions{})
	return len(errs) == 0
}

// Small draws.

func (d *drawer) oneIn(n int) bool { return d.IntN(n) == 0 }

func (d *drawer) between(least, most int) int { return least + d.IntN(most-least+1) }

func pick[T any](d *drawer, from ...T) T { return from[d.IntN(len(from))] }

// requests draws a limit that is soon used up, or a limit that is too large to be used up.
func (d *drawer) requests() uint64 {
	switch d.IntN(20) {
	case 0:
		return 0
	case 1:
		return pick[uint64](d, 100, 1000, math.MaxUint32, 1<<53-1)
	default:
		return uint64(d.between(1, 9))
	}
}

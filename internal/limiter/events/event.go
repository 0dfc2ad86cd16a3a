package events

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Kind is the reason for an event. To add one, add a constant and its name.
type Kind uint8

// The kinds.
const (
	Denial   Kind = iota // a limit denied a request
	Exceeded             // a soft limit is exceeded, and the request passed
	Warning              // the hits in use reached a limit's warn_at
	Penalty              // a penalty has started
	kinds
)

var kindNames = [kinds]string{Denial: "denial", Exceeded: "exceeded", Warning: "warning", Penalty: "penalty"}

func (k Kind) String() string { return kindNames[k] }

// cloudType is the CloudEvents type of a kind. Its end is the version of the data's form.
func (k Kind) cloudType() string { return "io.github.ratelimitd." + kindNames[k] + ".v1" }

// Event is a decision's report about one limit.
type Event struct {
	Time    time.Time
	Domain  string
	Rule    string             // path of the rule
	Entries []descriptor.Entry // entries of the descriptor, with grouped values
	Limit   descriptor.Limit

	Capacity   uint64        // hits
	Hits       int64         // hits that the request asked for
	Used       int64         // hits in use after the request
	RetryAfter time.Duration // time until the same request would pass; negative if it never does; 0 if it passed

	Override bool   // the numbers come from an operator's override
	Blocked  bool   // the override denies everything
	Degraded string // how on_error answered instead of Redis; empty if Redis answered

	due Due
}

// Due identifies an event to send: its kind, counter and period. The zero value is not an event.
type Due struct {
	kind       Kind
	counter    [sha256.Size]byte // hash of the counter's key
	of         ofLimit
	start, end int64 // start and end of the period, in microseconds since the Unix epoch
}

// source is the source of all events: replicas that share counters send the same.
const source = "/ratelimitd"

// id is the same in all replicas, and for no other event of the same source.
func (d *Due) id() string {
	b := append(d.counter[:], d.kind.cloudType()...)
	if d.of != (ofLimit{}) {
		b = append(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, d.of.requests), d.of.burst), d.of.class)
		b = append(b, d.of.name...)
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(b, uint64(d.start)))
	return hex.EncodeToString(sum[:16])
}

// period returns the period of a counter's events. It is the window of a limit that counts in windows on the clock or
// calendar. For other limits, and for windows that are shorter than least, it is a part of the time since the Unix
// epoch that is as long as the window or least, whichever is longer. ends is when the window ends by the clock of the
// store, which may differ from now.
func period(l *descriptor.Limit, now, ends int64, least time.Duration) (start, end int64) {
	length := l.Window.Length()
	if l.WindowEnds() && !l.FirstHit && length >= least {
		if ends > now {
			now = ends - length.Microseconds()/2 // inside the same window, for any difference between the clocks
		}
		return l.Window.Bounds(now)
	}
	step := max(length, least).Microseconds()
	start = now - now%step
	return start, start + step
}

// cloudEvent is the JSON format of CloudEvents 1.0. docs/do/events.md describes the data.
type cloudEvent struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            string    `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            eventData `json:"data"`
}

type eventData struct {
	Domain          string      `json:"domain"`
	Rule            string      `json:"rule"`
	Name            string      `json:"name,omitempty"`
	Entries         []entryData `json:"entries"`
	Counter         string      `json:"counter"`
	PeriodStart     string      `json:"period_start"`
	PeriodEnd       string      `json:"period_end"`
	Algorithm       string      `json:"algorithm"`
	RequestsPerUnit uint64      `json:"requests_per_unit"`
	WindowSeconds   float64     `json:"window_seconds"`
	Capacity        uint64      `json:"capacity"`
	Hits            int64       `json:"hits"`
	Used            int64       `json:"used"`
	WarnAt          uint8       `json:"warn_at,omitempty"`
	RetryAfterMs    *int64      `json:"retry_after_ms,omitempty"`
	Override        bool        `json:"override,omitempty"`
	Blocked         bool        `json:"blocked,omitempty"`
	Degraded        string      `json:"degraded,omitempty"`
}

type entryData struct {
	Key   string  `json:"key"`
	Value *string `json:"value,omitempty"`
}

// MaxEntryBytes bounds the sum of EntryBytes of an event's entries. It keeps an event far below the 64 KiB that every
// receiver of CloudEvents must accept.
const MaxEntryBytes = 4 << 10

// EntryBytes returns roughly the size of an entry in memory and in an event: its text plus 32 bytes of overhead.
func EntryBytes(key, value string) int { return 32 + len(key) + len(value) }

// encode returns an event in the JSON format, without a line break. Text that is not UTF-8 has replacement characters.
func (s *Sink) encode(e *Event) []byte {
	b, err := json.Marshal(&cloudEvent{
		SpecVersion:     "1.0",
		ID:              e.due.id(),
		Source:          source,
		Type:            e.due.kind.cloudType(),
		Subject:         e.Rule,
		Time:            e.Time.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json",
		Data: eventData{
			Domain:          e.Domain,
			Rule:            e.Rule,
			Name:            e.Limit.Name,
			Entries:         s.entries(e),
			Counter:         hex.EncodeToString(e.due.counter[:16]),
			PeriodStart:     instant(e.due.start),
			PeriodEnd:       instant(e.due.end),
			Algorithm:       e.Limit.Algorithm.String(),
			RequestsPerUnit: e.Limit.Requests,
			WindowSeconds:   e.Limit.Window.LengthAt(time.UnixMicro(e.due.start)).Seconds(),
			Capacity:        e.Capacity,
			Hits:            e.Hits,
			Used:            e.Used,
			WarnAt:          e.Limit.WarnAt,
			RetryAfterMs:    millis(e.RetryAfter),
			Override:        e.Override,
			Blocked:         e.Blocked,
			Degraded:        e.Degraded,
		},
	})
	if err != nil {
		panic(fmt.Sprintf("an event has only text and numbers, which JSON can express: %v", err))
	}
	return b
}

// entries returns the entries for an event. They have values only if the operator wants them.
func (s *Sink) entries(e *Event) []entryData {
	all := make([]entryData, len(e.Entries))
	for i := range e.Entries {
		all[i].Key = e.Entries[i].Key
		if s.opts.Values {
			all[i].Value = &e.Entries[i].Value
		}
	}
	return all
}

func instant(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano) }

// millis returns a time in milliseconds, rounded up, or nil if it is not positive.
func millis(d time.Duration) *int64 {
	if d <= 0 {
		return nil
	}
	ms := int64((d + time.Millisecond - 1) / time.Millisecond)
	return &ms
}

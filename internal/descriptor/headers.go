package descriptor

import (
	"strconv"
	"strings"
)

// Headers are the headers that clients of a domain get.
type Headers struct {
	Families HeaderFamilies
	Own      []OwnHeader // headers that the rule file defines, in the order of the answer
}

// String returns the headers as a rule file writes them, or "" for nil.
func (h *Headers) String() string {
	if h == nil {
		return ""
	}
	var items []string
	for i, name := range HeaderFamilyNames {
		if h.Families&(1<<i) != 0 {
			items = append(items, name)
		}
	}
	for _, o := range h.Own {
		items = append(items, o.String())
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// Headers that only the service may send.
const (
	DelayHeader    = "x-ratelimit-delay-ms" // how long a request must wait, in milliseconds
	DegradedHeader = "x-ratelimit-degraded" // how on_error answered without a store
	WarningHeader  = "x-ratelimit-warning"  // the limits that are almost exceeded, and the soft limits that are
)

// OwnHeader is a header that a rule file defines. Each value is written as a template, so that any service's headers
// can be sent.
//
// It is left out of an answer if one of its fields has no value there.
type OwnHeader struct {
	Name string
	Of   []string // names of the limits that it may describe; empty for the limit that all headers describe
	When HeaderWhen
	Text []HeaderPart // the value
}

// HeaderWhen selects the answers that have a header.
type HeaderWhen uint8

// The answers. HeaderAlways is the zero value.
const (
	HeaderAlways HeaderWhen = iota
	HeaderPassed
	HeaderDenied
)

// HeaderWhenNames are the names in rule files; HeaderAlways has no name.
var HeaderWhenNames = []string{HeaderPassed: "passed", HeaderDenied: "denied"}

// HeaderPart is a piece of a header's value: a text, and the field behind it.
type HeaderPart struct {
	Text  string
	Field HeaderField // 0 without a field
}

// HeaderField is a placeholder in a header's value.
type HeaderField uint8

// The fields. They describe one limit, except for FieldRetryAfter, which is about the request.
const (
	FieldNone  HeaderField = iota
	FieldLimit             // requests_per_unit; of concurrency: max_in_flight
	// most hits that can be in use at the same time: the size of a bucket, otherwise the same as FieldLimit
	FieldCapacity
	FieldUsed        // FieldCapacity without FieldRemaining
	FieldUsedPercent // the same in percent of FieldCapacity, rounded down
	FieldRemaining   // hits that still pass
	FieldReset       // seconds until the window ends or nothing is in use any more, rounded up
	FieldResetUnix   // the same as a Unix time
	FieldWindow      // length in seconds; not for concurrency limits
	FieldName        // name of the limit; not for unnamed limits
	FieldRetryAfter  // seconds until the denied request would pass, rounded up; none if it passes, or never will
)

// HeaderFieldNames are the names in rule files; FieldNone has no name.
var HeaderFieldNames = []string{
	FieldLimit: "limit", FieldCapacity: "capacity", FieldUsed: "used", FieldUsedPercent: "used_percent",
	FieldRemaining: "remaining", FieldReset: "reset",
	FieldResetUnix: "reset_unix", FieldWindow: "window", FieldName: "name", FieldRetryAfter: "retry_after",
}

// MaxNameInHeader is the most characters of a limit's name that a header contains. Names in rule files may have any
// length.
const MaxNameInHeader = 128

// MaxHeaderInteger is the largest integer of structured fields, which the headers of the IETF draft are: 15 digits. A
// client must ignore a field with a larger one.
const MaxHeaderInteger = 999_999_999_999_999

// Longest returns the most characters that stand for the field.
func (f HeaderField) Longest() int {
	switch f {
	case FieldNone:
		return 0
	case FieldName:
		return MaxNameInHeader
	default:
		return len("9007199254740991") // MaxRequests; times are shorter
	}
}

var escapeBraces = strings.NewReplacer("{", "{{", "}", "}}")

// Value returns the value as a rule file writes it.
func (h *OwnHeader) Value() string {
	var b strings.Builder
	for _, p := range h.Text {
		b.WriteString(escapeBraces.Replace(p.Text))
		if p.Field != FieldNone {
			b.WriteString("{" + HeaderFieldNames[p.Field] + "}")
		}
	}
	return b.String()
}

// String returns the header as a rule file writes it.
func (h OwnHeader) String() string {
	s := "{name: " + h.Name + ", value: " + strconv.Quote(h.Value())
	for i, name := range h.Of {
		before := ", "
		if i == 0 {
			before = ", of: ["
		}
		s += before + strconv.Quote(name)
	}
	if len(h.Of) > 0 {
		s += "]"
	}
	if h.When != HeaderAlways {
		s += ", when: " + HeaderWhenNames[h.When]
	}
	return s + "}"
}

// HeaderFamilies is a set of header families. A family is a convention to send a client its limits in headers.
type HeaderFamilies uint8

// The families.
const (
	HeadersReference HeaderFamilies = 1 << iota // RateLimit-Limit, -Remaining and -Reset, or names set by the operator
	// X-RateLimit-Limit with all policies, -Remaining and -Reset, as Envoy writes them
	HeadersDraft03
	HeadersIETF       // RateLimit-Policy and RateLimit, the structured fields of the IETF draft
	HeadersRetryAfter // Retry-After on denials
)

// HeaderFamilyNames are the names of the families in rule files and flags, in the order of their bits.
var HeaderFamilyNames = []string{"ratelimit", "x-ratelimit", "ietf", "retry-after"}

// ParseHeaderFamily returns the family with that name, or 0 for an unknown name.
func ParseHeaderFamily(name string) HeaderFamilies {
	for i, n := range HeaderFamilyNames {
		if n == name {
			return 1 << i
		}
	}
	return 0
}

package filter

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// policy is one item of rate_limits. It builds one descriptor of a request, or none.
type policy struct {
	stage   uint32
	actions []action
	hits    hits
	refund  bool
	limit   *limiter.RequestLimit // nil for the rules' limit
}

// action adds an entry to the descriptor that is being built, or none if the item allows that. It returns false if the
// request has no such descriptor.
type action func(*building) bool

// hits returns how many hits a descriptor adds, or false if the request has no such descriptor. Nil adds the same hits
// as a request without a number.
type hits func(*building) (uint64, bool)

// building builds the descriptors of a request. Values that Envoy lends are copied into one text.
type building struct {
	stream        Stream
	sourceCluster string
	descriptors   []limiter.Descriptor
	entries       []descriptor.Entry
	spans         []span // place of each entry's value in text
	text          []byte
}

// span is the place of an entry's value in the text. from is -1 if the entry has its value already.
type span struct{ from, to int }

const constant = -1

func (b *building) add(key, value string) bool {
	b.entries = append(b.entries, descriptor.Entry{Key: key, Value: value})
	b.spans = append(b.spans, span{from: constant})
	return true
}

// copied adds an entry whose value has been appended to the text.
func (b *building) copied(key string, from int) bool {
	b.entries = append(b.entries, descriptor.Entry{Key: key})
	b.spans = append(b.spans, span{from: from, to: len(b.text)})
	return true
}

func (b *building) copy(key, value string) bool {
	from := len(b.text)
	b.text = append(b.text, value...)
	return b.copied(key, from)
}

// build builds the descriptors of all policies of a stage.
func (b *building) build(policies []policy, stage uint32) {
	var room [16]int
	ends := room[:0] // index after the last entry of each descriptor
	for i := range policies {
		p := &policies[i]
		if p.stage != stage {
			continue
		}
		entries, text := len(b.entries), len(b.text)
		d := limiter.Descriptor{Refund: p.refund}
		if p.limit != nil {
			d.Limit, d.HasLimit = *p.limit, true
		}
		if !p.fill(b, &d) {
			b.entries, b.spans, b.text = b.entries[:entries], b.spans[:entries], b.text[:text]
			continue
		}
		b.descriptors = append(b.descriptors, d)
		ends = append(ends, len(b.entries))
	}
	text := string(b.text) // the rules may keep a part of it as long as they like
	for i := range b.entries {
		if s := b.spans[i]; s.from != constant {
			b.entries[i].Value = text[s.from:s.to]
		}
	}
	first := 0
	for i, end := range ends {
		b.descriptors[i].Entries = b.entries[first:end:end]
		first = end
	}
}

func (p *policy) fill(b *building, d *limiter.Descriptor) bool {
	for _, act := range p.actions {
		if !act(b) {
			return false
		}
	}
	if p.hits != nil {
		d.Hits, d.HasHits = p.hits(b)
		return d.HasHits
	}
	return true
}

// compile turns rate_limits into policies. The error names the setting that a module cannot obey.
func compile(all []*routev3.RateLimit) ([]policy, error) {
	if len(all) > limiter.MaxDescriptors {
		return nil, fmt.Errorf("rate_limits: %d items, more than %d", len(all), limiter.MaxDescriptors)
	}
	policies := make([]policy, 0, len(all))
	for i, r := range all {
		p, err := compileOne(r)
		if err != nil {
			return nil, fmt.Errorf("rate_limits[%d]: %w", i, err)
		}
		policies = append(policies, p)
	}
	return policies, nil
}

func compileOne(r *routev3.RateLimit) (p policy, err error) {
	switch {
	case r.GetDisableKey() != "":
		return p, fmt.Errorf("disable_key is not supported: a module cannot draw by runtime keys")
	case r.GetApplyOnStreamDone():
		return p, fmt.Errorf("apply_on_stream_done is not supported")
	case r.GetXRatelimitOption() != routev3.RateLimit_UNSPECIFIED:
		return p, fmt.Errorf("x_ratelimit_option is not supported: use enable_x_ratelimit_headers")
	}
	if n := len(r.GetActions()); n > limiter.MaxEntries {
		return p, fmt.Errorf("%d actions, more than %d", n, limiter.MaxEntries)
	}
	p.stage = r.GetStage().GetValue()
	for i, a := range r.GetActions() {
		act, err := compileAction(a)
		if err != nil {
			return p, fmt.Errorf("actions[%d]: %w", i, err)
		}
		p.actions = append(p.actions, act)
	}
	if l := r.GetLimit(); l != nil {
		fixed := l.GetRateLimit()
		if fixed == nil {
			return p, fmt.Errorf("limit.dynamic_metadata is not supported: a module reads only the first level of metadata")
		}
		p.limit = &limiter.RequestLimit{Requests: fixed.GetRequestsPerUnit(), Unit: int32(fixed.GetUnit())}
	}
	if h := r.GetHitsAddend(); h != nil {
		p.refund = h.GetIsNegativeHits()
		p.hits, err = compileHits(h)
	}
	return p, err
}

// maxHits is the largest hits_addend that Envoy accepts.
const maxHits = 1_000_000_000

var (
	hitsOfHeader   = regexp.MustCompile(`^%REQ\(([^?:()]+)\)%$`)
	hitsOfMetadata = regexp.MustCompile(`^%DYNAMIC_METADATA\(([^:()]+):([^:()]+)\)%$`)
)

func compileHits(h *routev3.RateLimit_HitsAddend) (hits, error) {
	if h.GetFormat() == "" {
		if h.Number == nil {
			return nil, nil //nolint:nilnil // the same as without hits_addend
		}
		n := h.Number.GetValue()
		return func(*building) (uint64, bool) { return n, true }, nil
	}
	if m := hitsOfHeader.FindStringSubmatch(h.GetFormat()); m != nil {
		name := strings.ToLower(m[1])
		return func(b *building) (uint64, bool) {
			text, _ := b.stream.Header(name, 0)
			return textHits(text)
		}, nil
	}
	if m := hitsOfMetadata.FindStringSubmatch(h.GetFormat()); m != nil {
		space, key := m[1], m[2]
		return func(b *building) (uint64, bool) {
			if n, ok := b.stream.MetadataNumber(DynamicMetadata, space, key); ok {
				return wholeHits(n)
			}
			text, _ := b.stream.Metadata(DynamicMetadata, space, key)
			return textHits(text)
		}, nil
	}
	return nil, fmt.Errorf("hits_addend.format %q is not supported: a module can read %%REQ(NAME)%% and "+
		"%%DYNAMIC_METADATA(NAMESPACE:KEY)%%",
		h.GetFormat())
}

// wholeHits returns a number of hits, without its fraction. It returns false outside the bounds.
func wholeHits(n float64) (uint64, bool) {
	if n >= 0 && n <= maxHits {
		return uint64(n), true
	}
	return 0, false
}

// textHits reads a number as Envoy does. Envoy's filter also accepts nan, as a number that uses up the limit. Here nan
// adds no descriptor, like any other text that is not a number.
func textHits(text string) (uint64, bool) {
	if len(text) > 2 && text[0] == '0' && text[1]|0x20 == 'x' && !strings.ContainsAny(text, "pP") {
		text += "p0" // Go wants an exponent in hexadecimal
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Contains(text, "_") {
		return 0, false
	}
	return wholeHits(n)
}

// remoteAddress returns the address of the client, as far as Envoy trusts X-Forwarded-For.
func (b *building) remoteAddress() (netip.Addr, bool) {
	text, _ := b.stream.RemoteAddress()
	at, err := netip.ParseAddrPort(text) // a unix socket has none
	return at.Addr(), err == nil
}

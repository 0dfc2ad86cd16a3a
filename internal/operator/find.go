package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/grpcstatus"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/operator/console"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const findPath = console.Path + "find"

const (
	maxFound      = 100 // descriptors in an answer
	maxLists      = 20  // lists of the usage index that one search reads
	maxListed     = 100 // descriptors of one of these lists
	maxFindValues = 16
	findTimeout   = 3 * time.Second
)

// finder finds the counters of a customer, for the console. A customer is a value, such as an account's number, or a
// descriptor: then it is the values of those entries that the rule does not name.
type finder struct{ *Options }

// foundPage is the result of a search.
type foundPage struct {
	Values  []string          `json:"values"`  // values searched
	Found   []foundDescriptor `json:"found"`   // the descriptor itself first, then those that are denied, then the fullest
	More    bool              `json:"more"`    // there may be others
	Hidden  string            `json:"hidden"`  // why no counters are shown; empty if they are
	Seconds float64           `json:"seconds"` // period that Hot covers
}

// foundDescriptor is a descriptor whose counters have one of the values.
type foundDescriptor struct {
	Domain  string          `json:"domain"`
	Entries []oneEntry      `json:"entries"` // entries with grouped values
	Self    bool            `json:"self"`    // it is the one that was asked about
	Peek    json.RawMessage `json:"peek"`    // an adminv1.PeekResponse
	Denies  []bool          `json:"denies"`  // whether each counter denies the next request
	Blocked bool            `json:"blocked"` // an override denies every request
	Shadow  bool            `json:"shadow"`  // nothing is enforced
	OnError string          `json:"on_error"`
	Error   string          `json:"error"` // why the counters could not be read; empty if they were
	Hot     []*hotCounter   `json:"hot"`   // heat of each counter; null if unknown

	full float64 // the part of the fullest counter that is used
}

type oneEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// hotCounter has the hits of a counter in the last minute, each as a lower and an upper bound.
type hotCounter struct {
	Used   [2]uint64 `json:"used"`
	Denied [2]uint64 `json:"denied"`
}

// ServeHTTP answers a form with the result of a search. It is posted, because values may be long. The form has a value,
// searched in domain or in all domains; or k and v, repeated, which are the entries of a descriptor in domain.
func (f *finder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// a form may write a byte as three
	r.Body = http.MaxBytesReader(w, r.Body, int64(max(maxMessageBytes, 12*f.Bounds.MaxTextBytes)))
	var s *search
	err := r.ParseForm()
	if err == nil {
		s, err = f.readSearch(r.PostForm)
	}
	if err != nil {
		endpoint.WriteText(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), findTimeout)
	defer cancel()
	page, err := s.run(ctx, time.Now())
	if err != nil {
		endpoint.WriteText(w, http.StatusInternalServerError, logging.Shorten(err.Error())+"\n")
		return
	}
	writeJSON(w, page)
}

// search is one search.
type search struct {
	*finder
	tree    *descriptor.Tree
	domain  string // empty means all
	entries []descriptor.Entry
	values  []string
	report  hotkeys.Report
	hidden  string // why no counters are shown

	candidates []candidate
	known      map[string]bool // the candidates
	more       bool
}

// candidate is a descriptor that may have counters with the values.
type candidate struct {
	domain  string
	entries []descriptor.Entry
}

func (f *finder) readSearch(q url.Values) (*search, error) {
	s := &search{finder: f, tree: f.Rules.tree(), domain: q.Get("domain"), known: make(map[string]bool)}
	keys, values := q["k"], q["v"]
	req := &adminv1.PeekRequest{Domain: s.domain}
	for i, key := range keys {
		e := &adminv1.Entry{Key: key}
		if i < len(values) {
			e.Value = values[i]
		}
		req.Entries = append(req.Entries, e)
	}
	var err error
	if s.entries, err = f.Bounds.entries(req); err != nil {
		return nil, err
	}
	switch {
	case len(keys) > 0 && s.domain == "":
		return nil, invalid("domain must not be empty")
	case len(keys) > 0:
		s.values = s.customer()
	case len(q.Get("value")) > f.Bounds.MaxTextBytes:
		return nil, invalid("value has more than %d bytes", f.Bounds.MaxTextBytes)
	case q.Get("value") == "":
		return nil, invalid("name a value, or entries")
	default:
		s.values = []string{q.Get("value")}
	}
	if f.Access.Tokens == nil && !f.Access.ClientCerts {
		s.hidden = namelessOff
	}
	return s, nil
}

// customer returns the values that identify the customer of the descriptor: those of entries for which the rule takes
// any value, or else those that match one of its patterns, or else those for which another rule takes any value.
func (s *search) customer() (values []string) {
	if s.tree == nil || s.tree.Domain(s.domain) == nil {
		return nil
	}
	rule := s.tree.Domain(s.domain).Match(s.entries)
	if rule == nil {
		return nil
	}
	named := func(l descriptor.Level) bool { return l.Kind != descriptor.MatchExact }
	for _, whose := range []func(descriptor.Level) bool{takesAny, named, s.takenElsewhere} {
		for i, e := range s.entries {
			if i < len(rule.Levels) && e.Value != "" && whose(rule.Levels[i]) && len(values) < maxFindValues {
				values = append(values, e.Value)
			}
		}
		if len(values) > 0 {
			break
		}
	}
	return values
}

func takesAny(l descriptor.Level) bool { return l.Kind == descriptor.MatchAny }

// takenElsewhere reports whether a rule of the domain takes any value for the key of a level.
func (s *search) takenElsewhere(l descriptor.Level) bool {
	return slices.ContainsFunc(s.tree.Rules, func(r *descriptor.Rule) bool {
		return r.Domain == s.domain && slices.ContainsFunc(r.Levels,
			func(o descriptor.Level) bool { return o.Key == l.Key && takesAny(o) })
	})
}

// run finds descriptors and looks at their counters.
func (s *search) run(ctx context.Context, now time.Time) (*foundPage, error) {
	if len(s.entries) > 0 {
		s.add(s.domain, s.entries)
	}
	s.byRules()
	if s.hidden == "" {
		s.report = s.HotKeys(hotkeys.Query{Domain: s.domain, Limit: hotkeys.MaxLimit})
		s.byHotKeys()
		s.byUsage(ctx, now)
	}
	page := &foundPage{Values: append([]string{}, s.values...), Hidden: s.hidden,
		Seconds: s.report.To.Sub(s.report.From).Seconds()}
	all, err := s.look(ctx, now)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b foundDescriptor) int {
		return cmp.Or(-order(a.Self, b.Self), -order(slices.Contains(a.Denies, true), slices.Contains(b.Denies, true)),
			-cmp.Compare(a.full, b.full))
	})
	page.Found, page.More = all, s.more
	return page, nil
}

func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// add adds a candidate.
func (s *search) add(domain string, entries []descriptor.Entry) {
	id, _ := json.Marshal([]any{domain, entries}) // marshalling texts cannot fail
	switch {
	case s.known[string(id)]:
	case len(s.candidates) == maxFound:
		s.more = true
	default:
		s.known[string(id)] = true
		s.candidates = append(s.candidates, candidate{domain, entries})
	}
}

// byRules adds, for each rule, the descriptor with a value at one of its levels, if its other levels name their values,
// or the descriptor that was asked about has an entry with their key.
func (s *search) byRules() {
	if s.tree == nil {
		return
	}
	for _, r := range s.tree.Rules {
		if s.domain != "" && r.Domain != s.domain {
			continue
		}
		for i := range r.Levels {
			for _, value := range s.values {
				if entries, ok := s.with(r, i, value); ok && mayHave(r, i, value) {
					s.add(r.Domain, entries)
				}
			}
		}
	}
}

// mayHave reports whether a level of a rule may have a value. For a level with a pattern the answer is always yes,
// because only a match can tell.
func mayHave(r *descriptor.Rule, level int, value string) bool {
	l := r.Levels[level]
	if l.Kind != descriptor.MatchExact || l.Value == value {
		return true
	}
	_, fold := r.GroupAt(level)
	return fold && descriptor.Fold(l.Value) == descriptor.Fold(value)
}

// with returns the descriptor of a rule that has the value at a level; false: other levels can have many values.
func (s *search) with(r *descriptor.Rule, at int, value string) ([]descriptor.Entry, bool) {
	entries := make([]descriptor.Entry, len(r.Levels))
	for i, l := range r.Levels {
		e := descriptor.Entry{Key: l.Key, Value: l.Value}
		sent := slices.IndexFunc(s.entries, func(e descriptor.Entry) bool { return e.Key == l.Key })
		switch {
		case i == at:
			e.Value = value
		case l.Kind == descriptor.MatchExact:
		case sent >= 0 && s.entries[sent].Value != value:
			e = s.entries[sent]
		default:
			return nil, false
		}
		entries[i] = e
	}
	return entries, true
}

// byHotKeys adds the descriptors of counters that were used in the last minute.
func (s *search) byHotKeys() {
	for i := range s.report.Rules {
		rule := &s.report.Rules[i]
		for _, list := range [][]hotkeys.Key{rule.Denied, rule.Used} {
			for j := range list {
				k := &list[j]
				if r, entries := entriesOf(s.tree, k); r != nil && s.has(r, entries) { // there may be very many others
					s.add(r.Domain, entries)
				}
			}
		}
	}
}

// entriesOf returns the entries that the key of a hot counter names, and the rule that matches them. The rule is nil
// where they do not lead to this counter.
func entriesOf(tree *descriptor.Tree, k *hotkeys.Key) (*descriptor.Rule, []descriptor.Entry) {
	if tree == nil || k.Cut {
		return nil, nil
	}
	d := tree.Domain(k.Domain)
	entries, ok := descriptor.KeyEntries(k.Domain, k.Key)
	if d == nil || !ok {
		return nil, entries
	}
	if r := d.Match(entries); r != nil && r.Path == k.Rule {
		return r, entries
	}
	return nil, entries
}

// has reports whether the entries, which match a rule, are of the customer: they have all values, or no other ones
// where the rule takes any value.
func (s *search) has(r *descriptor.Rule, entries []descriptor.Entry) bool {
	if len(s.values) > 0 && !slices.ContainsFunc(s.values,
		func(value string) bool { return !countsAs(r, entries, value) }) {
		return true
	}
	some, others := false, false
	for i, e := range entries {
		if i < len(r.Levels) && r.Levels[i].Kind == descriptor.MatchAny {
			one := slices.ContainsFunc(s.values, func(value string) bool { return r.Counted(i, e.Value) == r.Counted(i, value) })
			some, others = some || one, others || !one
		}
	}
	return some && !others
}

// countsAs reports whether one of the entries has a value, or counts as it does under their rule.
func countsAs(r *descriptor.Rule, entries []descriptor.Entry, value string) bool {
	for i, e := range entries {
		if e.Value == value || r.Counted(i, e.Value) == r.Counted(i, value) {
			return true
		}
	}
	return false
}

// byUsage adds the descriptors in the index of usage.
func (s *search) byUsage(ctx context.Context, now time.Time) {
	if s.Usage == nil || s.tree == nil {
		return
	}
	type list struct {
		domain string
		entry  descriptor.Entry
	}
	read := make(map[list]bool)
	for _, r := range s.tree.Rules {
		if !r.Usage || s.domain != "" && r.Domain != s.domain {
			continue
		}
		for i, l := range r.Levels {
			for _, value := range s.values {
				of := list{r.Domain, descriptor.Entry{Key: l.Key, Value: r.Counted(i, value)}}
				if read[of] || !mayHave(r, i, value) {
					continue
				}
				if len(read) == maxLists {
					s.more = true
					return
				}
				read[of] = true
				s.addListed(ctx, now, of.domain, of.entry)
			}
		}
	}
}

// addListed adds the descriptors with an entry. An error needs no handling: if the index cannot be read, the counters
// cannot either, and the page shows that.
func (s *search) addListed(ctx context.Context, now time.Time, domain string, e descriptor.Entry) {
	found, next, err := s.Usage.List(ctx, now, domain, [][]descriptor.Entry{{e}}, 0, maxListed)
	s.more = s.more || err != nil || next != 0
	for _, entries := range found {
		s.add(domain, entries)
	}
}

// look returns the candidates that a rule matches, with their counters. Each counter is in the result once.
func (s *search) look(ctx context.Context, now time.Time) ([]foundDescriptor, error) {
	looks := make([]look, len(s.candidates))
	var g errgroup.Group
	g.SetLimit(peeksAtOnce)
	for i := range s.candidates {
		g.Go(func() error {
			looks[i] = s.lookAt(ctx, now, &s.candidates[i])
			return nil
		})
	}
	_ = g.Wait()
	hot := s.hot()
	all, known := []foundDescriptor{}, make(map[string]bool)
	for i := range looks {
		l := &looks[i]
		rule, self := l.counters.Explanation.Rule, i == 0 && len(s.entries) > 0
		if !self && (rule == nil || !s.has(rule, l.entries)) {
			continue
		}
		id := strings.Join(l.counters.Explanation.Keys, "\x00")
		if id != "" && known[id] {
			continue
		}
		known[id] = true
		found, err := l.found(now, hot)
		if err != nil {
			return nil, err
		}
		found.Self = self
		all = append(all, found)
	}
	return all, nil
}

// look holds the counters of a candidate, or the error of reading them.
type look struct {
	*candidate
	counters limiter.Counters
	err      error
}

func (s *search) lookAt(ctx context.Context, now time.Time, c *candidate) look {
	l := look{candidate: c}
	if s.hidden == "" {
		l.counters, l.err = s.Counters.Peek(ctx, now, c.domain, &limiter.Descriptor{Entries: c.entries})
	} else if s.Rules.Explain != nil {
		l.counters.Explanation = s.Rules.Explain(c.domain, c.entries)
	}
	return l
}

// found is the look for the page.
func (l *look) found(now time.Time, hot map[string]*hotCounter) (foundDescriptor, error) {
	c := &l.counters
	f := foundDescriptor{
		Domain: validText(l.domain), Entries: []oneEntry{}, Denies: []bool{}, Hot: []*hotCounter{},
		Blocked: c.Blocked, Shadow: c.Shadow, OnError: descriptor.OnErrorNames[c.OnError],
	}
	for _, e := range l.counted() {
		f.Entries = append(f.Entries, oneEntry{validText(e.Key), validText(e.Value)})
	}
	if l.err != nil {
		f.Error = validText(logging.Shorten(grpcstatus.Message(l.err)))
		c.List = nil
	}
	for i := range c.List {
		k := &c.List[i]
		f.Denies = append(f.Denies, c.Denies(k))
		f.Hot = append(f.Hot, hot[k.Key])
		f.full = max(f.full, float64(k.Used)/float64(max(k.Limit.Capacity(), 1)))
	}
	var err error
	f.Peek, err = protojson.Marshal(peekMessage(now, l.entries, c))
	return f, err //nolint:wrapcheck // this program makes the message
}

// counted returns the entries with grouped values, if they have the same counters.
func (l *look) counted() []descriptor.Entry {
	x := &l.counters.Explanation
	if counted := x.Rule.CountedEntries(l.entries); x.Rule != nil && x.Domain != nil && x.Domain.Match(counted) == x.Rule {
		return counted
	}
	return l.entries
}

// hot returns the hits of counters in the last minute, by their keys.
func (s *search) hot() map[string]*hotCounter {
	all := make(map[string]*hotCounter)
	for i := range s.report.Rules {
		rule := &s.report.Rules[i]
		seen := make(map[string]bool) // a list of uses and one of denials may have the same counter
		for _, list := range [][]hotkeys.Key{rule.Denied, rule.Used} {
			for j := range list {
				k := &list[j]
				if k.Cut || seen[k.Key] {
					continue
				}
				seen[k.Key] = true
				h := all[k.Key]
				if h == nil { // several rules may use it
					h = new(hotCounter)
					all[k.Key] = h
				}
				h.Used[0], h.Used[1] = h.Used[0]+k.Used.AtLeast, h.Used[1]+k.Used.AtMost
				h.Denied[0], h.Denied[1] = h.Denied[0]+k.Denied.AtLeast, h.Denied[1]+k.Denied.AtMost
			}
		}
	}
	return all
}

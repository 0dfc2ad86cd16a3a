package regions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// homesOf is which region counts under each rule in this epoch. The region's Redis keeps it, so that all its replicas agree, whatever
// rules each of them has loaded last.
type homesOf struct {
	record record[region.Homes, *region.Homes]
	known  atomic.Pointer[map[uint64]string] // what this replica has read, by descriptor.Regions.Rule; it is only added to
	full   atomic.Bool                       // there was no room for some rule

	keeping sync.Mutex // held while they are recorded
	mu      sync.Mutex
	rules   []ruleHome        // the active ones
	waiting map[uint64]string // homes that have not been recorded yet, as the first rules named them; nil: none
	kept    []KeptHome        // of the active rules, those that name another home
}

// ruleHome is what an active rule says.
type ruleHome struct {
	region.RuleHome
	path string
}

// KeptHome is a rule that names another home than the one that counts in this epoch.
type KeptHome struct {
	Rule  string // its path
	Named string // empty: a hash chooses the home of each counter
	Home  string // the same, of the home that counts
}

// homeOf returns the home of a counter. It waits only if a rule is used that nobody has recorded yet.
func (s *Store) homeOf(w *wait, key []byte, l *descriptor.Limit) (string, error) {
	home, ok := s.knownHome(key, l)
	if ok {
		return home, nil
	}
	home, err := s.firstUse(w, region.RuleHome{Rule: l.Regions.Rule, Home: l.Regions.Home})
	if err == nil && home == "" {
		home = HomeOf(key, s.opts.Regions)
	}
	return home, err
}

// knownHome returns the home of a counter, unless nobody has recorded that of its rule yet.
func (s *Store) knownHome(key []byte, l *descriptor.Limit) (home string, ok bool) {
	home, ok = l.Regions.Home, true
	if rule := l.Regions.Rule; rule != 0 {
		home, ok = (*s.homesOf.known.Load())[rule]
	}
	if ok && home == "" {
		home = HomeOf(key, s.opts.Regions)
	}
	return home, ok
}

// errEpoch is the error of takes under rules that are new to a replica whose list of regions is old.
var errEpoch = fmt.Errorf("%w: this region has a later list of regions than this replica", backend.ErrUnavailable)

// firstUse records the home of a rule, and returns the one that is recorded.
func (s *Store) firstUse(w *wait, r region.RuleHome) (string, error) {
	s.homesOf.mu.Lock()
	if first, ok := s.homesOf.waiting[r.Rule]; ok {
		r.Home = first
	}
	s.homesOf.mu.Unlock()
	if err := s.keep(w, []region.RuleHome{r}); err != nil {
		return "", err
	}
	if home, ok := (*s.homesOf.known.Load())[r.Rule]; ok {
		return home, nil
	}
	return r.Home, nil // there is no room
}

// keep records the homes of rules that have none yet, and those that this replica knows: the Redis may have lost them.
func (s *Store) keep(w *wait, rules []region.RuleHome) error {
	known := *s.homesOf.known.Load()
	all := make([]region.RuleHome, 0, len(known)+len(rules))
	for rule, home := range known {
		all = append(all, region.RuleHome{Rule: rule, Home: home})
	}
	all = append(all, rules...) // after those that are known: the first counts
	var ok bool
	var now []region.RuleHome
	err := do(w, &s.homesOf.record, &step[region.Homes]{run: func(v *region.Homes, _ region.Reading) int64 {
		if ok, now = v.Keep(&s.epoch, all), nil; ok && len(v.Rules) > len(known) {
			now = slices.Clone(v.Rules)
		}
		return never
	}})
	switch {
	case err != nil:
		return fmt.Errorf("record the homes of rules: %w", err)
	case !ok:
		return errEpoch
	}
	s.homesOf.learn(now, s.opts.Logger.Error)
	return nil
}

// learn takes in what is recorded.
func (h *homesOf) learn(rules []region.RuleHome, log func(string, ...any)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := *h.known.Load(); len(rules) > len(known) {
		next := make(map[uint64]string, len(rules))
		for _, r := range rules {
			next[r.Rule] = r.Home
		}
		h.known.Store(&next)
	}
	if len(rules) >= region.MostHomes && !h.full.Swap(true) {
		log("too many rules have regions: the homes of some are not recorded, so do not change them without a new epoch", "most", region.MostHomes)
	}
}

// SetRules tells the store which rules are active, before requests are decided by them. The homes that they name hold if this region
// knows no others in this epoch.
func (s *Store) SetRules(rules []*descriptor.Rule) {
	var across []ruleHome
	for _, r := range rules {
		i := slices.IndexFunc(r.Limits, func(l descriptor.Limit) bool { return concerns(&l) })
		if i >= 0 && r.Limits[i].Regions.Rule != 0 {
			of := r.Limits[i].Regions
			across = append(across, ruleHome{region.RuleHome{Rule: of.Rule, Home: of.Home}, r.Path})
		}
	}
	h := &s.homesOf
	h.mu.Lock()
	h.rules, h.kept = across, nil
	if h.waiting == nil {
		h.waiting = make(map[uint64]string, len(across))
	}
	for i := range across {
		if _, ok := h.waiting[across[i].Rule]; !ok && len(h.waiting) < region.MostHomes {
			h.waiting[across[i].Rule] = across[i].Home
		}
	}
	h.mu.Unlock()
	if _, ready := s.clocks.known(); ready && s.begin() { // otherwise the first tick does it
		go func() {
			defer s.sending.Done()
			s.keepRules(s.stopping, false)
		}()
	}
}

// keepRules records the homes of the active rules, if that was not done yet, or if again is set.
func (s *Store) keepRules(ctx context.Context, again bool) {
	h := &s.homesOf
	h.keeping.Lock()
	defer h.keeping.Unlock()
	h.mu.Lock()
	rules, isNew := h.rules, h.waiting != nil
	named := make([]region.RuleHome, 0, len(h.waiting))
	for rule, home := range h.waiting {
		named = append(named, region.RuleHome{Rule: rule, Home: home})
	}
	h.mu.Unlock()
	if len(named) == 0 && len(*h.known.Load()) == 0 || !isNew && !again {
		return
	}
	w := s.waitOf(ctx)
	defer w.end()
	if err := s.keep(w, named); err != nil && !errors.Is(err, errEpoch) || !isNew {
		return
	}
	known := *h.known.Load()
	var kept []KeptHome
	for i := range rules {
		if home, ok := known[rules[i].Rule]; ok && home != rules[i].Home {
			kept = append(kept, KeptHome{Rule: rules[i].path, Named: rules[i].Home, Home: home})
		}
	}
	slices.SortFunc(kept, func(a, b KeptHome) int { return cmp.Compare(a.Rule, b.Rule) })
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.rules) != len(rules) || len(rules) > 0 && &h.rules[0] != &rules[0] {
		return // there are other rules now, which wait
	}
	h.waiting, h.kept = nil, kept
	if len(kept) > 0 {
		first := &kept[0]
		s.opts.Logger.Warn("a rule names another home than before: the home stays as it was until the epoch is raised, with RATELIMITD_REGIONS_BEFORE in the new home", "rule", first.Rule,
			"home", homeWord(first.Home), "named", homeWord(first.Named), "rules", len(kept), "hint", "ratelimitd regions move says what is missing")
	}
}

// homeWord is a home in a log line.
func homeWord(home string) string {
	if home == region.NoHome {
		return "none"
	}
	return cmp.Or(home, "by hash")
}

// keptHomes returns the active rules that name another home than the one that counts.
func (h *homesOf) keptHomes() []KeptHome {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kept
}

// errHome is the error of takes whose home is no region.
func (s *Store) errHome(home string) error {
	if home == region.NoHome {
		return fmt.Errorf("%w: a region has left the list, so this counter may have had another home: set RATELIMITD_REGIONS_BEFORE, and raise the epoch", backend.ErrUnavailable)
	}
	return fmt.Errorf("%w: the home %q of this counter is not one of the regions %s", backend.ErrUnavailable, home, strings.Join(s.opts.Regions, ", "))
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// ResourceOptions are the settings of Resources.
type ResourceOptions struct {
	// resources may share a domain; if false, the domain belongs to the resource that sorts first
	MergeDomains bool
	Tree         descriptor.Options // how trees are compiled
	Logger       *slog.Logger       // nil means slog.Default()
	Metrics      metric.Registry    // nil disables metrics
}

// Resources holds rules that come as complete sets of resources. As with the files of a directory, the last good
// version of a bad resource stays active. A resource that is missing from a set is removed.
type Resources struct {
	o       ResourceOptions
	metrics metrics

	mu     sync.Mutex
	inUse  map[string]*ruleResource
	last   Result                  // result of the newest set that could be used, at least in part
	status []descriptor.FileStatus // status of the newest set
}

// ruleResource is one resource of a set in use.
type ruleResource struct {
	sum    sum
	source *source
}

// NewResources returns Resources without rules.
func NewResources(o ResourceOptions) *Resources {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Resources{o: o}
	metric.Register(o.Metrics, s.metrics.families()...)
	return s
}

// Files returns the state of every resource, sorted by name. It must not be changed.
func (s *Resources) Files() []descriptor.FileStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Apply replaces the previous set. An empty set is valid: it has no rules.
//
// A bad resource does not affect the others: its last good version stays active, and the good ones of the set take
// effect. The error then lists the problems, for the server that sent the set. The result is valid even with an error.
// Its Tree is nil until the first good resource. If a name occurs twice in a set, the second resource gets a number
// suffix.
func (s *Resources) Apply(set []Resource) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set = named(set)
	l := ledger{merge: s.o.MergeDomains, tree: s.o.Tree}
	now := time.Now()
	next := make(map[string]*ruleResource, len(set))
	wrong := make(map[string][]*yamlform.Error)
	for i := range set {
		x := &set[i]
		r := s.inUse[x.Name]
		if r == nil || x.Err != nil || x.Sum == (sum{}) || x.Sum != r.sum {
			r = &ruleResource{x.Sum, readResource(x)}
		}
		if errs := l.admit(r.source); len(errs) > 0 {
			wrong[x.Name] = errs
			continue
		}
		next[x.Name] = r
	}
	s.keepLastGood(set, &l, next, wrong)
	if len(wrong) > 0 && len(next) == 0 && s.last.Tree == nil {
		files := statusesOf(next, wrong)
		s.settle(files, now, func(string) bool { return false })
		s.metrics.rejected(files)
		return Result{Files: files}, rejection(wrong)
	}

	before := s.last
	result := Result{Tree: before.Tree, InUse: len(next)}
	result.Changed = before.Tree == nil || !maps.Equal(next, s.inUse)
	if result.Changed {
		tree, err := l.compile()
		if err != nil {
			s.metrics.failed.Add(1)
			return before, fmt.Errorf("use rules: %w", err)
		}
		result.Tree = tree
	}
	result.Files = statusesOf(next, wrong)
	s.settle(result.Files, now, func(name string) bool { return s.inUse[name] != next[name] })
	for _, name := range slices.Sorted(maps.Keys(s.inUse)) {
		if next[name] == nil {
			s.o.Logger.Debug("rule resource removed", "resource", name)
		}
	}
	s.inUse, s.last = next, result
	if result.Changed {
		s.metrics.reloaded(&result, now)
		warnOfDrops(s.o.Logger, &before, &result, func(string) bool { return false })
	} else if len(wrong) > 0 {
		s.metrics.rejected(result.Files)
	}
	if before.Tree != nil && len(before.Tree.Rules) > 0 && len(result.Tree.Rules) == 0 {
		s.metrics.emptied(goneRemoved)
		s.o.Logger.Warn("no rules are active: the server has removed all of them, and every request passes", "resources",
			len(set), "rules_before", len(before.Tree.Rules))
	}
	return result, rejection(wrong)
}

// keepLastGood adds the last good versions of bad resources, unless a new resource has their domain. Resources that are
// missing from the set are removed, unless that could be an accident: a resource in the set has no readable name, or
// nothing but bad resources would be left.
func (s *Resources) keepLastGood(set []Resource, l *ledger, next map[string]*ruleResource,
	wrong map[string][]*yamlform.Error) {
	keep := func(name string) {
		if old := s.inUse[name]; old != nil && len(l.admit(old.source)) == 0 {
			next[name] = old
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		keep(name)
	}
	why := ""
	for i := range set {
		if set[i].Unnamed {
			why = "missing from a set in which " + set[i].Name + " cannot be read"
		}
	}
	if why == "" && len(wrong) > 0 && !hasRules(next) && hasRules(s.inUse) {
		why = "missing from a set in which nothing else can be used"
	}
	if why == "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.inUse)) {
		if next[name] == nil && wrong[name] == nil {
			wrong[name] = []*yamlform.Error{{File: name, Msg: why + ": its last good version stays active"}}
			keep(name)
		}
	}
}

func hasRules(all map[string]*ruleResource) bool {
	for _, r := range all {
		if r.source.rules > 0 {
			return true
		}
	}
	return false
}

// statusesOf returns the states of the active resources and of the rejected ones, sorted by name.
func statusesOf(inForce map[string]*ruleResource, wrong map[string][]*yamlform.Error) []descriptor.FileStatus {
	names := slices.AppendSeq(slices.Collect(maps.Keys(inForce)), maps.Keys(wrong))
	slices.Sort(names)
	var files []descriptor.FileStatus
	for _, name := range slices.Compact(names) {
		state, r := descriptor.FileLoaded, inForce[name]
		switch {
		case r == nil:
			files = append(files, statusOf(name, descriptor.FileRejected, nil, wrong[name]))
			continue
		case len(wrong[name]) > 0:
			state = descriptor.FileStale
		}
		files = append(files, statusOf(name, state, r.source, wrong[name]))
	}
	return files
}

// named returns the set sorted by name, with unique names.
func named(set []Resource) []Resource {
	set = slices.Clone(set)
	slices.SortStableFunc(set, func(a, b Resource) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.Sum[:], b.Sum[:]))
	})
	// the last number that each name was given, 1 for the name itself; 0 for a free name
	last := make(map[string]int, len(set))
	for i := range set {
		name := set[i].Name
		n := last[name]
		for last[set[i].Name] > 0 {
			n++
			set[i].Name = name + "#" + strconv.Itoa(n)
		}
		last[name], last[set[i].Name] = max(n, 1), 1
	}
	return set
}

// settle stores the states of all resources, and logs each resource whose state or rules changed.
func (s *Resources) settle(files []descriptor.FileStatus, now time.Time, rules func(name string) bool) {
	before := make(map[string]descriptor.FileStatus, len(s.status))
	for _, f := range s.status {
		before[f.Name] = f
	}
	rejected := 0
	for i := range files {
		f := &files[i]
		old := before[f.Name]
		f.Since = now
		if old.State == f.State {
			f.Since = old.Since
		}
		if old.State == f.State && !rules(f.Name) && slices.Equal(old.Errors, f.Errors) {
			continue
		}
		if f.State != descriptor.FileLoaded {
			if rejected++; rejected > errorsSent {
				continue
			}
		}
		log := s.o.Logger.With("resource", f.Name, "state", string(f.State), "rules", f.Rules)
		switch f.State {
		case descriptor.FileLoaded:
			log.Debug("rule resource loaded", "domains", f.Domains)
		case descriptor.FileStale:
			log.Error("rule resource rejected, its last good version stays active", "errors",
				f.Errors[:min(len(f.Errors), errorsLogged)], "total_errors", len(f.Errors))
		default:
			log.Error("rule resource rejected, none of it is active", "errors", f.Errors[:min(len(f.Errors), errorsLogged)],
				"total_errors", len(f.Errors))
		}
	}
	if rejected > errorsSent {
		s.o.Logger.Error("more rule resources rejected", "resources", rejected-errorsSent)
	}
	s.status = files
}

const (
	// most errors of one set that are sent, and most of its resources that are logged as rejected
	errorsSent     = 20
	rejectionBytes = 16 << 10 // approximate size of their text
)

// rejection returns all that is wrong with a set as one error, or nil.
func rejection(wrong map[string][]*yamlform.Error) error {
	if len(wrong) == 0 {
		return nil
	}
	var b strings.Builder
	shown, all := 0, 0
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		for _, e := range wrong[name] {
			all++
			if shown == errorsSent || b.Len() > rejectionBytes {
				continue
			}
			if shown++; shown > 1 {
				b.WriteString("; ")
			}
			b.WriteString(e.Error())
		}
	}
	if more := all - shown; more > 0 {
		fmt.Fprintf(&b, "; and %d more errors", more)
	}
	return errors.New(b.String())
}

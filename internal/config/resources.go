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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// ResourceOptions are the settings of Resources.
type ResourceOptions struct {
	MergeDomains bool                  // resources that give the same domain share it; else a set with two of them is refused
	Logger       *slog.Logger          // nil means slog.Default()
	Metrics      prometheus.Registerer // nil: no metrics
}

// Resources holds rules that come as whole sets of resources. Unlike a folder's files, which stand for themselves, a set
// is taken over as a whole or not at all: whoever sent it is told which, and has to know what is in force.
type Resources struct {
	o       ResourceOptions
	metrics metrics

	mu     sync.Mutex
	inUse  map[string]*ruleResource
	last   Result                  // the last set that was taken over
	status []descriptor.FileStatus // of that one, and of the one that was refused after it
}

// ruleResource is one resource of a set in use.
type ruleResource struct {
	sum    sum
	source *source
}

// NewResources returns a set that nothing has been applied to.
func NewResources(o ResourceOptions) *Resources {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Resources{o: o}
	if o.Metrics != nil {
		o.Metrics.MustRegister(&s.metrics)
	}
	return s
}

// Files is the state of every resource, sorted by name. Nobody may write to it.
func (s *Resources) Files() []descriptor.FileStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Apply puts a set in the place of the one before. No resources are a set too: one without rules.
//
// If anything is wrong with any resource, all stays as it was, and the error says what is wrong with which; it is made
// for the eyes of whoever sent the set. A resource whose name came before gets a number behind it.
func (s *Resources) Apply(set []Resource) (Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set = named(set)
	l := ledger{merge: s.o.MergeDomains}
	now := time.Now()
	next := make(map[string]*ruleResource, len(set))
	wrong := make(map[string][]*Error)
	sameRules := s.last.Tree != nil && len(set) == len(s.inUse)
	for i := range set {
		x := &set[i]
		r := s.inUse[x.Name]
		if r == nil || x.Err != nil || x.Sum == (sum{}) || x.Sum != r.sum {
			r = &ruleResource{x.Sum, readResource(x)}
			sameRules = false
		}
		next[x.Name] = r
		if errs := l.admit(r.source); len(errs) > 0 {
			wrong[x.Name] = errs
		}
	}
	if len(wrong) > 0 {
		s.refuse(next, wrong, now)
		return Result{}, refusal(wrong)
	}
	result := Result{Tree: s.last.Tree, InUse: len(set), Changed: !sameRules}
	if !sameRules {
		tree, err := l.compile()
		if err != nil {
			s.metrics.failed.Add(1)
			return Result{}, fmt.Errorf("use rules: %w", err)
		}
		result.Tree = tree
	}
	for _, name := range slices.Sorted(maps.Keys(next)) {
		result.Files = append(result.Files, statusOf(name, descriptor.FileLoaded, next[name].source, nil))
	}
	s.settle(result.Files, nil, now, func(name string) bool { return s.inUse[name] != next[name] })
	for _, name := range slices.Sorted(maps.Keys(s.inUse)) {
		if next[name] == nil {
			s.o.Logger.Info("rule resource removed", "resource", name)
		}
	}
	s.inUse, s.last = next, result
	s.metrics.reloaded(&result, now)
	return result, nil
}

// named returns the set sorted by name, with no name twice.
func named(set []Resource) []Resource {
	set = slices.Clone(set)
	slices.SortStableFunc(set, func(a, b Resource) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.Sum[:], b.Sum[:]))
	})
	taken := make(map[string]bool, len(set))
	for i := range set {
		name := set[i].Name
		for n := 2; taken[set[i].Name]; n++ {
			set[i].Name = name + "#" + strconv.Itoa(n)
		}
		taken[set[i].Name] = true
	}
	return set
}

// refuse notes why a set is not taken over: the state of what is wrong, of what came together with it, and of what
// would have been removed.
func (s *Resources) refuse(next map[string]*ruleResource, wrong map[string][]*Error, now time.Time) {
	bad := slices.Sorted(maps.Keys(wrong))
	together := "not taken over, because it came together with bad ones: " + List(bad[:min(len(bad), errorsLogged)], "and")
	names := maps.Clone(next)
	maps.Copy(names, s.inUse)
	var files []descriptor.FileStatus
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old := s.inUse[name]
		errs := wrong[name]
		state := descriptor.FileStale
		var kept *source
		switch {
		case old == nil:
			state = descriptor.FileRejected
		case old == next[name] && len(errs) == 0:
			state = descriptor.FileLoaded
			kept = old.source
		default:
			kept = old.source
		}
		if state != descriptor.FileLoaded && len(errs) == 0 {
			errs = []*Error{{File: name, Msg: together}}
		}
		files = append(files, statusOf(name, state, kept, errs))
	}
	s.settle(files, wrong, now, func(string) bool { return false })
	s.metrics.refused(files)
}

// settle takes over the states of all resources, and logs those that are other ones than before or have other rules.
func (s *Resources) settle(files []descriptor.FileStatus, wrong map[string][]*Error, now time.Time, rules func(name string) bool) {
	before := make(map[string]descriptor.FileStatus, len(s.status))
	for _, f := range s.status {
		before[f.Name] = f
	}
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
		log := s.o.Logger.With("resource", f.Name, "state", string(f.State), "rules", f.Rules)
		switch {
		case f.State == descriptor.FileLoaded:
			log.Info("rule resource loaded", "domains", f.Domains)
		case len(wrong[f.Name]) == 0:
			log.Warn("rule resource not taken over, because it came together with bad ones")
		default:
			log.Error("rule resource rejected", "errors", f.Errors[:min(len(f.Errors), errorsLogged)], "total_errors", len(f.Errors))
		}
	}
	s.status = files
}

const (
	errorsSent   = 20       // of one set
	refusalBytes = 16 << 10 // of the text about them, about
)

// refusal is what is wrong with a set, in one text.
func refusal(wrong map[string][]*Error) error {
	var b strings.Builder
	shown, all := 0, 0
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		for _, e := range wrong[name] {
			all++
			if shown == errorsSent || b.Len() > refusalBytes {
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

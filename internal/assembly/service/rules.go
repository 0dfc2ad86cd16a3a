package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/follow"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// rules are the active rules, and the health that depends on them.
type rules struct {
	files   atomic.Pointer[[]descriptor.FileStatus]
	inForce atomic.Pointer[inForce]

	reporting sync.Mutex // one report of the health at a time, so that the last one wins
	listening atomic.Bool
	rejected  atomic.Bool // an xDS server has sent only rules that cannot be used
}

// loadRules loads the rules for the first time and follows their changes. Rules over xDS arrive later: health stays red
// until then, unless the options allow a start without rules.
func (s *Service) loadRules() error {
	o := &s.o.Rules
	if o.Directory == nil {
		s.o.Tasks.Add(func(ctx context.Context) error { return o.Server.Run(ctx, s.received) })
		return nil
	}
	result, err := o.Directory.Load()
	switch {
	case err == nil:
		s.apply(result)
	case o.Force:
		s.o.Log.Error("no rules are active: "+untilRules, "directory", o.Dir, "error", err)
	default:
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("the directory does not exist")
		}
		return fmt.Errorf("load rules from %s: %w\n%s", o.Dir, err, o.Hint)
	}
	s.o.Tasks.Add(func(ctx context.Context) error { return follow.Directory(ctx, o.Directory, s.apply) })
	return nil
}

// untilRules is what happens to requests of a replica that has never had rules.
const untilRules = "requests are answered with UNAVAILABLE until there are some"

// apply puts loaded rules into force, unless no file can be used and there were no rules before.
func (s *Service) apply(r config.Result) {
	if s.Limiter.Tree() == nil && r.InUse == 0 {
		s.rules.files.Store(&r.Files)
		s.reportHealth()
		why := "no rule file can be used"
		if len(r.Files) == 0 {
			why = "there is no rule file"
		}
		s.o.Log.Error("no rules are active: "+untilRules, "directory", s.o.Rules.Dir, "files", len(r.Files), "because", why)
		return
	}
	s.swap(r.Tree)
	s.rules.files.Store(&r.Files)
	s.reportHealth()
	s.o.Log.Info("active rules", "directory", s.o.Rules.Dir,
		"domains", r.Tree.Domains(), "rules", len(r.Tree.Rules), "checksum", r.Tree.Checksum, "files", len(r.Files))
}

// inForce is the checksum of the active rules, and the time since when they are active.
type inForce struct {
	checksum uint64
	since    time.Time
}

// swap makes rules active.
func (s *Service) swap(tree *descriptor.Tree) {
	s.Limiter.Swap(tree, s.o.Settings)
	if now := s.rules.inForce.Load(); now == nil || now.checksum != tree.Checksum {
		s.warnOfRegions(tree)
		s.rules.inForce.Store(&inForce{tree.Checksum, time.Now()})
	}
}

// rulesSince returns when the active rules became active, or the zero time without rules.
func (s *Service) rulesSince() time.Time {
	if now := s.rules.inForce.Load(); now != nil {
		return now.since
	}
	return time.Time{}
}

// files returns the state of every rule file or xDS resource.
func (s *Service) files() []descriptor.FileStatus {
	if s.o.Rules.Directory == nil {
		return s.o.Rules.Server.Files()
	}
	if files := s.rules.files.Load(); files != nil {
		return *files
	}
	return nil
}

// received puts rules of a server into force.
func (s *Service) received(r config.Result) {
	if r.Tree == nil { // all rules were rejected, and there were none before
		s.rules.rejected.Store(true)
		s.reportHealth()
		return
	}
	s.swap(r.Tree)
	s.reportHealth()
	s.o.Log.Info("active rules", "server", s.o.Rules.ServerName,
		"domains", r.Tree.Domains(), "rules", len(r.Tree.Rules), "checksum", r.Tree.Checksum, "resources", len(r.Files))
}

// reportHealth updates the server's health. It is called whenever the health may have changed.
func (s *Service) reportHealth() {
	s.rules.reporting.Lock()
	defer s.rules.reporting.Unlock()
	if s.rules.listening.Load() {
		s.Server.SetMissing(NoRules, !s.healthy())
		s.Server.SetServing(true)
	}
}

// NoRules is the answer of /healthcheck while the active rules do not suffice.
const NoRules = "no usable rules are loaded; the log and /rlconfig on the admin port say why"

// healthy reports whether the active rules suffice. Without FORCE_START_WITHOUT_INITIAL_CONFIG rules must have been
// loaded, even if they are empty. With it no rules need to have been loaded yet, because a control plane without rules
// sends nothing. If only bad rules have arrived, the replica is unhealthy, because nothing enforces the limits in them.
// With HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED there must be a domain.
func (s *Service) healthy() bool {
	o := &s.o.Rules
	tree := s.Limiter.Tree()
	if tree == nil {
		return o.Force && !o.AtLeastOne && !s.rules.rejected.Load()
	}
	return tree.Domains() > 0 || !o.AtLeastOne
}

package limiter

import (
	"regexp"
	"strings"
	"unicode"
)

// Statistics calls visit for every counter that the reference has too, under its name there, which is path, a dot, and
// stat. Two calls may have one name: their sum is meant.
func (l *Limiter) Statistics(visit func(path, stat string, n uint64)) {
	m := l.metrics
	for _, s := range m.named.all() {
		if s == m.overflow && s.Total.Load() == 0 {
			continue
		}
		path := s.statistic()
		visit(path, "total_hits", s.Total.Load())
		visit(path, "over_limit", s.Over.Load())
		visit(path, "near_limit", s.Near.Load())
		visit(path, "over_limit_with_local_cache", s.Cached.Load())
		visit(path, "within_limit", s.Within.Load())
		visit(path, "shadow_mode", s.Shadow.Load())
	}
	for _, s := range m.unknownDomains.all() {
		if n := s.Total.Load(); n > 0 {
			visit(s.statistic(), "domain_not_found", n)
		}
	}
	visit("ratelimit.service", "global_shadow_mode", m.shadowed.Load())
	visit("ratelimit.service.call.should_rate_limit", "redis_error", m.failures.Load())
	visit("ratelimit.service.call.should_rate_limit", "service_error", m.invalid.Load())
}

// ipv4 is what the reference takes for an address in a name.
var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// statistic is what the names of a series' statistics begin with. It is made when somebody asks, not when a decision
// comes upon a new name. Like the reference's it has underscores where the protocol of StatsD means something, and in
// addresses; unlike those also in place of control characters: a line break in a value would begin another statistic.
func (s *Series) statistic() string {
	if made := s.reference.Load(); made != nil {
		return *made
	}
	name := s.Domain
	if s.below {
		name += "." + s.Rule
	}
	name = strings.Map(func(r rune) rune {
		if r == ':' || r == '|' || unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '_'
		}
		return r
	}, name)
	name = "ratelimit.service.rate_limit." + ipv4.ReplaceAllStringFunc(name, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
	s.reference.Store(&name)
	return name
}

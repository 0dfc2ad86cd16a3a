package limiter

import (
	"regexp"
	"strings"
	"unicode"
)

// Statistics calls visit for every counter that envoyproxy/ratelimit has too, under envoyproxy/ratelimit's name: path,
// a dot, and stat. If several calls have the same name, the value is their sum.
func (l *Limiter) Statistics(visit func(path, stat string, n uint64)) {
	m := l.parts.metrics
	for _, s := range m.named.All() {
		if s == m.named.Other && s.Total.Load() == 0 {
			continue
		}
		path := s.statistic()
		for i := range hitCounts {
			visit(path, hitCounts[i].statistic, hitCounts[i].of(s).Load())
		}
	}
	for _, s := range m.unknownDomains.All() {
		if n := s.Total.Load(); n > 0 {
			visit(s.statistic(), "domain_not_found", n)
		}
	}
	visit("ratelimit.service", "global_shadow_mode", m.shadowed.Load())
	visit("ratelimit.service.call.should_rate_limit", "redis_error", m.failed.requests.Load())
	visit("ratelimit.service.call.should_rate_limit", "service_error", m.invalid.Load())
}

// ipv4 matches text that envoyproxy/ratelimit treats as an address in a name.
var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// statistic returns the prefix of the names of a series' statistics. It is built when it is first needed, not when a
// decision adds a new name. As in envoyproxy/ratelimit, underscores replace characters with a meaning in the StatsD
// protocol, and the dots of addresses. Here they also replace control characters: a line break in a value would start
// another statistic.
func (s *series) statistic() string {
	if made := s.reference.Load(); made != nil {
		return *made
	}
	name := s.dotless
	if name == "" {
		name = s.Domain
		if s.below {
			name += "." + s.Rule
		}
	}
	name = strings.Map(func(r rune) rune {
		if r == ':' || r == '|' || unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '_'
		}
		return r
	}, name)
	name = "ratelimit.service.rate_limit." + ipv4.ReplaceAllStringFunc(name,
		func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
	s.reference.Store(&name)
	return name
}

package service

import (
	"io"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/platform/statsd"
)

// poolStatistic returns envoyproxy/ratelimit's name for the connections to this Redis.
func (s *Service) poolStatistic(c *assembly.Connected) string {
	if c != s.counters.Redis[0] {
		return "ratelimit.redis_per_second_pool"
	}
	return "ratelimit.redis_pool"
}

// statistics returns envoyproxy/ratelimit's statistics, under its names.
func (s *Service) statistics() statsd.Source {
	return statsd.Source{
		Counters: func(visit func(path, stat string, n uint64)) {
			s.Limiter.Statistics(visit)
			s.loadStatistics(visit)
			visit(statsd.ResponseTimePath, "total_requests", s.Server.Answered())
			for _, c := range s.counters.Redis {
				visit(s.poolStatistic(c), "cx_total", c.Connections.Opened())
				visit(s.poolStatistic(c), "cx_local_close", c.Connections.Closed())
			}
		},
		Gauges: func(visit func(path, stat string, n uint64)) {
			for _, c := range s.counters.Redis {
				visit(s.poolStatistic(c), "cx_active", c.Connections.Open())
			}
			if denials := s.counters.Denials; denials != nil {
				visit("ratelimit.localcache", "entryCount", uint64(denials.Len()))
				visit("ratelimit.localcache", "hitCount", denials.Hits())
			}
		},
	}
}

// writeStats writes the text of /stats.
func (s *Service) writeStats(w io.Writer) {
	_ = s.statistics().WriteText(w) // fails only if the reader has gone
	if s.o.Rules.Directory == nil {
		s.o.Rules.Server.WriteStats(w)
	}
}

func (s *Service) loadStatistics(visit func(path, stat string, n uint64)) {
	if s.o.Rules.Directory == nil {
		s.o.Rules.Server.Statistics(visit)
		return
	}
	s.o.Rules.Directory.Statistics(visit)
}

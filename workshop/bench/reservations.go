package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// reservedKey is the key of a rule with reservations.
const reservedKey = "reserved"

// A call reserves more hits than it commits, like a client that reserves the most that a request can cost.
const (
	reservedHits  = 10
	committedHits = 7
)

// reservationTargets count in memory and in Redis, under a plain rule and one with reservations.
func reservationTargets() []*target {
	return []*target{
		{id: "b", name: "memory", binary: "ratelimitd", rules: true, holds: true},
		{id: "c", name: "Redis", binary: "ratelimitd", rules: true, holds: true, redis: true},
	}
}

// stepLoad is one kind of load on one target.
type stepLoad struct {
	target  *target
	name    string
	calls   int64 // calls per step, such as 2 for a reservation and its commit
	payload *payload
	rounds  []measurement
}

// stepLoads returns the loads of a target. The first one is the baseline for the others.
func stepLoads(t *target, keys int) []*stepLoad {
	request := func(key, id string, hits uint64) *ratelimitv3.RateLimitRequest {
		entries := []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: "customer-" + digits}}
		if id != "" {
			entries = append(entries, &commonv3.RateLimitDescriptor_Entry{Key: id, Value: digits})
		}
		return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*commonv3.RateLimitDescriptor{
			{Entries: entries, HitsAddend: wrapperspb.UInt64(hits)},
		}}
	}
	plain := encode(request(descriptorKey(0), "", reservedHits), keys)
	check := encode(request(descriptorKey(0), "", 0), keys)
	check.then = encode(request(descriptorKey(0), "", committedHits), keys)
	reserve := encode(request(reservedKey, "reserve_id", reservedHits), keys, maxKeys)
	reserve.then = encode(request(reservedKey, "commit_id", committedHits), keys, maxKeys)
	return []*stepLoad{
		{target: t, name: "a plain decision", calls: 1, payload: plain},
		{target: t, name: "a check, then a charge", calls: 2, payload: check},
		{target: t, name: "a reservation, then its commit", calls: 2, payload: reserve},
	}
}

// measureReservations measures all loads in every round, in changing order, over connections that stay open.
func measureReservations(ctx context.Context, o *options, targets []*target) ([]*stepLoad, error) {
	var all []*stepLoad
	for _, t := range targets {
		all = append(all, stepLoads(t, o.keys)...)
	}
	loads := make([]*load, len(all))
	for i, s := range all {
		l, err := dialLoad(ctx, s.target.peers, o.connections, o.inFlight, s.payload)
		if err != nil {
			return nil, fmt.Errorf("connect to %s: %w", s.target.name, err)
		}
		defer l.close()
		loads[i] = l
		if _, err := l.run(ctx, 500*time.Millisecond); err != nil { // counters are made, tables grow
			return nil, fmt.Errorf("warm up %s, %s: %w", s.target.name, s.name, err)
		}
	}
	for round := range o.rounds {
		for i := range all {
			i = (i + round) % len(all)
			m, err := measureWith(all[i].target, o, loads[i], func(l *load, d time.Duration) (loadResult,
				error) {
				return l.run(ctx, d)
			})
			if err != nil {
				return nil, fmt.Errorf("measure %s, %s: %w", all[i].target.name, all[i].name, err)
			}
			all[i].rounds = append(all[i].rounds, m)
		}
	}
	for _, t := range targets {
		if err := commitsMet(ctx, "http://"+t.servers[0].http+"/metrics"); err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return all, nil
}

// commitsMet fails if more than one commit in a thousand has found no reservation, by the metrics of a server: then the
// benchmark did not measure reservations.
func commitsMet(ctx context.Context, metrics string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, metrics, http.NoBody)
	if err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	defer answer.Body.Close()
	counts := make(map[string]float64)
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), `ratelimitd_reservations_total{result="`); ok {
			result, value, _ := strings.Cut(rest, `"} `)
			counts[result], _ = strconv.ParseFloat(value, 64) // 0 is rejected below
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	committed, unknown := counts["committed"], counts["unknown"]
	if committed == 0 || unknown*1000 > committed {
		return fmt.Errorf("%.0f commits found their reservation and %.0f did not: the figures do not show what "+
			"reservations cost", committed, unknown)
	}
	return nil
}

// reportReservations prints the cost of each load, and how many plain decisions on the same target cost the same. It
// compares within each round, because other work on the machine changes least within a round.
func reportReservations(out io.Writer, o *options, loads []*stepLoad) error {
	fmt.Fprintf(out,
		"\nCPU of the server and of Redis, user and system; medians of %d interleaved rounds of %v; %d connections x %d "+
			"calls in flight; %d keys.\n",
		o.rounds, o.duration, o.connections, o.inFlight, o.keys)
	fmt.Fprintf(out,
		"decisions: how many plain decisions cost as much CPU in both together. half of the rounds: the range of the "+
			"middle half.\n\n")

	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, "|\t"+strings.Join(cells, "\t|\t")+"\t|") }
	row("", "counters in", "load", "server us", "Redis us", "decisions", "half of the rounds")
	row("---", "---", "---", "---:", "---:", "---:", "---:")
	var base *stepLoad
	for _, s := range loads {
		if base == nil || base.target != s.target {
			base = s
		}
		if len(s.rounds) == 0 || len(s.rounds) != len(base.rounds) {
			return fmt.Errorf("report: %s, %s: not measured in every round", s.target.name, s.name)
		}
		n := len(s.rounds)
		server, store, ratio := make([]float64, n), make([]float64, n), make([]float64, n)
		for i, m := range s.rounds {
			server[i], store[i] = float64(s.calls)*m.perDecision(m.cpu.server), float64(s.calls)*m.perDecision(m.cpu.store)
			b := base.rounds[i]
			ratio[i] = (server[i] + store[i]) / b.perDecision(b.cpu.server+b.cpu.store)
		}
		slices.Sort(ratio)
		inRedis := ""
		if s.target.redis {
			inRedis = fmt.Sprintf("%.2f", median(store))
		}
		row(s.target.id, s.target.name, s.name, fmt.Sprintf("%.2f", median(server)), inRedis,
			fmt.Sprintf("%.2f", median(ratio)), fmt.Sprintf("%.2f to %.2f", ratio[n/4], ratio[n-1-n/4]))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

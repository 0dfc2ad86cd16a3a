package redisshares

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// Options are the settings of Shares.
type Options struct {
	Client  goredis.UniversalClient // required
	Prefix  string                  // of every key
	Process string                  // the name of this process among those that share limits; not empty
}

// Shares divides limits among processes.
type Shares struct{ o Options }

// New returns the shares of a process.
func New(o Options) *Shares { return &Shares{o} }

const (
	// ttl is how long a share lasts: longer than an assignment of a client, because clients keep what they have when a process dies.
	ttl = 45 * time.Second

	// atOnce is how many questions are sent together.
	atOnce = 200
)

//go:embed renew.lua
var renewText string

var renew = goredis.NewScript(renewText)

// Renew asks for the share of this process of each limit. It returns one share per ask, in their order.
func (s *Shares) Renew(ctx context.Context, asks []quota.Ask) ([]quota.Share, error) {
	shares := make([]quota.Share, 0, len(asks))
	for len(asks) > 0 {
		n := min(len(asks), atOnce)
		some, err := s.renew(ctx, asks[:n])
		if goredis.HasErrorPrefix(err, "NOSCRIPT") {
			some, err = s.load(ctx, asks[:n])
		}
		if err != nil {
			return nil, fmt.Errorf("renew shares of limits: %w", err)
		}
		shares, asks = append(shares, some...), asks[n:]
	}
	return shares, nil
}

// load sends the script with each question: a cluster may know it on some nodes only. A question that was answered before is asked again, which
// changes nothing but that tokens it returned are gone.
func (s *Shares) load(ctx context.Context, asks []quota.Ask) ([]quota.Share, error) {
	all := make([]quota.Share, len(asks))
	for i := range asks {
		answer, err := renew.Run(ctx, s.o.Client, []string{s.o.Prefix + asks[i].Key}, s.args(&asks[i])...).Slice()
		if err != nil {
			return nil, err
		}
		if all[i], err = shareOf(answer); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Shares) renew(ctx context.Context, asks []quota.Ask) ([]quota.Share, error) {
	pipe := s.o.Client.Pipeline()
	answers := make([]*goredis.Cmd, len(asks))
	for i := range asks {
		answers[i] = renew.EvalSha(ctx, pipe, []string{s.o.Prefix + asks[i].Key}, s.args(&asks[i])...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	all := make([]quota.Share, len(asks))
	for i, a := range answers {
		answer, err := a.Slice()
		if err != nil {
			return nil, err
		}
		if all[i], err = shareOf(answer); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Shares) args(a *quota.Ask) []any {
	held := 0
	if a.Held {
		held = 1
	}
	return []any{
		s.o.Process, number(a.Rate), number(a.Burst), number(a.Saved), number(a.Demand), number(a.HeldRate), number(a.HeldBurst), number(a.Returned),
		number(a.ClaimRate), held, ttl.Milliseconds(),
	}
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// shareOf reads the answer of the script.
func shareOf(answer []any) (quota.Share, error) {
	const numbers = 5
	if len(answer) != numbers+1 {
		return quota.Share{}, fmt.Errorf("read a share: %d values", len(answer))
	}
	var n [numbers]float64
	for i := range n {
		text, _ := answer[i].(string)
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return quota.Share{}, fmt.Errorf("read a share: %w", err)
		}
		n[i] = f
	}
	processes, _ := answer[numbers].(int64)
	return quota.Share{Rate: n[0], Burst: n[1], Saved: n[2], FairRate: n[3], FairBurst: n[4], Processes: int(processes), TTL: ttl}, nil
}

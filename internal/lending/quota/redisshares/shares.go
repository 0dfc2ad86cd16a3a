package redisshares

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// Options are the settings of Shares.
type Options struct {
	Client  goredis.UniversalClient // required
	Prefix  string                  // prefix of every key
	Replica string                  // name of this replica among the replicas that share limits; not empty
}

// Shares divides limits among replicas.
type Shares struct{ o Options }

// New returns the shares of a replica.
func New(o Options) *Shares { return &Shares{o} }

const (
	// ttl is the life of a share. It is longer than an assignment of a client, because clients keep their assignments when
	// a replica dies.
	ttl = 45 * time.Second

	// ended is how long the share of a replica lasts after the replica stopped: until everything has expired at its
	// clients.
	ended = quota.TTL + 2*time.Second

	// atOnce is the number of questions in a pipeline.
	atOnce = 200
)

//go:embed renew.lua
var renewText string

var renew = goredis.NewScript(renewText)

// Renew asks for the share of this replica of each limit. It returns one share per ask, in their order. With an error,
// the shares without a TTL have no answer, and the others are valid: one node of a cluster may be unreachable.
func (s *Shares) Renew(ctx context.Context, asks []quota.Ask) ([]quota.Share, error) {
	shares := make([]quota.Share, len(asks))
	var (
		wait   sync.WaitGroup
		mu     sync.Mutex
		first  error
		failed int
	)
	for i := 0; i < len(asks); i += atOnce {
		n := min(i+atOnce, len(asks))
		wait.Go(func() { // concurrently, so that a node that does not answer delays only its own limits
			missing, err := s.renew(ctx, asks[i:n], shares[i:n])
			mu.Lock()
			defer mu.Unlock()
			failed += missing
			first = cmp.Or(first, err)
		})
	}
	wait.Wait()
	if first != nil {
		return shares, fmt.Errorf("renew shares of limits: %d of %d without an answer: %w", failed, len(asks), first)
	}
	return shares, nil
}

// renew sets the answered shares. It returns how many are not answered, and the first error.
func (s *Shares) renew(ctx context.Context, asks []quota.Ask, shares []quota.Share) (missing int, first error) {
	pipe := s.o.Client.Pipeline()
	answers := make([]*goredis.Cmd, len(asks))
	for i := range asks {
		answers[i] = renew.EvalSha(ctx, pipe, []string{s.o.Prefix + asks[i].Key}, s.question(&asks[i]))
	}
	_, _ = pipe.Exec(ctx) // each answer has its own error
	for i, a := range answers {
		answer, err := a.Slice()
		// a node that has just started does not have the script; the others of a cluster may have it
		if goredis.HasErrorPrefix(err, "NOSCRIPT") {
			answer, err = renew.Run(ctx, s.o.Client, []string{s.o.Prefix + asks[i].Key}, s.question(&asks[i])).Slice()
		}
		if err == nil {
			shares[i], err = shareOf(answer)
		}
		if err != nil {
			missing++
			first = cmp.Or(first, err)
		}
	}
	return missing, first
}

// question encodes an ask for the script. Numbers that are not finite produce an empty text, which the script rejects.
func (s *Shares) question(a *quota.Ask) []byte {
	lasts := ttl
	if a.Ends {
		lasts = ended
	}
	text, _ := json.Marshal(struct {
		*quota.Ask
		Replica string
		TTL     time.Duration
	}{a, s.o.Replica, lasts})
	return text
}

// shareOf decodes the answer of the script.
func shareOf(answer []any) (quota.Share, error) {
	const numbers = 7
	if len(answer) != numbers+2 {
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
	open, _ := answer[numbers].(int64)
	processes, _ := answer[numbers+1].(int64)
	return quota.Share{
		Rate: n[0], Burst: n[1], Saved: n[2], FairRate: n[3], FairBurst: n[4], ClaimedRate: n[5], ClaimedBurst: n[6],
		ClaimsOpen: open == 1, Replicas: int(processes), TTL: ttl,
	}, nil
}

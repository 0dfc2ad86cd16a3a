package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
)

// UsageSets keeps the index of usage in Redis, where any number of replicas share it. A set is a sorted set, whose
// scores are the ends of its texts. It expires with its last text. A set has at most 100,000 texts: those that end
// last.
type UsageSets struct {
	Client goredis.UniversalClient // required
	Prefix string                  // prefix of the keys; the name of the set follows
}

// maxScriptTexts is how many texts one call of the script adds. Each takes two values of Lua's stack, which has 8,000.
const maxScriptTexts = 500

// Add adds texts to sets: sets[set][text] is when the text ends. It also removes some of the texts that have ended.
// dropped is how many texts a full set lost.
func (u *UsageSets) Add(ctx context.Context, now time.Time, sets map[string]map[string]int64) (dropped int, err error) {
	type call struct {
		key  string
		args []any
		cmd  *goredis.Cmd
	}
	var calls []call
	for set, texts := range sets {
		c := call{key: u.Prefix + set}
		last := int64(0)
		flush := func() {
			c.args = append([]any{now.UnixMilli(), last - now.UnixMilli()}, c.args...)
			calls = append(calls, c)
			c.args, last = nil, 0
		}
		for text, end := range texts {
			c.args = append(c.args, end, text)
			last = max(last, end)
			if len(c.args) == 2*maxScriptTexts {
				flush()
			}
		}
		if len(c.args) > 0 {
			flush()
		}
	}
	script, pipe := scripts.Usage(), u.Client.Pipeline()
	for i := range calls {
		calls[i].cmd = pipe.EvalSha(ctx, script.Hash, []string{calls[i].key}, calls[i].args...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i := range calls {
		c := &calls[i]
		lost, err := c.cmd.Int()
		if err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
			lost, err = u.Client.Eval(ctx, script.Text, []string{c.key}, c.args...).Int()
		}
		if err != nil {
			return dropped, fmt.Errorf("write the index of usage: %w", err)
		}
		dropped += lost
	}
	return dropped, nil
}

// Page returns about count texts of a set that have not ended, and the cursor of the next page, or 0.
func (u *UsageSets) Page(ctx context.Context, now time.Time, set string, at uint64,
	count int) (texts []string, next uint64, err error) {
	all, next, err := u.Client.ZScan(ctx, u.Prefix+set, at, "", int64(count)).Result()
	for ; count > 1 && redisconn.IsTooLarge(err); count /= 2 {
		all, next, err = u.Client.ZScan(ctx, u.Prefix+set, at, "", int64(count/2)).Result()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the index of usage: %w", err)
	}
	for i := 0; i+1 < len(all); i += 2 {
		if end, err := strconv.ParseFloat(all[i+1], 64); err == nil && end >= float64(now.UnixMilli()) {
			texts = append(texts, all[i])
		}
	}
	return texts, next, nil
}

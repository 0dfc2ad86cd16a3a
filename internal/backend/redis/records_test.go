package redis_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func recordsOf(t *testing.T, client goredis.UniversalClient, timeout time.Duration) *redis.Records {
	t.Helper()
	s := redis.New(redis.Options{Client: client, Timeout: timeout})
	t.Cleanup(func() { _ = s.Close() })
	return redis.NewRecords(s)
}

func TestRecords(t *testing.T) {
	t.Parallel()
	backendtest.RunRecords(t, recordsOf(t, dial(t, redistest.Start(t)), patience))
}

func TestRecordsOnACluster(t *testing.T) {
	t.Parallel()
	backendtest.RunRecords(t, recordsOf(t, dialCluster(t, redistest.StartCluster(t, redistest.Setup{})), longest))
}

// The rights that docs/reference/redis-keys.md names are enough for limits across regions, and none can be left out: without it nothing is
// counted, instead of records taken for absent.
func TestRightsForRegions(t *testing.T) {
	t.Parallel()
	rights := strings.Fields("+exists +getrange +setrange")
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "redis-keys.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "`"+strings.Join(rights, " ")+"`") {
		t.Errorf("docs/reference/redis-keys.md does not have %q", rights)
	}
	try := func(rights []string) error {
		args := append(strings.Fields("--user default on nopass ~* -@all +evalsha +eval +get +mget +set +incrby +del +pttl +time +ping"), rights...)
		records := recordsOf(t, dial(t, redistest.Start(t, args...)), patience)
		key := []byte("api|customer=1|f60")
		for _, c := range []backend.RecordChange{
			{Kind: "home", Read: true},
			{Kind: backend.AccountKind, Value: append(backend.AppendHead(nil, 7), "what is kept"...), Lives: time.Minute, NotAfter: math.MaxInt64},
			{Kind: backend.AccountKind, Read: true},
		} {
			c.Key = key
			if c = changed(records, c); c.Err != nil {
				return c.Err
			}
		}
		r := &backend.Request{Outcomes: make([]backend.Outcome, 1), Takes: []backend.Take{{
			Key: key, Limit: limit(10, descriptor.Year), Hits: 1, Account: &backend.Account{Stamp: 7, Left: 10, Until: math.MaxInt64},
		}}}
		if err := backend.Await(t.Context(), records, time.Now(), r); err != nil || r.Outcomes[0].Used != 1 {
			return errors.Join(err, fmt.Errorf("%+v", r.Outcomes[0]))
		}
		return nil
	}
	if err := try(rights); err != nil {
		t.Error(err)
	}
	for i, right := range rights {
		if try(slices.Delete(slices.Clone(rights), i, i+1)) == nil {
			t.Errorf("%s is not needed", right)
		}
	}
}

func changed(records *redis.Records, c backend.RecordChange) backend.RecordChange {
	done := make(chan struct{})
	c.Done = func() { close(done) }
	records.Change(&c)
	<-done
	return c
}

// Records expire on their own, a counter that exists is noticed, and foreign values are replaced.
func TestRecordsInRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := dial(t, server)
	records := recordsOf(t, client, patience)
	key := "api|customer=1|f60"
	ctx := t.Context()
	if err := client.Set(ctx, key, "7", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if c := changed(records, backend.RecordChange{Key: []byte(key), Kind: "home", Read: true}); c.Err != nil || !c.Counted {
		t.Errorf("with an ordinary counter: %+v", c)
	}
	beside := "{" + key + "}:home"
	if err := client.LPush(ctx, beside, "foreign").Err(); err != nil {
		t.Fatal(err)
	}
	c := changed(records, backend.RecordChange{Key: []byte(key), Kind: "home", Value: []byte("12345678--------new"), Lives: time.Minute, NotAfter: math.MaxInt64})
	if c.Err != nil || c.Result != backend.RecordWritten {
		t.Fatalf("over a list: %+v", c)
	}
	if lives := client.PTTL(ctx, beside).Val(); lives < 50*time.Second || lives > time.Minute {
		t.Errorf("the record lives for %s", lives)
	}
	if err := client.Set(ctx, beside, "odd", 0).Err(); err != nil {
		t.Fatal(err)
	}
	c = changed(records, backend.RecordChange{Key: []byte(key), Kind: "home", Stamp: []byte("12345678"), Value: []byte("x"), NotAfter: math.MaxInt64})
	if c.Err != nil || c.Result != backend.RecordDiffers || string(c.Present) != "odd" {
		t.Errorf("of another stamp: %+v", c)
	}
	c = changed(records, backend.RecordChange{Key: []byte(key), Kind: "home", Stamp: backend.StampOf(c.Present), Value: []byte("12345678--------again"), NotAfter: math.MaxInt64})
	if c.Err != nil || c.Result != backend.RecordWritten || client.TTL(ctx, beside).Val() != -1 {
		t.Errorf("over a foreign value: %+v", c)
	}
}

// A Redis whose clock is set back does not write what was computed by the later time.
func TestRecordsWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	server, set := redistest.StartWithClock(t)
	records := recordsOf(t, dial(t, server), patience)
	key := []byte("api|customer=1|f60")
	at := changed(records, backend.RecordChange{Key: key, Kind: "home", Read: true}).At
	set(-time.Hour)
	c := changed(records, backend.RecordChange{Key: key, Kind: "home", Value: []byte("12345678--------"), NotBefore: at, NotAfter: at + 50_000})
	if c.Err != nil || c.Result != backend.RecordUntimely || c.At > at-time.Minute.Microseconds() {
		t.Errorf("after the clock was set back: %+v", c)
	}
}

func TestRecordsWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	records := recordsOf(t, dial(t, server), time.Second)
	server.Kill(t)
	if c := changed(records, backend.RecordChange{Key: []byte("k"), Kind: "home", Read: true}); !errors.Is(c.Err, backend.ErrUnavailable) {
		t.Errorf("error %v", c.Err)
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	ratelimitv3common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
)

// deadline is the deadline of a victim's call.
const deadline = time.Second

// victim is a well-behaved client. It sends calls at a steady rate, whether or not earlier ones were answered.
type victim struct {
	name  string
	rate  int                // calls per second
	value func(n int) string // descriptor value of call n
	anew  bool               // opens a connection for every call
	json  bool               // calls /json instead of gRPC
}

// call is one call that a victim made.
type call struct {
	began time.Time
	took  time.Duration
	ok    bool
}

// calls are the calls of one victim.
type calls struct {
	mu  sync.Mutex
	all []call
}

// run sends calls until ctx is done, and waits for the last answers.
func (v *victim) run(ctx context.Context, s *server, into *calls) error {
	conn, err := dial(s.grpc)
	if err != nil {
		return err
	}
	defer conn.Close()
	ask := func(n int) error { return v.call(s.grpc, conn, n) }
	if v.json {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: v.rate}, Timeout: deadline}
		defer client.CloseIdleConnections()
		ask = func(n int) error { return v.post(client, s.http, n) }
	}
	var running sync.WaitGroup
	defer running.Wait()
	tick := time.NewTicker(time.Second / time.Duration(v.rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		running.Go(func() {
			began := time.Now()
			err := ask(n)
			into.mu.Lock()
			into.all = append(into.all, call{began, time.Since(began), err == nil})
			into.mu.Unlock()
		})
	}
}

func dial(at string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

func (v *victim) call(at string, conn *grpc.ClientConn, n int) error {
	if v.anew {
		own, err := dial(at)
		if err != nil {
			return err
		}
		defer own.Close()
		conn = own
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("victim", "key", v.value(n)))
	return err
}

// post sends a call over /json.
func (v *victim) post(client *http.Client, at string, n int) error {
	body, err := protojson.Marshal(request("victim", "key", v.value(n)))
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	resp, err := client.Post("http://"+at+"/json", "application/json", bytes.NewReader(body)) //nolint:noctx // the client has a deadline
	if err != nil {
		return fmt.Errorf("call /json: %w", err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return fmt.Errorf("read the answer of /json: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/json answered %s", resp.Status)
	}
	return nil
}

func request(domain string, pairs ...string) *ratelimitv3.RateLimitRequest {
	d := &ratelimitv3common.RateLimitDescriptor{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3common.RateLimitDescriptor{d}}
}

// between summarizes the calls that started between two times.
func (c *calls) between(from, to time.Time) noticed {
	var took []time.Duration
	n, answered := 0, 0
	for _, one := range c.all {
		if one.began.Before(from) || !one.began.Before(to) {
			continue
		}
		n++
		if one.ok {
			answered++
		}
		took = append(took, one.took)
	}
	if n == 0 {
		return noticed{}
	}
	slices.Sort(took)
	return noticed{p99: took[len(took)*99/100], answered: float64(answered) / float64(n), calls: n}
}

// noticed summarizes a victim's calls in a phase. A call without an answer counts with the time until it failed.
type noticed struct {
	p99      time.Duration
	answered float64 // part of the calls
	calls    int
}

// recovered returns how long after a time calls are as fast as before: from then on every call is answered within three
// times the earlier p99, or within 20 ms if that is more. It returns false if that never happens.
func (c *calls) recovered(from, to time.Time, p99 time.Duration) (time.Duration, bool) {
	most := max(3*p99, 20*time.Millisecond)
	const window = 250 * time.Millisecond
	well := from
	for at := from; at.Before(to); at = at.Add(window) {
		seen := c.between(at, at.Add(window))
		if seen.calls > 0 && (seen.answered < 1 || seen.p99 > most) {
			well = at.Add(window)
		}
	}
	return well.Sub(from), well.Before(to)
}

// Command grpcgo is the client of the interop tests in Go. Arguments: the address of the service, and the address of a
// service that cannot decide.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	name     = "grpcgo"
	patience = time.Minute // limit for calls that must succeed
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, stuck string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	other, err := grpc.NewClient(stuck, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	c := &client{conn: conn, service: ratelimitv3.NewRateLimitServiceClient(conn), health: healthv1.NewHealthClient(conn),
		in: bufio.NewReader(os.Stdin)}
	c.oneByOne()
	c.atOnce()
	err = errors.Join(c.withoutAnswer(ratelimitv3.NewRateLimitServiceClient(other)), c.drain())
	return errors.Join(err, conn.Close(), other.Close())
}

func say(step, text string) { fmt.Printf("%s: %s\n", step, text) }

// ask is a request with one descriptor for each value.
func ask(key string, values ...string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: "interop"}
	for _, v := range values {
		r.Descriptors = append(r.Descriptors, &ratelimitv3common.RateLimitDescriptor{
			Entries: []*ratelimitv3common.RateLimitDescriptor_Entry{{Key: key, Value: v}},
		})
	}
	return r
}

func codeOf(err error) string {
	return strings.ToUpper(codeNames.Replace(status.Code(err).String()))
}

// codeNames turns Go's names of codes into the names of the protocol.
var codeNames = strings.NewReplacer("DeadlineExceeded", "DEADLINE_EXCEEDED", "InvalidArgument", "INVALID_ARGUMENT",
	"NotFound", "NOT_FOUND", "Canceled", "CANCELLED")

// outcome is the answer's code, or the status of a call that failed.
func outcome(r *ratelimitv3.RateLimitResponse, err error) string {
	if err != nil {
		return codeOf(err)
	}
	return r.GetOverallCode().String()
}

// tally formats the number of each outcome.
func tally(counts map[string]int) string {
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", code, counts[code]))
	}
	return strings.Join(parts, ", ")
}

type client struct {
	conn    *grpc.ClientConn
	service ratelimitv3.RateLimitServiceClient
	health  healthv1.HealthClient
	in      *bufio.Reader
}

func (c *client) oneByOne() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	say("unary", outcome(c.service.ShouldRateLimit(ctx, ask("open", name))))

	_, err := c.service.ShouldRateLimit(ctx, new(ratelimitv3.RateLimitRequest))
	say("invalid", codeOf(err)+" "+status.Convert(err).Message())

	err = c.conn.Invoke(ctx, "/envoy.service.ratelimit.v3.RateLimitService/NoSuchMethod", ask("open", name),
		new(ratelimitv3.RateLimitResponse))
	say("unknown method", codeOf(err))

	say("gzip", outcome(c.service.ShouldRateLimit(ctx, ask("open", strings.Repeat(name, 1000)),
		grpc.UseCompressor("gzip"))))

	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	with := metadata.AppendToOutgoingContext(ctx, "x-long", strings.Repeat("v", 8000), "x-some-bin", string(all))
	say("metadata", outcome(c.service.ShouldRateLimit(with, ask("open", name))))

	var values []string
	for i := range 256 {
		values = append(values, fmt.Sprint(name, " ", i, strings.Repeat("v", 4096)))
	}
	answer, err := c.service.ShouldRateLimit(ctx, ask("open", values...))
	say("1 MiB in 256 descriptors", fmt.Sprint(outcome(answer, err), " ", len(answer.GetStatuses())))

	say("health", checked(c.health.Check(ctx, new(healthv1.HealthCheckRequest))))
	say("health of another service", checked(c.health.Check(ctx,
		&healthv1.HealthCheckRequest{Service: "no.such.Service"})))
}

func checked(r *healthv1.HealthCheckResponse, err error) string {
	if err != nil {
		return codeOf(err)
	}
	return r.GetStatus().String()
}

func (c *client) atOnce() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	outcomes := make(chan string)
	for range 1000 {
		go func() { outcomes <- outcome(c.service.ShouldRateLimit(ctx, ask("some", name))) }()
	}
	counts := make(map[string]int)
	for range 1000 {
		counts[<-outcomes]++
	}
	say("1,000 at once", tally(counts))
}

// withoutAnswer tests a deadline and a cancellation while Redis hangs. The test sends a line when Redis hangs. After a
// second without an answer, the service treats Redis as dead.
func (c *client) withoutAnswer(stuck ratelimitv3.RateLimitServiceClient) error {
	if _, err := c.in.ReadString('\n'); err != nil {
		return err
	}
	late, cancelled := make(chan string), make(chan string)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		late <- outcome(stuck.ShouldRateLimit(ctx, ask("open", name)))
	}()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		time.AfterFunc(100*time.Millisecond, cancel)
		cancelled <- outcome(stuck.ShouldRateLimit(ctx, ask("open", name)))
	}()
	say("deadline", <-late)
	say("cancel", <-cancelled)
	return nil
}

// drain makes 16 calls at a time until a line comes in. Meanwhile the service is replaced.
func (c *client) drain() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch, err := c.health.Watch(ctx, new(healthv1.HealthCheckRequest))
	if err != nil {
		return err
	}
	say("watch", checked(watch.Recv()))

	var (
		stopped atomic.Bool
		callers sync.WaitGroup
		mu      sync.Mutex
		counts  = make(map[string]int)
	)
	for range 16 {
		callers.Go(func() {
			for !stopped.Load() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				got := outcome(c.service.ShouldRateLimit(ctx, ask("load", name)))
				cancel()
				mu.Lock()
				counts[got]++
				mu.Unlock()
			}
		})
	}
	say("watch", checked(watch.Recv()))
	_, err = c.in.ReadString('\n')
	stopped.Store(true)
	callers.Wait()
	say("load", tally(counts))
	return err
}

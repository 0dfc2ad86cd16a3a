package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

var errEnded = errors.New("the server ended the stream")

// tooLarge is the error for a response beyond Options.MaxMessageBytes.
type tooLarge struct{ error }

// stream opens one stream on a new connection, and handles it until it ends.
func (c *Client) stream(ctx context.Context, apply func(config.Result)) ending {
	conn, err := connect(&c.o)
	if err != nil {
		return ending{err: err}
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	calls, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).
		StreamAggregatedResources(metadata.NewOutgoingContext(ctx, outgoing(c.o.Headers)))
	if err != nil {
		return ending{err: errors.New(status.Convert(err).Message())}
	}
	c.metrics.connected.Store(true)
	c.metrics.streams.Add(1)
	defer c.metrics.connected.Store(false)

	s := session{Client: c, calls: calls, apply: apply}
	responses := make(chan *discoveryv3.DiscoveryResponse)
	var broken error // set when responses is closed
	var receiver sync.WaitGroup
	receiver.Go(func() {
		defer close(responses)
		for {
			r, err := calls.Recv()
			if err != nil {
				broken = err
				return
			}
			select {
			case responses <- r:
			case <-ctx.Done():
				broken = ctx.Err()
				return
			}
		}
	})
	c.log.Info("connected to the xDS server, asking for rules")
	err = s.follow(responses)
	if errors.Is(err, io.EOF) { // a failed Send only reports the end of the stream; Recv has the reason
		err = nil
		for range responses {
		}
	}
	cancel()
	receiver.Wait()
	if err == nil {
		err = broken
	}
	return ending{opened: true, err: plainly(err)}
}

// plainly describes why a stream ended. The text is the same as long as the reason is.
func plainly(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	s, is := status.FromError(err)
	if !is {
		return err
	}
	plain := fmt.Errorf("%s: %s", s.Code(), s.Message())
	if s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max") {
		return tooLarge{plain}
	}
	return plain
}

// session is one open stream.
type session struct {
	*Client
	calls discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	apply func(config.Result)

	// version is the last one accepted on this stream. Every stream starts without one, because another instance of the
	// server may have given the same version to other rules.
	version string
	nonce   string // nonce of the newest response
	others  complaints
}

// A server may send sets faster than anyone needs them. After each one the client pauses, several times as long as the
// work took, and then uses the newest set received by then. So rules take at most a quarter of a processor, and their
// log stays short.
const (
	workShare  = 3
	leastPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// follow subscribes to rules and answers responses until the stream ends.
func (s *session) follow(responses <-chan *discoveryv3.DiscoveryResponse) error {
	if err := s.send(nil); err != nil {
		return err
	}
	reject, pause := time.NewTimer(0), time.NewTimer(0)
	reject.Stop()
	pause.Stop()
	pausing := false
	var held *discoveryv3.DiscoveryResponse // came during the pause
	reason := ""
	answer := func(r *discoveryv3.DiscoveryResponse) error {
		s.failures, s.logged = 0, complaints{}
		s.nonce = r.GetNonce()
		start := time.Now()
		var wait time.Duration
		reason, wait = s.judge(r)
		held, pausing = nil, true
		pause.Reset(min(max(leastPause, workShare*time.Since(start)), mostPause))
		if reason != "" {
			reject.Reset(wait)
			return nil
		}
		s.version = r.GetVersionInfo()
		return s.send(nil)
	}
	for {
		select {
		case r, more := <-responses:
			if !more {
				if held != nil {
					return answer(held)
				}
				return nil
			}
			if r.GetTypeUrl() != typeURL && r.GetTypeUrl() != "" {
				if s.others.news(r.GetTypeUrl(), time.Now()) {
					s.log.Warn("the xDS server sent resources of another type: ignored", "type", r.GetTypeUrl())
				}
				continue
			}
			reject.Stop() // a newer response replaces the rejected one
			if held = r; pausing {
				continue
			}
			if err := answer(r); err != nil {
				return err
			}
		case <-pause.C:
			if pausing = false; held == nil {
				continue
			}
			if err := answer(held); err != nil {
				return err
			}
		case <-reject.C:
			s.rejected.sent(time.Now())
			if err := s.send(&rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: reason}); err != nil {
				return err
			}
		}
	}
}

// send sends a request that answers the newest response: an ACK if rejected is nil, else a NACK.
func (s *session) send(rejected *rpcstatus.Status) error {
	return s.calls.Send(&discoveryv3.DiscoveryRequest{
		Node:          s.node,
		TypeUrl:       typeURL,
		VersionInfo:   s.version,
		ResponseNonce: s.nonce,
		ErrorDetail:   rejected,
	})
}

// judge applies the rules of a response. If some are rejected, it returns the reason, and how long to wait before the
// NACK.
func (s *session) judge(r *discoveryv3.DiscoveryResponse) (reason string, wait time.Duration) {
	version, content := r.GetVersionInfo(), sumOf(r.GetResources())
	log := s.log.With("version", version, "resources", len(r.GetResources()))
	if reason, known := s.rejected.known(content); known {
		s.metrics.rejected.Add(1)
		wait = s.rejected.reject(version, content, reason, time.Now())
		log.Debug("the xDS server sent the rejected rules again", "nack_in", wait)
		return reason, wait
	}
	if s.have && content == s.inForce && s.rejected.reason == "" {
		s.metrics.accepted.Add(1)
		log.Debug("the xDS server sent the active rules again")
		return "", 0
	}
	result, err := s.use(r)
	if err != nil {
		s.metrics.rejected.Add(1)
		wait = s.rejected.reject(version, content, err.Error(), time.Now())
		s.have = s.have || result.Tree != nil
		if s.have {
			log.Error("rules rejected: bad resources keep their last good versions, the others are active", "error", err,
				"changed", result.Changed)
		} else {
			log.Error("rules rejected, and no rules are active: requests are answered with UNAVAILABLE", "error", err)
		}
		s.inForce = sum{} // not all that the server sent is active
		if result.Changed || !s.have {
			s.apply(result)
		}
		return err.Error(), wait
	}
	s.metrics.accepted.Add(1)
	s.rejected.accepted()
	s.inForce, s.have = content, true
	log.Info("rules accepted", "changed", result.Changed, "rules", len(result.Tree.Rules))
	if result.Changed {
		s.apply(result)
	}
	return "", 0
}

// use decodes and compiles the rules of a response. It recovers from panics: no bytes of the server may end the
// process.
func (s *session) use(r *discoveryv3.DiscoveryResponse) (result config.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic while reading rules", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("internal error while reading the rules: %v", p)
		}
	}()
	return s.rules.Apply(resources(r.GetResources()))
}

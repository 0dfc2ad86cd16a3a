package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
)

// inBubble runs a test with a virtual clock.
func inBubble(t *testing.T, h Handler, change func(*Options), test func(t *testing.T, s *Server, dial func() *rawClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := startOn(t, l, h, change)
		test(t, s, func() *rawClient {
			c := rawOn(t, l.dial())
			_ = c.conn.SetDeadline(time.Time{})
			return c
		})
	})
}

// A server that stops answers all calls in flight, even if its clients do not answer pings.
func TestShutdownAnswersCallsInFlight(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprintf("deaf: %v", deaf), func(t *testing.T) {
			h := hold()
			inBubble(t, h, nil, func(t *testing.T, s *Server, dial func() *rawClient) {
				c, idle := dial(), dial()
				c.deaf, idle.deaf = deaf, deaf
				c.begin([]byte("a"))
				c.begin([]byte("b"))
				c.open(false) // its message follows later
				c.roundTrip()
				began := time.Now()
				done := make(chan error, 1)
				go func() { done <- s.Shutdown(context.Background()) }()
				c.until("GOAWAY", func() bool { return c.seen[len(c.seen)-1].kind == http2.FrameGoAway })
				c.begin([]byte("on its way"))
				c.data(5, true, message([]byte("c")))
				go func() {
					for range 4 {
						call := <-h
						time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time
						call.Reply(echoed(call.Message))
					}
				}()
				gone := idle.goAways()
				passed := time.Since(began)
				_ = idle.conn.Close()
				if deaf && passed < drainTimeout || !deaf && passed > drainTimeout || passed > drainTimeout+2*leaveTimeout {
					t.Errorf("the idle connection was closed after %v", passed)
				}
				if len(gone) != 2 || gone[0].stream != maxStreamID || gone[1].stream != 0 || gone[1].code != http2.ErrCodeNo {
					t.Errorf("idle: GOAWAY %+v", gone)
				}
				all := c.goAways()
				_ = c.conn.Close()
				if len(all) != 2 || all[0].stream != maxStreamID || all[1].stream != 7 || all[1].code != http2.ErrCodeNo {
					t.Errorf("GOAWAY %+v", all)
				}
				for id := uint32(1); id <= 7; id += 2 {
					if a := c.answers[id]; a.field("grpc-status") != "0" {
						t.Errorf("stream %d: %v", id, a)
					}
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				if err := s.Shutdown(t.Context()); err != nil { // again
					t.Error(err)
				}
			})
		})
	}
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	h := hold()
	inBubble(t, h, nil, func(t *testing.T, s *Server, dial func() *rawClient) {
		c := dial()
		c.begin(nil)
		c.roundTrip()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			for c.read() == nil {
			}
		}()
		if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		call := <-h
		s.Close()
		<-call.Done()
		call.Reply(echoed(nil))
		if c.answers[1] != nil {
			t.Error("Close lets a call be answered")
		}
		if err := s.Serve(newPipes()); !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve after Close: %v", err)
		}
	})
}

// A connection can be closed while its last batch is with the handler. The handler can still use the calls.
func TestShutdownWaitsForTheHandler(t *testing.T) {
	handling, goOn := make(chan struct{}), make(chan struct{})
	addr, s := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
		close(handling)
		<-goOn
		for _, call := range calls {
			call.Reply(echoed(call.Message))
		}
	}), nil)
	c := rawDial(t, addr)
	c.begin([]byte("a"))
	<-handling
	s.Close()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // select picks any of two ready channels
		if err := s.Shutdown(ended); err == nil {
			t.Fatal("Shutdown has returned while the handler has a batch")
		}
	}
	close(goOn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// The client of an old connection is asked to leave. After the grace period it is closed.
func TestMaxConnectionAge(t *testing.T) {
	h := hold()
	inBubble(t, h, func(o *Options) { o.MaxConnectionAge, o.MaxAgeGrace = time.Hour, 10*time.Minute },
		func(t *testing.T, _ *Server, dial func() *rawClient) {
			began := time.Now()
			c := dial()
			c.begin([]byte("stays"))
			c.until("GOAWAY", func() bool { return len(c.seen) > 0 && c.seen[len(c.seen)-1].kind == http2.FrameGoAway })
			asked := time.Since(began)
			if asked < 54*time.Minute || asked > 66*time.Minute+2*time.Second {
				t.Errorf("asked after %v", asked)
			}
			call := <-h
			id := c.begin([]byte("on its way"))
			(<-h).Reply(echoed("x"))
			if a := c.wait(id); a.field("grpc-status") != "0" {
				t.Errorf("%v", a)
			}
			c.goAways()
			if grace := time.Since(began) - asked; grace < 10*time.Minute || grace > 10*time.Minute+2*time.Second {
				t.Errorf("closed after %v", grace)
			}
			if !errors.Is(call.Err(), context.Canceled) {
				t.Errorf("the call goes on: %v", call.Err())
			}
			call.Fail(codes.Internal, "")
		})
}

// Connections that started together, and may only reach an age of seconds, do not end together.
func TestYoungConnectionsEndAtDifferentTimes(t *testing.T) {
	inBubble(t, echo{}, func(o *Options) { o.MaxConnectionAge = 2 * time.Second },
		func(t *testing.T, _ *Server, dial func() *rawClient) {
			const connections = 40
			ends := make(chan time.Duration, connections)
			began := time.Now()
			for range connections {
				c := dial()
				go func() {
					c.goAways()
					ends <- time.Since(began)
				}()
			}
			times := make(map[time.Duration]int)
			for range connections {
				end := <-ends
				if times[end]++; end < 1800*time.Millisecond || end > 4*time.Second { // the server waits a moment for late requests
					t.Errorf("a connection ended after %v", end)
				}
			}
			if len(times) < 4 {
				t.Errorf("all ended at %v", times)
			}
		})
}

func TestIdleConnectionsArePinged(t *testing.T) {
	inBubble(t, echo{}, func(o *Options) { o.PingAfter, o.PingTimeout = 30*time.Second, 10*time.Second },
		func(t *testing.T, _ *Server, dial func() *rawClient) {
			fine, deaf := dial(), dial()
			deaf.deaf = true
			stop := time.AfterFunc(time.Hour, func() { _ = fine.conn.Close() })
			defer stop.Stop()
			began := time.Now()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for fine.read() == nil {
				}
			}()
			deaf.goAways()
			if passed := time.Since(began); passed < 40*time.Second || passed > 43*time.Second {
				t.Errorf("closed after %v", passed)
			}
			<-done
			if passed := time.Since(began); passed < time.Hour {
				t.Errorf("the client that answers was disconnected after %v", passed)
			}
			pings := 0
			for _, e := range fine.seen {
				if e.kind == http2.FramePing && !e.ack {
					pings++
				}
			}
			if pings < 100 || pings > 120 {
				t.Errorf("%d pings in an hour", pings)
			}
		})
}

// Calls are answered in any order, by many goroutines, while clients reset calls, disconnect silently, and are asked to
// leave. Clients that stay lose no call, and nothing remains.
func TestStorm(t *testing.T) {
	before := goleak.IgnoreCurrent()
	calls := newCalls(t, 100_000)
	pending := make(chan *Call, 100_000)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			var some []*Call
			answer := func() {
				rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
				for _, call := range some {
					if rand.IntN(4) == 0 { // the handler watches this call's context
						select {
						case <-call.Done():
						default:
						}
					}
					call.Reply(echoed(call.Message))
				}
				some = some[:0]
			}
			for call := range pending {
				some = append(some, call)
				for more := true; more && len(some) < 20; {
					select {
					case call, more = <-pending:
						if more {
							some = append(some, call)
						}
					default:
						more = false
					}
				}
				answer()
			}
		})
	}
	addr, s := start(t, handlerFunc(func(_ time.Time, calls []*Call) {
		for _, call := range calls {
			if rand.IntN(3) == 0 {
				call.Reply(echoed(call.Message))
			} else {
				pending <- call
			}
		}
	}), func(o *Options) { o.Calls = calls })
	var clients sync.WaitGroup
	var answered sync.Map
	begun := make(chan struct{}, 1000)
	for n := range 24 {
		c := rawDial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		c.ok(c.fr.WriteWindowUpdate(0, 1<<30))
		clients.Go(func() {
			defer c.conn.Close()
			last := uint32(0)
			leaving := func() bool {
				for _, e := range c.seen {
					if e.kind == http2.FrameGoAway && e.stream != maxStreamID {
						last = e.stream
						return true
					}
				}
				return false
			}
			stays := n%3 == 0
			var waiting []uint32
			for round := 0; ; round++ {
				if stays && leaving() {
					break
				}
				var ids []uint32
				for range 1 + rand.IntN(20) {
					ids = append(ids, c.begin(make([]byte, rand.IntN(3000)), "grpc-timeout", "10S"))
				}
				if round == 20 {
					begun <- struct{}{}
				}
				if n%3 == 1 && round > 3 {
					at := rand.IntN(len(ids))
					c.ok(c.fr.WriteRSTStream(ids[at], http2.ErrCodeCancel))
					ids = slices.Delete(ids, at, at+1)
				}
				if n%3 == 2 && round == 25 {
					return
				}
				if n%3 == 1 && round == 40 {
					return
				}
				waiting = append(waiting, ids...)
				for len(waiting) > 30 && !leaving() { // some answers come later
					if err := c.read(); err != nil {
						if stays {
							t.Errorf("client %d: %v", n, err)
						}
						return
					}
					waiting = slices.DeleteFunc(waiting, c.done)
				}
			}
			c.goAways()
			for id := uint32(1); id <= last; id += 2 {
				if a := c.answers[id]; a == nil || !a.ended || a.field("grpc-status") != "0" {
					t.Errorf("client %d lost call %d of %d: %v", n, id, last, a)
					return
				}
			}
			answered.Store(n, last)
		})
	}
	for range 24 {
		<-begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	clients.Wait()
	s.Close()
	close(pending)
	workers.Wait()
	if n := calls.InFlight(); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	kept := 0
	answered.Range(func(any, any) bool { kept++; return true })
	if kept != 8 && !t.Failed() {
		t.Errorf("%d clients stayed", kept)
	}
	goleak.VerifyNone(t, before)
}

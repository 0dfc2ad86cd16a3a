package redis_test

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A million steps of reservations. The processes that take them are killed with SIGKILL at any moment, and the clock of
// Redis is set back and ahead.
func TestSoakReservations(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes minutes")
	}
	seed := rand.Uint64()
	s := newMortal(t, 2000, seed)
	backendtest.SoakReservations(t, s, 1_000_000, seed)
	t.Logf("%d processes were killed; %d of them while Redis had a step to answer", s.killed, s.lost)
	if s.lost == 0 {
		t.Error("no answer was lost")
	}
}

// The same for a moment.
func TestReservationsOfKilledProcesses(t *testing.T) {
	s := newMortal(t, 30, 8)
	backendtest.SoakReservations(t, s, 400, 8)
	if s.killed == 0 {
		t.Error("no process was killed")
	}
}

// mortal is a store in another process, TestTaker, that is killed with SIGKILL now and then while it carries out a
// request. Then another process replaces it. Redis' clock is set by the test.
type mortal struct {
	t      *testing.T
	server *redistest.Server
	set    func(time.Time)
	random *rand.Rand
	lasts  int64 // a process is killed after this many requests on average

	admin *goredis.Client

	taker  *taker                    // nil while none runs
	known  map[*descriptor.Limit]int // limits that the process has received, and their numbers
	killed int
	lost   int
}

// taker is a process.
type taker struct {
	cmd   *exec.Cmd
	order *gob.Encoder
	reply *json.Decoder
}

// order is a request for a taker.
type order struct {
	Together bool
	Takes    []orderedTake
}

// orderedTake is a take. Its limit is sent once, and has a number from then on.
type orderedTake struct {
	Key         []byte
	Number      int
	Limit       []byte // JSON; empty for a number that the taker already has
	Zone        string // time zone of the limit, which is not in its JSON
	Hits        int64
	Member      int
	Reservation *backend.Reservation
}

// reply is a taker's answer.
type reply struct {
	Outcomes     []backend.Outcome
	Reservations []backend.Reservation
	Failure      string
}

func newMortal(t *testing.T, lasts int64, seed uint64) *mortal {
	t.Helper()
	server, set := redistest.StartWithStoppedClock(t, time.Now())
	m := &mortal{
		t: t, server: server, admin: server.Client(t), set: set, lasts: lasts, random: rand.New(rand.NewPCG(seed, 1)),
	}
	t.Cleanup(func() {
		if m.taker != nil {
			_ = m.taker.cmd.Process.Kill()
			_ = m.taker.cmd.Wait()
		}
	})
	return m
}

// Start implements backend.Store.
func (m *mortal) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (settled bool, err error) {
	return true, m.take(ctx, now, r)
}

func (m *mortal) take(_ context.Context, now time.Time, r *backend.Request) error {
	if m.taker == nil {
		if err := m.start(); err != nil {
			return err
		}
	}
	o, err := m.order(r)
	if err != nil {
		return err
	}
	m.set(now)
	if err := m.taker.order.Encode(o); err != nil {
		return err
	}
	kills := m.random.Int64N(m.lasts) == 0
	if kills {
		// Up to a millisecond: Redis has the request then, or has not, and the answer is on its way, or is there.
		for end := time.Now().Add(time.Duration(m.random.Int64N(1 << (16 + m.random.IntN(5))))); time.Now().Before(end); {
		}
		if err := m.taker.cmd.Process.Kill(); err != nil {
			return err
		}
		m.killed++
	}
	var answer reply
	err = m.taker.reply.Decode(&answer)
	if kills {
		m.bury()
		if err != nil {
			m.lost++
			return backendtest.ErrLost
		}
	}
	if err != nil {
		return fmt.Errorf("read what a process answers: %w", err)
	}
	if answer.Failure != "" {
		return errors.New(answer.Failure)
	}
	copy(r.Outcomes, answer.Outcomes)
	for i, h := range answer.Reservations {
		if h.Op != 0 {
			*r.Takes[i].Reservation = h
		}
	}
	return nil
}

// order makes the order of a request.
func (m *mortal) order(r *backend.Request) (order, error) {
	o := order{Together: r.Together}
	for _, t := range r.Takes {
		n, known := m.known[t.Limit]
		next := orderedTake{Key: t.Key, Number: n, Hits: t.Hits, Member: t.Member, Reservation: t.Reservation}
		if !known {
			next.Number = len(m.known)
			m.known[t.Limit] = next.Number
			l := *t.Limit
			if l.Window.Location != nil {
				next.Zone, l.Window.Location = l.Window.Location.String(), nil
			}
			var err error
			if next.Limit, err = json.Marshal(l); err != nil {
				return o, err
			}
		}
		o.Takes = append(o.Takes, next)
	}
	return o, nil
}

// start starts a process.
func (m *mortal) start() error {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestTaker$")
	cmd.Env = append(os.Environ(), takerServer+"="+m.server.Addr)
	cmd.SysProcAttr = redistest.EndsWithTest()
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	replies, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.taker = &taker{cmd, gob.NewEncoder(orders), json.NewDecoder(replies)}
	m.known = make(map[*descriptor.Limit]int)
	return nil
}

// bury waits until a killed process has ended, and Redis has carried out its commands.
func (m *mortal) bury() {
	_ = m.taker.cmd.Wait()
	m.taker = nil
	redistest.Eventually(m.t, "the connections of a killed process to end", func(ctx context.Context) error {
		list, err := m.admin.ClientList(ctx).Result()
		if err != nil {
			return err
		}
		for line := range strings.Lines(list) {
			if !strings.Contains(line, " flags=U ") { // the test itself uses the unix socket
				return errors.New(line)
			}
		}
		return nil
	})
}

// takerServer is the variable that makes TestTaker a taker: it names the server.
const takerServer = "RATELIMITD_TEST_TAKER_SERVER"

// TestTaker is a process that carries out orders until it is killed.
func TestTaker(t *testing.T) {
	server := os.Getenv(takerServer)
	if server == "" {
		t.Skip("it is a process of TestReservationsOfKilledProcesses")
	}
	s := redis.New(redis.Options{Client: connect(t, redisconn.Options{URL: server}), Timeout: patience})
	orders, replies := gob.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var limits []*descriptor.Limit
	for {
		var o order
		if orders.Decode(&o) != nil {
			os.Exit(0) // the test is over
		}
		var answer reply
		r, err := o.request(&limits)
		if err == nil {
			err = backend.Await(t.Context(), s, time.Now(), r)
		}
		if err != nil {
			answer.Failure = err.Error()
		}
		answer.Outcomes = r.Outcomes
		for _, t := range r.Takes {
			var h backend.Reservation
			if t.Reservation != nil {
				h = *t.Reservation
			}
			answer.Reservations = append(answer.Reservations, h)
		}
		if replies.Encode(answer) != nil {
			os.Exit(1)
		}
	}
}

// request makes the request of an order. limits are those that orders have sent so far.
func (o *order) request(limits *[]*descriptor.Limit) (*backend.Request, error) {
	r := &backend.Request{Together: o.Together, Outcomes: make([]backend.Outcome, len(o.Takes))}
	for _, t := range o.Takes {
		if len(t.Limit) > 0 {
			var l descriptor.Limit
			err := json.Unmarshal(t.Limit, &l)
			if err == nil && t.Zone != "" {
				l.Window.Location, err = time.LoadLocation(t.Zone)
			}
			if err == nil {
				err = l.Compile()
			}
			if err != nil {
				return r, err
			}
			*limits = append(*limits, &l)
		}
		r.Takes = append(r.Takes, backend.Take{Key: t.Key, Limit: (*limits)[t.Number], Hits: t.Hits, Member: t.Member, Reservation: t.Reservation})
	}
	return r, nil
}

// A million takes of limits with large numbers, windows of milliseconds, and calendars.
func TestSoakNumbers(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes a minute")
	}
	s, _ := openStore(t, redis.Options{CallerClock: true})
	backendtest.SoakNumbers(t, s, 1_000_000, rand.Uint64())
}

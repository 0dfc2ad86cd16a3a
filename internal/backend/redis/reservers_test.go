package redis_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/backendtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// reserverServer is the variable that makes TestReserver a reserver: it names the server. reserverNumber tells
// reservers apart.
const (
	reserverServer = "RATELIMITD_TEST_RESERVER_SERVER"
	reserverNumber = "RATELIMITD_TEST_RESERVER_NUMBER"
)

// Hits and duration of the reservations that reservers make.
const (
	reserverLimit = 40
	reserverMost  = 12
	reserverTTL   = 1500 * time.Millisecond
)

// emptyCounters are counters whose reservations are cancelled, or released when they expire. So they are often full,
// and in the end they are empty.
func emptyCounters() []backend.Take {
	var takes []backend.Take
	limits := backendtest.EveryAlgorithm(reserverLimit)
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		l := *limits[name]
		if l.Algorithm > descriptor.TokenBucket {
			continue
		}
		bounds := descriptor.DefaultReservations()
		bounds.Release = true
		l.Reservations = &bounds
		takes = append(takes, backend.Take{Key: []byte("empty|" + name), Limit: &l})
	}
	return takes
}

// sumCounter is never full. Reservations that expire stay charged there.
func sumCounter() backend.Take {
	return backend.Take{Key: []byte("sum"), Limit: backendtest.Limit("4294967295/1y,reservations")}
}

// TestReserver is a process that TestReserversMayBeKilled kills. It reserves and commits, and writes each step on the
// counter of the sum before and after it takes the step.
func TestReserver(t *testing.T) {
	server := os.Getenv(reserverServer)
	if server == "" {
		t.Skip("it is a process of TestReserversMayBeKilled")
	}
	s := redis.New(redis.Options{Client: connect(t, redisconn.Options{URL: server}), Timeout: patience})
	var number uint64
	if _, err := fmt.Sscan(os.Getenv(reserverNumber), &number); err != nil {
		t.Fatal(err)
	}
	h := reserver{store: s, random: rand.New(rand.NewPCG(number, number)), empty: emptyCounters()}
	binary.BigEndian.PutUint64(h.id[:], number)
	for {
		if err := h.step(t.Context(), os.Stdout); err != nil {
			fmt.Println("failed", err)
			return
		}
	}
}

type reserver struct {
	store  backend.Store
	random *rand.Rand
	empty  []backend.Take
	id     backend.ReservationID
	n      uint64
}

func (h *reserver) take(ctx context.Context, t backend.Take, hits int64, reservation backend.Reservation) (backend.Outcome, backend.Reservation, error) {
	reservation.ID = h.id
	t.Hits, t.Reservation = hits, &reservation
	r := &backend.Request{Takes: []backend.Take{t}, Outcomes: make([]backend.Outcome, 1)}
	err := backend.Await(ctx, h.store, time.Now(), r)
	return r.Outcomes[0], reservation, err
}

func (h *reserver) step(ctx context.Context, out io.Writer) error {
	h.n++
	binary.BigEndian.PutUint64(h.id[8:], h.n)
	amount, ttl := 1+h.random.Int64N(reserverMost), reserverTTL.Microseconds()
	if h.random.IntN(2) == 0 {
		t := h.empty[h.random.IntN(len(h.empty))]
		o, reservation, err := h.take(ctx, t, amount, backend.Reservation{Op: backend.OpReserve, TTL: ttl, Least: 1})
		if err != nil || !o.Allowed {
			return err
		}
		if o.Used > reserverLimit || reservation.Granted < 1 || reservation.Granted > amount {
			return fmt.Errorf("%s: %d in use, %d granted of %d", t.Key, o.Used, reservation.Granted, amount)
		}
		if h.random.IntN(50) > 0 { // otherwise it stops without a commit
			_, _, err = h.take(ctx, t, 0, backend.Reservation{Op: backend.OpCommit, Final: true})
		}
		return err
	}
	fmt.Fprintf(out, "reserve %d %d\n", h.n, amount)
	o, _, err := h.take(ctx, sumCounter(), amount, backend.Reservation{Op: backend.OpReserve, TTL: ttl})
	if err != nil {
		return err
	}
	if !o.Allowed {
		return fmt.Errorf("reserve %d: %+v", amount, o)
	}
	fmt.Fprintf(out, "reserved %d %d\n", h.n, amount)
	if h.random.IntN(20) == 0 {
		return nil
	}
	actual := h.random.Int64N(2 * reserverMost)
	fmt.Fprintf(out, "commit %d %d\n", h.n, actual)
	_, c, err := h.take(ctx, sumCounter(), actual, backend.Reservation{Op: backend.OpCommit, Final: true})
	if err != nil {
		return err
	}
	if c.Result != backend.ReservationDone {
		return fmt.Errorf("commit of %d: result %d", actual, c.Result)
	}
	fmt.Fprintf(out, "committed %d %d\n", h.n, actual)
	return nil
}

// Processes that reserve are killed with SIGKILL at any moment. Their reservations are released or stay charged when
// they expire: nothing is lost, and nothing is charged twice.
func TestReserversMayBeKilled(t *testing.T) {
	lasts := 2 * time.Second
	if os.Getenv("RATELIMITD_SOAK") != "" {
		lasts = time.Minute
	}
	server := redistest.Start(t)
	var mu sync.Mutex
	var least, most int64 // bounds of the counter of the sum
	var reservations, doubtful int
	kill := make(chan struct{})
	var running sync.WaitGroup
	for place := range 3 {
		running.Go(func() {
			random := rand.New(rand.NewPCG(uint64(place), 0))
			for number := uint64(place); ; number += 3 {
				select {
				case <-kill:
					return
				default:
				}
				cmd := exec.Command(os.Args[0], "-test.run", "^TestReserver$", "-test.v=false")
				cmd.Env = append(os.Environ(), reserverServer+"="+server.Addr, reserverNumber+"="+fmt.Sprint(number))
				cmd.SysProcAttr = redistest.EndsWithTest()
				stdout, err := cmd.StdoutPipe()
				if err == nil {
					err = cmd.Start()
				}
				if err != nil {
					t.Error(err)
					return
				}
				a := newAudit(stdout, func() { // it has started to reserve
					time.AfterFunc(time.Duration(random.IntN(500))*time.Millisecond, func() { _ = cmd.Process.Kill() })
				})
				_ = cmd.Wait()
				mu.Lock()
				least, most = least+a.least, most+a.most
				reservations, doubtful = reservations+a.reservations, doubtful+a.doubtful
				mu.Unlock()
				if a.failure != "" {
					t.Errorf("reserver %d: %s", number, a.failure)
					return
				}
			}
		})
	}
	time.AfterFunc(lasts, func() { close(kill) })
	running.Wait()

	s := redis.New(redis.Options{Client: dial(t, server), Timeout: patience})
	used := func(take backend.Take) int64 {
		r := &backend.Request{Takes: []backend.Take{take}, Outcomes: make([]backend.Outcome, 1)}
		if err := backend.Await(t.Context(), s, time.Now(), r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes[0].Used
	}
	for _, take := range emptyCounters() {
		redistest.Eventually(t, "all that was held is released", func(context.Context) error {
			if n := used(take); n != 0 {
				return fmt.Errorf("%s: %d are still in use", take.Key, n)
			}
			return nil
		})
	}
	if n := used(sumCounter()); n < least || n > most {
		t.Errorf("%d in use, want from %d to %d", n, least, most)
	}
	t.Logf("%d reservations; of %d it is not known whether their last step took place", reservations, doubtful)
	if reservations == 0 {
		t.Error("nobody has reserved anything")
	}
}

// audit holds the bounds of the counter of the sum, from the steps of a reserver until it was killed.
type audit struct {
	least, most            int64
	reservations, doubtful int
	failure                string
}

func newAudit(steps io.Reader, begun func()) (a audit) {
	begin := sync.OnceFunc(begun)
	var n uint64
	var amount, actual int64
	last := ""
	settle := func() {
		switch last {
		case "reserve":
			a.most += amount
			a.doubtful++
		case "reserved":
			a.least, a.most = a.least+amount, a.most+amount
		case "commit":
			a.least, a.most = a.least+min(amount, actual), a.most+max(amount, actual)
			a.doubtful++
		case "committed":
			a.least, a.most = a.least+actual, a.most+actual
		}
	}
	for lines := bufio.NewScanner(steps); lines.Scan(); {
		begin()
		var step string
		var number uint64
		var hits int64
		if strings.HasPrefix(lines.Text(), "failed ") {
			a.failure = lines.Text()
			continue
		}
		if k, _ := fmt.Sscan(lines.Text(), &step, &number, &hits); k < 3 {
			continue // the last line was cut off, or it is from package testing
		}
		if number != n {
			settle()
			n, a.reservations = number, a.reservations+1
		}
		if last = step; strings.HasPrefix(step, "reserve") {
			amount = hits
		} else {
			actual = hits
		}
	}
	settle()
	return a
}

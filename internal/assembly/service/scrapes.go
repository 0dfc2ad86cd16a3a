package service

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

const (
	mostScrapers   = 64               // peers that read an answer at the same time
	scrapePatience = 10 * time.Second // each: an earlier scrape of the peer, making the answer, and reading it
	longestPause   = 2 * time.Second  // between two answers
)

// scrapes answers scrapes of the metrics. Answers may be large, because clients make up names. So one answer is written
// at a time. All scrapes that wait share it, and it is kept compressed until the last of them has read it. Then follows
// a pause, four times as long as writing the answer took. Each peer reads one answer at a time, so that no peer takes
// another one's place.
type scrapes struct {
	inner http.Handler  // writes all metrics
	room  *intake.Class // the bytes of answers that peers still read

	making  sync.Mutex // held while an answer is made
	earlier time.Time  // earliest time of the next answer; guarded by making

	mu    sync.Mutex
	next  map[string]*scraped // next answer in each form; scrapes join it until its writing starts
	peers map[string]*scraper
}

// scraped is one answer, or will be.
type scraped struct {
	done    chan struct{}
	status  int
	header  http.Header
	body    []byte // compressed
	failed  error  // a panic, which is repeated in each scrape that waits
	readers int    // guarded by scrapes.mu; also those that wait
	kept    int64  // bytes charged to scrapes.room; guarded by scrapes.mu
}

// scraper is a peer.
type scraper struct {
	turn  chan struct{}
	users int // guarded by scrapes.mu
}

func newScrapes(inner http.Handler, room *intake.Class) *scrapes {
	return &scrapes{inner: inner, room: room, next: make(map[string]*scraped), peers: make(map[string]*scraper)}
}

func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), scrapePatience)
	defer cancel()
	reject := func(why string) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, why, http.StatusServiceUnavailable)
	}
	leave, why := s.enter(ctx, r.RemoteAddr)
	if why != "" {
		reject(why)
		return
	}
	defer leave()
	answer, release := s.answer(formOf(r))
	defer release()
	select {
	case <-answer.done:
	case <-ctx.Done():
		reject("making the metrics takes too long: try again later")
		return
	}
	if answer.failed != nil {
		panic(answer.failed) // the server counts it, and answers
	}
	// If the deadline cannot be set, the bounds of the server remain.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(scrapePatience))
	for name, values := range answer.header {
		w.Header()[name] = values
	}
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	body := io.Reader(bytes.NewReader(answer.body))
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
	} else {
		plain, err := gzip.NewReader(body)
		if err != nil {
			reject(err.Error())
			return
		}
		body = plain
	}
	w.WriteHeader(answer.status)
	_, _ = io.Copy(w, body) // fails only if the reader has gone, or is too slow
}

// enter waits until a peer has no other scrape. It returns the function that ends the scrape, or why there can be none.
func (s *scrapes) enter(ctx context.Context, from string) (leave func(), why string) {
	name := from
	if at, err := netip.ParseAddrPort(from); err == nil {
		name = intake.PeerOf(net.TCPAddrFromAddrPort(at))
	}
	s.mu.Lock()
	p := s.peers[name]
	if p == nil && len(s.peers) == mostScrapers {
		s.mu.Unlock()
		return nil, "too many peers read the metrics: try again later"
	}
	if p == nil {
		p = &scraper{turn: make(chan struct{}, 1)}
		s.peers[name] = p
	}
	p.users++
	s.mu.Unlock()
	gone := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.users--; p.users == 0 {
			delete(s.peers, name)
		}
	}
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn; gone() }, ""
	case <-ctx.Done():
		gone()
		return nil, "another scrape from this address has not ended: read its answer, then try again"
	}
}

// answer returns an answer whose writing has not started, so that it includes everything counted before. release ends
// the use of it.
func (s *scrapes) answer(form string) (a *scraped, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a = s.next[form]
	if a == nil {
		a = &scraped{done: make(chan struct{}), header: make(http.Header)}
		s.next[form] = a
		go s.make(form, a)
	}
	a.readers++
	return a, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a.readers--; a.readers == 0 {
			s.room.Add(-a.kept)
			a.kept = 0
		}
	}
}

// make writes an answer.
func (s *scrapes) make(form string, a *scraped) {
	s.making.Lock()
	<-time.After(time.Until(s.earlier))
	s.mu.Lock()
	delete(s.next, form)
	s.mu.Unlock()
	start := time.Now()
	var body bytes.Buffer
	w := &compressing{answer: a, to: compressor(&body)}
	r := (&http.Request{Method: http.MethodGet, Header: http.Header{"Accept": {form}}}).WithContext(context.Background())
	a.failed = func() (err error) {
		defer async.Recover(&err)
		s.inner.ServeHTTP(w, r)
		return nil
	}()
	_ = w.to.Close() // a buffer takes everything
	a.status = cmp.Or(a.status, http.StatusOK)
	s.earlier = time.Now().Add(min(4*time.Since(start), longestPause))
	s.making.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if size := int64(body.Len()); a.readers > 0 && s.room.Take(size) {
		a.body, a.kept = bytes.Clone(body.Bytes()), size // the buffer may be twice as large
	} else {
		body.Reset()
		to := compressor(&body)
		_, _ = io.WriteString(to, "there is no room for the metrics: peers read earlier answers too slowly\n")
		_ = to.Close()
		a.body = bytes.Clone(body.Bytes())
		a.status, a.header = http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}}
	}
	close(a.done)
}

// compressing is the ResponseWriter to which an answer is written.
type compressing struct {
	answer *scraped
	to     *gzip.Writer
}

func (c *compressing) Header() http.Header    { return c.answer.header }
func (c *compressing) WriteHeader(status int) { c.answer.status = status }
func (c *compressing) Write(p []byte) (int, error) {
	return c.to.Write(p) //nolint:wrapcheck // a buffer takes everything
}

func compressor(to io.Writer) *gzip.Writer {
	w, _ := gzip.NewWriterLevel(to, gzip.BestSpeed) // the level is valid
	return w
}

// formOf returns the form of the metrics that a scraper accepts: protobuf, which has native histograms, or text.
func formOf(r *http.Request) string {
	if strings.Contains(r.Header.Get("Accept"), "application/vnd.google.protobuf") {
		return "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	}
	return "text/plain;version=0.0.4"
}

func acceptsGzip(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept-Encoding") {
		for part := range strings.SplitSeq(header, ",") {
			name, weight, _ := strings.Cut(part, ";")
			if strings.TrimSpace(name) == "gzip" && strings.TrimSpace(weight) != "q=0" {
				return true
			}
		}
	}
	return false
}

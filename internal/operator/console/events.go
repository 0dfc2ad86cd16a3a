package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"
)

// maxListeners bounds the open streams of events.
const maxListeners = 32

const (
	every = time.Second
	// maxAge is the age at which a stream is ended. The page immediately opens another one and presents its token again,
	// so that a revoked token cannot keep reading.
	maxAge       = time.Minute
	writeTimeout = 5 * time.Second
)

// Events sends server-sent events to each listener. Once a second it calls look and sends the result as JSON. Without a
// listener it does not call look.
type Events struct {
	look    func(context.Context) any
	looking sync.Mutex

	mu        sync.Mutex
	listeners map[chan []byte]bool
	last      []byte             // the last event
	lastAt    time.Time          // time at which its look started
	stop      context.CancelFunc // ends the goroutine that looks; nil without one
	lookers   sync.WaitGroup
	ctx       context.Context // ends with Close
	end       context.CancelFunc
}

// NewEvents returns a stream of the results of look. One goroutine at a time calls it, at most once a second.
func NewEvents(look func(context.Context) any) *Events {
	ctx, end := context.WithCancel(context.Background())
	return &Events{look: look, listeners: make(map[chan []byte]bool), ctx: ctx, end: end}
}

// Close ends all streams, and waits until no call of look is running.
func (e *Events) Close() {
	e.mu.Lock()
	e.end()
	e.mu.Unlock()
	e.lookers.Wait()
}

// listen adds a listener. It returns nil if there are too many, or if the server ends. A listener that connects within
// a second of an event gets that one, so that reconnecting listeners do not make the replica look more often.
func (e *Events) listen() chan []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil || len(e.listeners) >= maxListeners {
		return nil
	}
	c := make(chan []byte, 1)
	e.listeners[c] = true
	if time.Since(e.lastAt) < every {
		c <- e.last
	}
	if e.stop == nil {
		ctx, cancel := context.WithCancel(e.ctx)
		e.stop = cancel
		e.lookers.Go(func() { e.run(ctx) })
	}
	return c
}

func (e *Events) leave(c chan []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.listeners, c)
	if len(e.listeners) == 0 && e.stop != nil {
		e.stop()
		e.stop = nil
	}
}

func (e *Events) run(ctx context.Context) {
	e.looking.Lock() // a goroutine that was stopped may still look
	defer e.looking.Unlock()
	e.mu.Lock()
	next := time.NewTimer(time.Until(e.lastAt.Add(every)))
	e.mu.Unlock()
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		next.Reset(every)
		text, err := json.Marshal(e.look(e.ctx)) // the result is kept for listeners that come next
		if err == nil && e.ctx.Err() == nil {
			e.send(began, slices.Concat([]byte("data: "), text, []byte("\n\n")))
		}
	}
}

// send gives every listener an event. One that has not read the event before gets the new one instead.
func (e *Events) send(at time.Time, text []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last, e.lastAt = text, at
	for c := range e.listeners {
		select {
		case <-c:
		default:
		}
		c <- text
	}
}

// ServeHTTP sends events until the client goes, the stream is too old, or Close is called.
func (e *Events) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	c := e.listen()
	if c == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages listen to events: close some, or try again", http.StatusServiceUnavailable)
		return
	}
	defer e.leave(c)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the server's read deadline is meant for requests, and a stream lasts longer
	w.Header().Set("Content-Type", "text/event-stream")
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	old := time.NewTimer(maxAge)
	defer old.Stop()
	for {
		select {
		case text := <-c:
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := w.Write(text); err != nil {
				return
			}
			if control.Flush() != nil {
				return
			}
		case <-old.C:
			return
		case <-e.ctx.Done():
			return
		case <-r.Context().Done():
			return
		}
	}
}

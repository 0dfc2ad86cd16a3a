package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/logging"
)

// Replay is an access log that an operator pasted, with what its lines mean: a mapping, or the other fields, as the flags of
// ratelimitd simulate.
type Replay struct {
	Log     string `json:"log"`
	Mapping string `json:"mapping"` // YAML

	Format      string   `json:"format"`
	Domain      string   `json:"domain"`
	Pattern     string   `json:"pattern"`
	Time        string   `json:"time"`
	Descriptors []string `json:"descriptors"`
}

const (
	maxReplayBytes = 4 << 20 // of a request, as JSON
	maxReplayTime  = 5 * time.Second
)

// replays answers requests to replay a log through the rules in force. One log at a time is replayed, because that costs the
// process time: so a request needs the role operate.
type replays struct {
	replay func(context.Context, *Replay) (report any, err error) // nil: off
	busy   chan struct{}
}

func newReplays(replay func(context.Context, *Replay) (any, error)) *replays {
	return &replays{replay, make(chan struct{}, 1)}
}

func (p *replays) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if p.replay == nil {
		endpoint.WriteText(w, http.StatusNotImplemented, "this server replays no logs\n")
		return
	}
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	default:
		w.Header().Set("Retry-After", "5")
		endpoint.WriteText(w, http.StatusServiceUnavailable, "another log is being replayed: try again in a few seconds\n")
		return
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReplayBytes))
	in.DisallowUnknownFields()
	var asked Replay
	if err := in.Decode(&asked); err != nil {
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			endpoint.WriteText(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the log has more than %d MiB: use ratelimitd simulate\n", maxReplayBytes>>20))
			return
		}
		endpoint.WriteText(w, http.StatusBadRequest, "the request is not as expected: "+err.Error()+"\n")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxReplayTime)
	defer cancel()
	report, err := p.replay(ctx, &asked)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		endpoint.WriteText(w, http.StatusUnprocessableEntity, fmt.Sprintf("the replay took more than %v and was stopped: use ratelimitd simulate, or paste fewer lines\n", maxReplayTime))
		return
	case err != nil:
		endpoint.WriteText(w, http.StatusBadRequest, shown(err.Error())+"\n")
		return
	}
	writeJSON(w, report)
}

// writeJSON answers with JSON that no cache keeps.
func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		endpoint.WriteText(w, http.StatusInternalServerError, logging.Shorten(err.Error())+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(text)
}

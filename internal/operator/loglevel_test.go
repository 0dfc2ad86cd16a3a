package operator

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// twoLevels is a LogLevel.
type twoLevels struct {
	mu  sync.Mutex
	now string
}

func (l *twoLevels) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *twoLevels) Set(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name != "loud" && name != "quiet" {
		return fmt.Errorf("level %q: use loud or quiet", name)
	}
	l.now = name
	return nil
}

func TestLogLevel(t *testing.T) {
	level := &twoLevels{now: "quiet"}
	r := start(t, Options{LogLevel: level})
	for _, step := range []struct {
		method, path string
		code         int
		body, after  string
	}{
		{http.MethodGet, "/loglevel", 200, "quiet\n", "quiet"},
		{http.MethodPut, "/loglevel?level=loud", 200, "loud\n", "loud"},
		{http.MethodGet, "/loglevel", 200, "loud\n", "loud"},
		{http.MethodPut, "/loglevel?level=shrill", 400, "level \"shrill\": use loud or quiet\n", "loud"},
		{http.MethodPut, "/loglevel", 400, "level \"\": use loud or quiet\n", "loud"},
		{http.MethodGet, "/loglevel?level=quiet", 405, "use PUT to change the level\n", "loud"},
		{http.MethodPost, "/loglevel?level=quiet", 405, "use PUT to change the level\n", "loud"},
	} {
		code, _, body := request(t, step.method, r.DebugAddr, step.path, nil)
		if code != step.code || body != step.body || level.String() != step.after {
			t.Errorf("%s %s: %d %q, the level is %s", step.method, step.path, code, body, level)
		}
	}
	if n := strings.Count(r.log.String(), "the log level was changed"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
	if _, body := get(t, r.DebugAddr, "/"); !strings.Contains(body, "/loglevel") {
		t.Errorf("the index does not have it:\n%s", body)
	}
}

func TestLogLevelOfNothing(t *testing.T) {
	r := start(t, Options{})
	if code, _ := get(t, r.DebugAddr, "/loglevel"); code != 404 {
		t.Errorf("/loglevel: %d", code)
	}
	if _, body := get(t, r.DebugAddr, "/"); strings.Contains(body, "/loglevel") {
		t.Errorf("the index has it:\n%s", body)
	}
}

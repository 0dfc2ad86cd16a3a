package redissource

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A stop does not wait without end for a file system that does not answer.
func TestStopWhileACopyCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy.yaml")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c := newCopies(path, slog.New(slog.NewTextHandler(&log, nil)))
		stop := c.run()
		answers := make(chan struct{})
		c.aside.Go(func() { <-answers })
		start := time.Now()
		stop()
		if took := time.Since(start); took != lastCopy || !strings.Contains(log.String(), path) {
			t.Errorf("it took %s:\n%s", took, &log)
		}
		close(answers)
	})
}

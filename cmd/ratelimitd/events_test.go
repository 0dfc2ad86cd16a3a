package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// Two processes that share counters send the same event about a refusal: a receiver removes one of them by its id and source.
func TestEventsOfTwoProcesses(t *testing.T) {
	r := redistest.Start(t)
	var all []event
	for _, name := range []string{"one", "two"} {
		to := filepath.Join(t.TempDir(), name)
		i := begin(t, map[string]string{"REDIS_URL": r.Addr, "RATELIMITD_EVENTS": to}, "--rules", rulesOf(t, fiveADay))
		answers(refusedAtOnce(1), refusedAtOnce(1))(t, i)
		i.stop()
		i.log.Wait(t, "stopped")
		got := eventsIn(t, to)
		if len(got) != 1 {
			t.Fatalf("process %s sent %d events for two refusals of one counter, want 1", name, len(got))
		}
		all = append(all, got[0])
	}
	if a, b := all[0], all[1]; a.ID != b.ID || a.Source != b.Source || a.Data.Counter != b.Data.Counter {
		t.Errorf("the processes sent %+v and %+v", a, b)
	}
}

// The log shows where events go, without a part of the URL or a header that may be secret.
func TestSecretsOfEventsAreNotShown(t *testing.T) {
	url, _ := listenEvents(t, http.StatusForbidden, nil)
	host := strings.TrimPrefix(url, "http://")
	i := begin(t, map[string]string{
		"RATELIMITD_EVENTS":              "http://u:" + secret + "@" + host + "/" + secret + "?key=" + secret,
		"RATELIMITD_EVENTS_HEADERS_FILE": file(t, "Authorization: Bearer "+secret+"\n"), "LOG_LEVEL": "debug",
	}, "--rules", rulesOf(t, fiveADay))
	answers(refusedAtOnce(1))(t, i)
	if to := i.log.Wait(t, "events cannot be sent; they wait")["to"]; to != url {
		t.Errorf("the log says that events go to %v, want %s", to, url)
	}
	i.log.Wait(t, "the headers of RATELIMITD_EVENTS_HEADERS_FILE are sent in plain text, because RATELIMITD_EVENTS is no https URL")
	if strings.Contains(i.log.String(), secret) {
		t.Errorf("the log has a secret:\n%s", i.log)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
)

// The linker sets the version, commit and date of a release. The log, the metric and the command `version` all show
// these three.
func TestVersionOfARelease(t *testing.T) {
	defer func(r, c, d string) { release, commit, date = r, c, d }(release, commit, date)
	release, commit, date = "v1.2.3", "0123abc", "2026-03-10T12:00:00Z"
	code, stdout, _ := asks(t, "version", "-o", "json")
	var got map[string]string
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, stdout)
	}
	for name, want := range map[string]string{
		"version": "v1.2.3", "commit": "0123abc", "date": "2026-03-10T12:00:00Z", "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	_, stdout, _ = asks(t, "version")
	if want := "ratelimitd v1.2.3\ncommit     0123abc\ndate       2026-03-10T12:00:00Z\n"; !strings.HasPrefix(stdout, want) {
		t.Errorf("version prints\n%s\nwant\n%s", stdout, want)
	}
	i := begin(t, nil, "--rules", rulesOf(t, fiveADay))
	if i.err != nil {
		t.Fatal(i.err)
	}
	want := fmt.Sprintf(`ratelimitd_build_info{goversion="%s",revision="0123abc",version="v1.2.3"} 1`, runtime.Version())
	if code, body := get(t, i.http()+"/metrics"); code != http.StatusOK || !strings.Contains(body, want+"\n") {
		t.Errorf("/metrics (%d) has no %s", code, want)
	}
}

// The first line of the log is the build.
func TestStartIsLogged(t *testing.T) {
	p := startProcess(t, nil, "--rules", rulesOf(t, fiveADay))
	if line := p.Log.Wait(t, "starting ratelimitd"); line["go"] != runtime.Version() || line["version"] == "" || line["platform"] == nil {
		t.Errorf("the build is logged as %v", line)
	}
	first, _, _ := strings.Cut(p.Log.String(), "\n")
	if !strings.Contains(first, `"starting ratelimitd"`) {
		t.Errorf("the log starts with %s", first)
	}
	sum, ok := p.Log.Wait(t, "active rules")["checksum"].(float64)
	if !ok || sum == 0 {
		t.Fatalf("the log has no checksum:\n%s", p.Log)
	}
	if _, body := get(t, "http://"+p.HTTP+"/metrics"); !strings.Contains(body, fmt.Sprintf("ratelimitd_rules_checksum %g\n", sum)) {
		t.Errorf("the metric is not %g", sum)
	}
	if _, body := get(t, "http://"+p.Debug+"/rlconfig"); !strings.Contains(body, fmt.Sprintf("# checksum: %.0f,", sum)) {
		t.Errorf("/rlconfig has no checksum %.0f:\n%s", sum, body)
	}
}

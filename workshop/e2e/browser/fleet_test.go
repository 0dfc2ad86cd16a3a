package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/browser"
)

// The page of the fleet shows the replicas that share a Redis: one with other rules, one that was killed, and an entry
// that another program wrote. While Redis is unreachable, it keeps the last state that it read.
func TestConsoleFleet(t *testing.T) {
	r := redistest.Start(t)
	admin := r.Client(t)
	env := []string{"REDIS_URL=" + r.Addr, "REDIS_OP_TIMEOUT=5s", "RATELIMITD_OVERRIDES=redis"}
	c := openConsole(t, map[string]string{"shop.yaml": consoleRules}, env...)
	c.load(t)
	another := func(rules string) *servicetest.Process {
		program, err := built()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "--rules", servicetest.RulesOf(t, rules))
		cmd.Env = append([]string{"DEBUG_HOST=127.0.0.1"}, env...)
		return servicetest.Start(t, "ratelimitd", cmd)
	}
	another(consoleRules)
	another(strings.ReplaceAll(consoleRules, "50", "60"))
	killed := another(consoleRules)
	c.page(t, "#/fleet", "4 live, 0 gone, 0 stopped")
	c.shows(t, "1 has other rules than most.")
	c.until(t, `document.querySelectorAll("table")[0].querySelectorAll("tbody tr").length === 4`)
	// denied per second
	c.until(t, `[...document.querySelectorAll("td.n.bad")].some(cell => parseFloat(cell.innerText) > 0)`)

	c.page(t, "#/now", ", 1 of 4. Together they pass ")
	c.page(t, "#/fleet", "4 live")

	id := idOf(t, killed)
	killed.Kill(t)
	c.shows(t, "3 live, 1 gone, 0 stopped")
	for _, view := range views(1240, 760) {
		view.show(t, c.Browser)
		c.fits(t, "fleet-"+view.name, view.width)
		c.accessible(t, "fleet, "+view.name)
		if *update && view.name == "wide" {
			save(t, "console-fleet.png", c.Picture(t, view.width, view.height))
		}
	}
	const evil = `<img src=x onerror=document.body.remove()>\u001b[31m\u202egpj`
	said, err := admin.Get(t.Context(), "{fleet}:"+id).Result()
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal([]byte(said), &record); err != nil {
		t.Fatal(err)
	}
	host, _ := json.Marshal(record["host"])
	said = strings.Replace(said, string(host), `"`+evil+`"`, 1)
	now, err := admin.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"00000000000000ff": said, "00000000000000fe": `{"host":"<b>"}`} {
		admin.Set(t.Context(), "{fleet}:"+name, text, 0)
		// it stays for 19 s
		admin.Append(t.Context(), "ratelimitd-replicas", fmt.Sprintf("%s %d\n", name, now.UnixMilli()+9000))
	}
	c.shows(t, "<img src=x")
	c.shows(t, "not understood")
	if n := browser.Ask[int](t, c.Browser, `document.querySelectorAll("img, main script, main b").length`); n > 0 || strings.ContainsAny(c.text(t), "\x1b\u202e") {
		t.Errorf("%d elements of a name:\n%s", n, c.text(t))
	}

	r.Kill(t)
	c.shows(t, "The others are as they were at ")
	c.accessible(t, "fleet, without Redis")
	c.quiet(t, "the server responded with a status of")
}

// idOf returns the ID of a replica, as it answers to FleetService.List.
func idOf(t *testing.T, p *servicetest.Process) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, fmt.Sprintf("http://%s/ratelimitd.admin.v1.FleetService/List", p.Debug), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var list struct{ ThisReplica string }
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil || list.ThisReplica == "" {
		t.Fatalf("%+v, %v", list, err)
	}
	return list.ThisReplica
}

package outages

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// limitOfMove is what each counter of the rules below admits in a day, but that of "now", which shows when a home counts again.
const limitOfMove = 240

const rulesOfMove = `
domain: d
on_error: deny
descriptors:
  - key: escrow
    rate_limit: {unit: day, requests_per_unit: 240, regions: {mode: escrow, home: eu}}
  - key: home
    rate_limit: {unit: day, requests_per_unit: 240, regions: {mode: home, home: eu}}
  - key: now
    rate_limit: {unit: second, requests_per_unit: 1000, regions: {mode: home, home: eu}}
`

// A home moves from eu to us in the order of docs/do/regions.md, under load. Each counter admits its limit at most, in all regions together:
// those that are used up before, those that are half used, and those that nobody has asked for yet. Then the new home counts.
func TestMove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		fail func(*world) // the old home
		back func(*world) // what happens when the new one counts; nil: the old one had its settings with the others
		env  string       // of the new home, besides those of any move
	}{
		{name: "the old home works"},
		{name: "the old home is killed", env: "RATELIMITD_REGIONS_OLD_HOME_STOPPED", fail: func(w *world) {
			for i := range 2 {
				w.replicas["eu"][i].Kill(w.t)
			}
		}, back: func(w *world) { w.moved("eu") }},
		{name: "the old home is cut off", fail: func(w *world) { w.cut("eu") }, back: func(w *world) {
			w.mend()
			w.while(2 * time.Second)() // it hears of the move before it has the rules and the settings
			w.moved("eu")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := startWorld(t, rulesOfMove)
			passed := w.many(func(usedUp func() bool) {
				w.while(5 * time.Second)()
				if c.fail != nil {
					c.fail(w)
					w.while(time.Second)()
				}
				began := time.Now()
				// 1. The rules.
				others := []string{"ap"}
				if c.back == nil {
					others = append(others, "eu")
				}
				for _, name := range append(others, "us") {
					w.rename(name)
				}
				// 2. The new home.
				w.set("us", "RATELIMITD_REGIONS_BEFORE", "eu,us,ap")
				if c.env != "" {
					w.set("us", c.env, "true")
				}
				w.set("us", "RATELIMITD_REGIONS_EPOCH", "2")
				w.restart("us")
				// 3. The other regions.
				for _, name := range others {
					w.set(name, "RATELIMITD_REGIONS_EPOCH", "2")
					w.restart(name)
				}
				w.await("the new home to count", func() error { return w.ask("us", 0, "now", "v", time.Second) })
				t.Logf("the new home counts %v after the rules changed", time.Since(began).Round(time.Second))
				w.await("the new home to count for another region", func() error { return w.ask("ap", 1, "now", "v", time.Second) })
				if c.back != nil {
					c.back(w)
				}
				w.await("the new home to count for the old one", func() error { return w.ask("eu", 0, "now", "v", time.Second) })
				w.await("a limit to be used up", func() error {
					if !usedUp() {
						return errors.New("none is")
					}
					return nil
				})
			})
			used := 0
			for counter, n := range passed {
				if n > limitOfMove {
					t.Errorf("%s: %d passed, the limit is %d", counter, n, limitOfMove)
				}
				if n == limitOfMove {
					used++
				}
			}
			if t.Logf("%d counters, %d of them used up", len(passed), used); used == 0 {
				t.Error("no limit was tried")
			}
		})
	}
}

// many sends requests to all replicas until do returns: under a new counter after each 1,200, and under those before. It returns how many
// of each counter passed. usedUp reports whether as many passed as a limit admits.
func (w *world) many(do func(usedUp func() bool)) map[string]int {
	var mu sync.Mutex
	passed := make(map[string]int)
	var asked atomic.Int64
	done := make(chan struct{})
	var callers sync.WaitGroup
	for _, name := range w.names {
		for i := range 2 {
			for _, key := range []string{"escrow", "home"} {
				callers.Go(func() {
					pace := time.NewTicker(20 * time.Millisecond)
					defer pace.Stop()
					for {
						select {
						case <-done:
							return
						case <-pace.C:
						}
						newest := int(asked.Add(1) / 1200)
						value := fmt.Sprint(newest - rand.IntN(min(newest, 1)+1))
						if rand.IntN(4) == 0 {
							value = fmt.Sprint(rand.IntN(newest + 1))
						}
						if w.ask(name, i, key, value, 500*time.Millisecond) == nil {
							mu.Lock()
							passed[key+" "+value]++
							mu.Unlock()
						}
					}
				})
			}
		}
	}
	do(func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range passed {
			if n >= limitOfMove {
				return true
			}
		}
		return false
	})
	close(done)
	callers.Wait()
	return passed
}

// set sets a variable of a region for the next start of its replicas.
func (w *world) set(region, name, value string) { w.env[region][name] = value }

// restart restarts the replicas of a region, one after the other.
func (w *world) restart(region string) {
	for i := range 2 {
		if w.replicas[region][i].Running() {
			w.replicas[region][i].Stop(w.t)
		}
		w.start(region, i)
	}
}

// rename writes the new home into the rules of a region, and waits until its replicas have loaded them.
func (w *world) rename(region string) {
	w.t.Helper()
	file := filepath.Join(w.rules[region], "rules0.yaml")
	if err := os.WriteFile(file+".new", []byte(strings.ReplaceAll(rulesOfMove, "home: eu", "home: us")), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		w.t.Fatal(err)
	}
	for i := range 2 {
		if !w.replicas[region][i].Running() {
			continue
		}
		w.await("a replica of "+region+" to load the rules", func() error {
			answer, err := http.Get("http://" + w.replicas[region][i].Debug + "/regions")
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err == nil && !strings.Contains(string(text), "the rule d.home names us, but eu stays the home") {
				err = fmt.Errorf("it says %s", text)
			}
			return err
		})
	}
}

// moved gives a region the rules and the settings after the move.
func (w *world) moved(region string) {
	w.rename(region)
	w.set(region, "RATELIMITD_REGIONS_EPOCH", "2")
	w.restart(region)
}

// await waits until check succeeds. A new home waits for about a minute.
func (w *world) await(what string, check func() error) {
	w.t.Helper()
	for began := time.Now(); ; w.while(50 * time.Millisecond)() {
		err := check()
		if err == nil {
			return
		}
		if time.Since(began) > 3*time.Minute {
			w.t.Fatalf("%s: not within 3 minutes: %v", what, err)
		}
	}
}

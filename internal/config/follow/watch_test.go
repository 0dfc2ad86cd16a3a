package follow

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const patience = time.Minute // timeout for events that take 100 ms on a quiet machine

// watched is a directory under Directory. Its rescan is so slow that every change must be noticed through events.
type watched struct {
	t         *testing.T
	directory *config.Directory
	results   chan config.Result
	last      config.Result
}

func watch(t *testing.T, o config.Options) *watched {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	if o.Rescan == 0 {
		o.Rescan = time.Hour
	}
	f := config.NewDirectory(o)
	w := &watched{t: t, directory: f, results: make(chan config.Result, 100)}
	first, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	w.last = first
	w.start(f)
	// Once this file's creation and removal have been noticed, the directory is being watched.
	beginning := filepath.Join(o.Dir, "beginning.yaml")
	write(t, beginning, rules("beginning", 1))
	w.untilRequests("beginning", 1)
	must(t, os.Remove(beginning))
	w.untilRequests("beginning", -1)
	return w
}

// start runs Directory until the test ends.
func (w *watched) start(f *config.Directory) {
	w.t.Helper()
	leaks := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Directory(ctx, f, func(r config.Result) { w.results <- r }) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		goleak.VerifyNone(w.t, leaks)
	})
}

// until waits for a result that satisfies want, and returns how many results came.
func (w *watched) until(what string, want func(config.Result) bool) (results int) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case w.last = <-w.results:
			results++
			if !w.last.Changed {
				w.t.Error("apply was called without a change")
			}
			if want(w.last) {
				return results
			}
		case <-deadline:
			w.t.Fatalf("%s: not within %v; states %v after %d results", what, patience, states(w.last), results)
		}
	}
}

func (w *watched) untilRequests(domain string, n int) int {
	w.t.Helper()
	return w.until(fmt.Sprintf("%d requests in domain %s", n, domain), func(r config.Result) bool { return requests(r.Tree, domain) == n })
}

// once makes a change and checks that it leads to exactly one result, the wanted one. If a busy machine delays the
// change for longer than a burst lasts, there may be several results.
func (w *watched) once(what string, change func(), want func(config.Result) bool) {
	w.t.Helper()
	start := time.Now()
	change()
	took := time.Since(start)
	if came := w.until(what, want); came > 1+int(took/quietFor) {
		w.t.Errorf("%s: %d reloads for a change that took %v", what, came, took)
	}
}

// quiet checks that no more results come: a last change must be the very next result.
func (w *watched) quiet(path, domain string, n int) {
	w.t.Helper()
	w.once("the last change", func() { write(w.t, path, rules(domain, n)) }, func(r config.Result) bool { return requests(r.Tree, domain) == n })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchInPlaceWrite(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, rules("a", 1))
	w := watch(t, config.Options{Dir: dir})
	for i := 2; i < 6; i++ {
		w.quiet(a, "a", i)
	}
}

func TestWatchRenameOver(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, rules("a", 1))
	w := watch(t, config.Options{Dir: dir})
	for i := 2; i < 5; i++ {
		write(t, filepath.Join(dir, ".a.yaml.tmp"), rules("a", i))
		must(t, os.Rename(filepath.Join(dir, ".a.yaml.tmp"), a))
		w.untilRequests("a", i)
	}
	// vim saves like this: the old file becomes a backup, and a new file takes its name.
	must(t, os.Rename(a, a+"~"))
	write(t, a, rules("a", 9))
	w.untilRequests("a", 9)
	must(t, os.Remove(a+"~"))
	w.quiet(a, "a", 10)
}

func TestWatchNewAndRemovedFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), rules("a", 1))
	w := watch(t, config.Options{Dir: dir})
	write(t, filepath.Join(dir, "b.yaml"), rules("b", 2))
	w.untilRequests("b", 2)
	write(t, filepath.Join(dir, "new", "directory", "c.yaml"), rules("c", 3))
	w.untilRequests("c", 3)
	write(t, filepath.Join(dir, "new", "directory", "c.yaml"), rules("c", 4))
	w.untilRequests("c", 4)
	must(t, os.Remove(filepath.Join(dir, "b.yaml")))
	w.untilRequests("b", -1)
	must(t, os.RemoveAll(filepath.Join(dir, "new")))
	w.untilRequests("c", -1)
	w.quiet(filepath.Join(dir, "a.yaml"), "a", 5)
}

func TestWatchManyFilesAtOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), rules("a", 1))
	from := t.TempDir()
	const many = 200
	for i := range many {
		write(t, filepath.Join(from, fmt.Sprintf("d%d", i%7), fmt.Sprintf("%03d.yaml", i)), rules(fmt.Sprintf("many%d", i), i))
	}
	w := watch(t, config.Options{Dir: dir})
	w.once("a copied directory", func() { must(t, os.CopyFS(filepath.Join(dir, "copied"), os.DirFS(from))) },
		func(r config.Result) bool { return r.InUse == many+1 })
	w.quiet(filepath.Join(dir, "a.yaml"), "a", 2)
}

// configMap updates a directory as the kubelet's AtomicWriter does. It writes a new timestamped directory and renames a
// new link over ..data. Then it creates links for new names and removes the links for deleted names. Finally it removes
// the old directory.
func configMap(t *testing.T, dir, stamp string, files map[string]string) {
	t.Helper()
	data := filepath.Join(dir, "..data")
	old, _ := os.Readlink(data)
	for name, text := range files {
		write(t, filepath.Join(dir, stamp, name), text)
	}
	must(t, os.Chmod(filepath.Join(dir, stamp), 0o755))
	must(t, os.Symlink(stamp, filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), data))
	top := map[string]bool{}
	for name := range files {
		first, _, _ := strings.Cut(name, "/")
		top[first] = true
		if _, err := os.Lstat(filepath.Join(dir, first)); err != nil {
			must(t, os.Symlink(filepath.Join("..data", first), filepath.Join(dir, first)))
		}
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if e.Name()[0] != '.' && !top[e.Name()] {
			must(t, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if old != "" {
		must(t, os.RemoveAll(filepath.Join(dir, old)))
	}
}

func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	configMap(t, dir, "..2026_08_21_06_00_00.1", map[string]string{"a.yaml": rules("a", 1), "sub/s.yaml": rules("s", 1)})
	w := watch(t, config.Options{Dir: dir})
	if got := states(w.last); len(got) != 2 || got[0] != "a.yaml=loaded" || got[1] != "sub/s.yaml=loaded" {
		t.Fatalf("states %v", got)
	}
	for i := 2; i < 5; i++ {
		w.once("update", func() {
			configMap(t, dir, fmt.Sprintf("..2026_08_21_06_00_00.%d", i), map[string]string{
				"a.yaml": rules("a", i), "sub/s.yaml": rules("s", i), "b.yaml": rules("b", i)})
		}, func(r config.Result) bool {
			return requests(r.Tree, "a") == i && requests(r.Tree, "b") == i && requests(r.Tree, "s") == i
		})
	}
	w.once("removal", func() { configMap(t, dir, "..2026_08_21_06_00_00.5", map[string]string{"a.yaml": rules("a", 5)}) },
		func(r config.Result) bool { return requests(r.Tree, "a") == 5 && len(r.Files) == 1 })
	configMap(t, dir, "..2026_08_21_06_00_00.6", map[string]string{"a.yaml": "domain: [\n"})
	w.until("bad update", func(r config.Result) bool { return states(r)[0] == "a.yaml=stale" && requests(r.Tree, "a") == 5 })
	configMap(t, dir, "..2026_08_21_06_00_00.7", map[string]string{"a.yaml": rules("a", 7)})
	w.until("good update", func(r config.Result) bool { return states(r)[0] == "a.yaml=loaded" && requests(r.Tree, "a") == 7 })
}

// A ConfigMap is replaced while it is read. Both versions are good, so no file may ever be reported as bad.
func TestConfigMapReplacedWhileItIsRead(t *testing.T) {
	dir := t.TempDir()
	version := func(i int) (name string, files map[string]string) {
		files = make(map[string]string)
		for n := range 100 {
			files[fmt.Sprintf("%d.yaml", n)] = rules(fmt.Sprint(n), i)
		}
		return fmt.Sprintf("..version_%d", i), files
	}
	name, files := version(0)
	configMap(t, dir, name, files)
	f := config.NewDirectory(config.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	const times = 50
	loads := make(chan struct{}) // one replacement for each load
	var wg sync.WaitGroup
	wg.Go(func() {
		for range times {
			loads <- struct{}{}
			r, err := f.Load()
			if err != nil || len(r.Files) != 100 {
				t.Errorf("%d files, %v", len(r.Files), err)
			}
			for _, file := range r.Files {
				if file.State != descriptor.FileLoaded {
					t.Errorf("%s is %s: %v", file.Name, file.State, file.Errors)
				}
			}
		}
	})
	for i := 1; i <= times; i++ {
		name, files := version(i)
		<-loads
		configMap(t, dir, name, files)
	}
	wg.Wait()
}

// The directory is below a link that is moved with each release: RUNTIME_ROOT/current.
func TestWatchSwappedRelease(t *testing.T) {
	root := t.TempDir()
	release := func(i int) string {
		dir := filepath.Join(root, fmt.Sprintf("release-%d", i))
		write(t, filepath.Join(dir, "config", "a.yaml"), rules("a", i))
		return dir
	}
	swap := func(i int) {
		must(t, os.Symlink(filepath.Base(release(i)), filepath.Join(root, "next")))
		must(t, os.Rename(filepath.Join(root, "next"), filepath.Join(root, "current")))
	}
	swap(1)
	w := watch(t, config.Options{Dir: filepath.Join(root, "current", "config")})
	for i := 2; i < 5; i++ {
		w.once("the next release", func() { swap(i) }, func(r config.Result) bool { return requests(r.Tree, "a") == i })
		w.quiet(filepath.Join(root, "current", "config", "a.yaml"), "a", 10*i)
	}
	// The old release is not watched any more and may be removed.
	must(t, os.RemoveAll(filepath.Join(root, "release-2")))
	w.quiet(filepath.Join(root, "current", "config", "a.yaml"), "a", 99)
}

func TestWatchReplacedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules")
	a := filepath.Join(dir, "a.yaml")
	write(t, a, rules("a", 1))
	w := watch(t, config.Options{Dir: dir})
	for i := 2; i < 5; i++ {
		must(t, os.Rename(dir, fmt.Sprintf("%s.%d", dir, i)))
		write(t, a, rules("a", i))
		w.untilRequests("a", i)
		w.quiet(a, "a", 10*i)
		must(t, os.RemoveAll(dir))
		write(t, a, rules("a", 10*i+1))
		w.untilRequests("a", 10*i+1)
	}
}

func TestWatchDirectoryThatAppearsLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	f := config.NewDirectory(config.Options{Dir: dir, Rescan: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	w := &watched{t: t, directory: f, results: make(chan config.Result, 100)}
	w.start(f)
	write(t, filepath.Join(dir, "a.yaml"), rules("a", 1))
	w.untilRequests("a", 1)
	// The rules in use stay while the directory is gone.
	must(t, os.RemoveAll(filepath.Dir(filepath.Dir(dir))))
	write(t, filepath.Join(dir, "a.yaml"), rules("a", 2))
	w.until("the directory's return", func(r config.Result) bool {
		if requests(r.Tree, "a") < 1 && len(r.Files) > 0 {
			t.Errorf("rules were dropped: %v", states(r))
		}
		return requests(r.Tree, "a") == 2
	})
}

func TestWatchBadThenGood(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, rules("a", 1))
	w := watch(t, config.Options{Dir: dir})
	loaded := w.last.Files[0].Since
	write(t, a, "domain: a\nrules: []\n")
	w.until("stale", func(r config.Result) bool { return states(r)[0] == "a.yaml=stale" && requests(r.Tree, "a") == 1 })
	stale := w.last.Files[0].Since
	write(t, a, rules("a", 2))
	w.until("loaded", func(r config.Result) bool { return states(r)[0] == "a.yaml=loaded" && requests(r.Tree, "a") == 2 })
	again := w.last.Files[0].Since
	if !stale.After(loaded) || !again.After(stale) {
		t.Errorf("since %v, %v, %v", loaded, stale, again)
	}
	w.quiet(a, "a", 3)
	if w.last.Files[0].Since != again {
		t.Error("Since changed without a change of state")
	}
}

func TestWatchTouchIsNoChange(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	replace := func(n int) {
		write(t, filepath.Join(dir, ".new"), rules("a", n))
		must(t, os.Rename(filepath.Join(dir, ".new"), a))
	}
	replace(1)
	w := watch(t, config.Options{Dir: dir, Rescan: 5 * time.Millisecond})
	for i, touch := range []func(){
		func() { must(t, os.Chtimes(a, time.Now(), time.Now().Add(time.Hour))) },
		func() { replace(2) }, // the current content by then
		func() { must(t, os.Chmod(a, 0o600)) },
	} {
		touch()
		r, err := w.directory.Load()
		must(t, err)
		if r.Changed {
			t.Errorf("touch %d is a change", i)
		}
		replace(i + 2)
		if came := w.untilRequests("a", i+2); came != 1 {
			t.Errorf("touch %d led to a reload", i)
		}
	}
}

// Without any event, the rescan finds changes.
func TestWatchRescan(t *testing.T) {
	dir := t.TempDir()
	a := filepath.Join(dir, "a.yaml")
	write(t, a, rules("a", 1))
	f := config.NewDirectory(config.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if _, err := f.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	step := 1
	loop(ctx, time.Millisecond, nil, nil, nil, func(bool) bool {
		r, err := f.Load()
		must(t, err)
		if requests(r.Tree, "a") == step {
			step++
			write(t, a, rules("a", step))
		}
		if step == 5 {
			cancel()
		}
		return false
	})
}

// There is one reload per burst: 100 ms after its last event, or 500 ms after its first if it does not end.
func TestBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		events, errs := make(chan fsnotify.Event), make(chan error)
		var reloads []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			loop(ctx, 3*time.Second, events, errs, func(e fsnotify.Event) bool { return e.Name != "other" },
				func(bool) bool { reloads = append(reloads, time.Since(start)); return false })
		}()
		at := func(ms int, send func()) {
			<-time.After(time.Until(start.Add(time.Duration(ms) * time.Millisecond)))
			send()
		}
		event := func() { events <- fsnotify.Event{Name: "rules"} }
		at(1000, event) // one event
		for ms := 1300; ms <= 1380; ms += 40 {
			at(ms, event) // three in a row
		}
		at(1600, func() { events <- fsnotify.Event{Name: "other"} })
		for ms := 2000; ms <= 2690; ms += 30 {
			at(ms, event) // without a pause
		}
		at(3500, func() { errs <- fsnotify.ErrEventOverflow })
		at(6100, func() {})
		synctest.Wait()
		cancel()
		<-done
		want := []int{0, 1100, 1480, 2500, 2790, 3000, 3600, 6000}
		if len(reloads) != len(want) {
			t.Fatalf("reloads %v, want %v", reloads, want)
		}
		for i, ms := range want {
			if reloads[i] != time.Duration(ms)*time.Millisecond {
				t.Errorf("reload %d after %v, want %d ms", i, reloads[i], ms)
			}
		}
	})
}

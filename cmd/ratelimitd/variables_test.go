package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// variable is a row of the table: one environment variable, and how its effect is observed.
type variable struct {
	name string

	// The service starts once without and once with the variable, each time with the settings in with. look then observes
	// the service.
	value      string
	with       map[string]string
	rules      []string // files; nil for five a day; empty for no directory
	look       look
	unset, set string // the observed results
	onlySet    bool   // the default cannot be tried in a test: it is a port or a path that other programs may use

	// prepare, if set, runs before each start and sets up the environment of the service, such as a server. It returns
	// more settings, including the variable itself unless value is set, and replaces look.
	prepare func(t *testing.T) (map[string]string, look)

	// shownBy names a test that shows the effect. The fields above are then empty.
	shownBy string

	// silent marks a variable that changes nothing. The log names it once.
	silent bool

	// bad are rejected values, each with a part of the error other than the variable's name. Bad flags, numbers, durations
	// and names follow from the type. anything marks texts that may have any value.
	bad      map[string]string
	anything bool
}

// look observes a service and returns its observation as text.
type look func(t *testing.T, i *instance) string

// environmentMutex is held while the environment of this process is set up for a service.
var environmentMutex sync.Mutex

// inEnvironment runs do with these variables set and no other variable of the service.
func inEnvironment(env map[string]string, do func()) {
	environmentMutex.Lock()
	defer environmentMutex.Unlock()
	for name, value := range env {
		_ = os.Setenv(name, value)
	}
	do()
	for name := range env {
		_ = os.Unsetenv(name)
	}
}

// instance is the service, started in this process with its own environment.
type instance struct {
	svc  *service.Service // nil if it did not start
	err  error            // why it did not start
	log  *servicetest.Log
	dir  string // the rule directory
	env  map[string]string
	args []string

	stop  func()
	ended chan error // result of run
}

// begin starts the service. If that fails, err holds the reason.
func begin(t *testing.T, env map[string]string, args ...string) *instance {
	t.Helper()
	servicetest.NotAtMidnight()
	i := &instance{log: new(servicetest.Log), env: env, args: args, ended: make(chan error, 1)}
	var c cli
	all := map[string]string{"GRPC_PORT": "0", "PORT": "0", "DEBUG_PORT": "0", "GRPC_HOST": "127.0.0.1", "HOST": "127.0.0.1", "LOG_FORMAT": "json"}
	for name, value := range env {
		if value == absent {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	inEnvironment(all, func() {
		parser, err := newParser(&c)
		if err == nil {
			_, err = parser.Parse(append([]string{"serve"}, args...))
		}
		if err != nil {
			i.err = err
			return
		}
		log, level, err := c.Serve.Log.logger(i.log)
		if err != nil {
			i.err = err
			return
		}
		i.svc, i.err = c.Serve.start(t.Context(), log, level, intake.NewBudget(c.Serve.Listen.MaxClientBytes))
	})
	ctx, cancel := context.WithCancel(context.Background())
	i.stop = cancel
	if i.err != nil {
		cancel()
		_ = i.log.Close()
		return i
	}
	done := make(chan struct{})
	go func() {
		i.ended <- i.svc.Run(ctx)
		_ = i.log.Close()
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Errorf("the service did not stop within %s", patience)
		}
		if t.Failed() {
			t.Logf("log of the service:\n%s", i.log)
		}
	})
	listening := func() bool { return i.svc.Listening() }
	eventually(t, "listening", func() bool {
		select {
		case <-done:
			return true
		default:
			return listening()
		}
	})
	return i
}

// absent as a value removes a variable that begin sets by default.
const absent = "\x00"

func (i *instance) grpc() string   { return i.svc.Server.GRPCAddr.String() }
func (i *instance) http() string   { return "http://" + i.svc.Server.HTTPAddr.String() }
func (i *instance) debug() string  { return "http://" + i.svc.Operators.DebugAddr.String() }
func (i *instance) failed() string { return fmt.Sprintf("does not start: %v", i.err) }

// TestEveryVariable starts the service without and with each variable of envoyproxy/ratelimit and each of our own, and
// compares the results. A variable without a row fails the test, and so does a row without a variable.
func TestEveryVariable(t *testing.T) {
	racetest.Sequential(t)
	var c cli
	application, err := newParser(&c)
	if err != nil {
		t.Fatal(err)
	}
	flags := flagsByVariable(application.Model)
	for name := range flags {
		if _, set := os.LookupEnv(name); set {
			t.Setenv(name, "") // restores it after the test
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	theirs := referenceEnvironment(t)
	rows := make(map[string]*variable)
	for _, v := range table(t) {
		if rows[v.name] != nil {
			t.Errorf("%s has two rows", v.name)
		}
		rows[v.name] = &v
		if theirs[v.name] == nil && flags[v.name] == nil {
			t.Errorf("the row %s is of no variable", v.name)
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(theirs)), slices.Collect(maps.Keys(flags))) {
		if rows[name] == nil {
			t.Errorf("%s has no row", name)
			rows[name] = &variable{anything: true, shownBy: "TestEveryVariable"} // reported once
		}
	}
	for name, v := range theirs {
		if strings.Contains(name, "<name>") {
			continue
		}
		ours := flags[name]
		if ours == nil {
			t.Errorf("%s of the reference is not read", name)
			continue
		}
		if want, is := ownDefaults[name]; is {
			if ours.Default != want {
				t.Errorf("%s is %q by default, want %q", name, ours.Default, want)
			}
		} else if !sameDefault(ours, v.value) {
			t.Errorf("%s is %q by default, in the reference %q", name, ours.Default, v.value)
		}
	}
	tests := testNames(t)
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		v := rows[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v.rejects(t, flags[name])
			switch {
			case v.shownBy != "":
				if !tests[v.shownBy] {
					t.Errorf("there is no test %s", v.shownBy)
				}
			case v.silent:
				v.hasNoEffect(t)
			default:
				v.changes(t)
			}
		})
	}
}

// changes compares the results without and with the variable.
func (v *variable) changes(t *testing.T) {
	see := func(set bool) string {
		env := maps.Clone(v.with)
		if env == nil {
			env = make(map[string]string)
		}
		look, value := v.look, v.value
		if v.prepare != nil {
			var more map[string]string
			more, look = v.prepare(t)
			maps.Copy(env, more)
			if value == "" {
				value = env[v.name]
			}
		}
		env[v.name] = absent
		if set {
			env[v.name] = value
		}
		if name := concrete(v.name); name != v.name {
			env[name] = env[v.name]
			delete(env, v.name)
		}
		var args []string
		dir := ""
		if v.rules == nil || len(v.rules) > 0 {
			files := v.rules
			if files == nil {
				files = []string{fiveADay}
			}
			dir = rulesOf(t, files...)
			args = []string{"--rules", dir}
		}
		i := begin(t, env, args...)
		i.dir = dir
		return look(t, i)
	}
	var wg sync.WaitGroup
	var without, with string
	if !v.onlySet {
		wg.Go(func() { without = see(false) })
	}
	with = see(true)
	wg.Wait()
	if with != v.set {
		t.Errorf("with %s there is %q, want %q", v.name, with, v.set)
	}
	if !v.onlySet && without != v.unset {
		t.Errorf("without %s there is %q, want %q", v.name, without, v.unset)
	}
	if !v.onlySet && v.set == v.unset {
		t.Errorf("the row of %s expects the same with and without it", v.name)
	}
}

// hasNoEffect checks a variable that the service accepts and ignores: the log has one line about that if the variable
// is set, and none otherwise.
func (v *variable) hasNoEffect(t *testing.T) {
	for _, c := range []struct {
		value string
		times int
	}{{absent, 0}, {v.value, 1}} {
		env := maps.Clone(v.with)
		if env == nil {
			env = make(map[string]string)
		}
		env[v.name] = c.value
		i := begin(t, env, "--rules", rulesOf(t, fiveADay))
		if i.err != nil {
			t.Fatal(i.failed())
		}
		i.log.Wait(t, "listening")
		if n := strings.Count(i.log.String(), `"accepted without effect","variables":"`+v.name+`"`); n != c.times {
			t.Errorf("with %s=%s the log says %d times that it has no effect, want %d:\n%s", v.name, c.value, n, c.times, i.log)
		}
		if n := strings.Count(i.log.String(), "without effect"); n != c.times {
			t.Errorf("with %s=%s the log says %d times that something has no effect, want %d:\n%s", v.name, c.value, n, c.times, i.log)
		}
	}
}

// rejects tries invalid values. The error names the variable and the allowed values.
func (v *variable) rejects(t *testing.T, f *kong.Flag) {
	bad := maps.Clone(v.bad)
	if bad == nil {
		bad = make(map[string]string)
	}
	if f != nil {
		maps.Copy(bad, badValues(f))
		if kind := f.Target.Kind(); (kind == reflect.Int || kind == reflect.Int64 || kind == reflect.Float32 || kind == reflect.Float64) && !f.Tag.Has("range") && !f.Tag.Has("clamp") {
			t.Errorf("%s has neither range nor clamp", v.name)
		}
	}
	if moved := f != nil && f.Tag.Has("otherwise"); (len(bad) == 0) != (v.anything || moved) {
		t.Errorf("bad values %v; may it be anything: %t", bad, v.anything)
	}
	for value, allowed := range bad {
		env := maps.Clone(v.with)
		if env == nil {
			env = make(map[string]string)
		}
		maps.Copy(env, map[string]string{"GRPC_PORT": "0", "PORT": "0", "DEBUG_PORT": "0", "GRPC_HOST": "127.0.0.1", "HOST": "127.0.0.1"})
		for name, value := range env {
			if value == absent {
				delete(env, name)
			}
		}
		env[concrete(v.name)] = value
		args := []string{"serve"}
		if v.rules == nil || len(v.rules) > 0 {
			args = append(args, "--rules", rulesOf(t, fiveADay))
		}
		var out, errs bytes.Buffer
		code := 0
		inEnvironment(env, func() {
			// The context must still be valid: the mistake has to be found before the service starts to serve.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			code = run(ctx, args, &out, &errs)
		})
		said := mistake(errs.String())
		if code == 0 || !strings.Contains(said, concrete(v.name)) || !strings.Contains(said, allowed) {
			t.Errorf("%s=%q: exit code %d, %q; want an error that names the variable and says %q", v.name, value, code, said, allowed)
		}
	}
}

// mistake returns the last error message of a command.
func mistake(text string) string {
	return text[max(strings.LastIndex(text, "ratelimitd: "), 0):]
}

// concrete replaces <name> in a variable's name.
func concrete(name string) string { return strings.ReplaceAll(name, "<name>", "FOO") }

// badValues returns invalid values for a flag of this type, each with its error message.
func badValues(f *kong.Flag) map[string]string {
	typ := f.Target.Type()
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	from, to, _ := strings.Cut(f.Tag.Get("range"), "..")
	switch {
	case typ.Kind() == reflect.Bool:
		return map[string]string{"perhaps": "true or false"}
	case typ == reflect.TypeFor[time.Duration]():
		bad := map[string]string{"10": "a time with its unit, such as 150ms, 10s or 1h", "soon": "a time"}
		if from != "" {
			bad["-1s"] = "at least " + from
		}
		return bad
	case typ.Kind() == reflect.Float32, typ.Kind() == reflect.Float64:
		return map[string]string{"most": "a number"}
	case typ.Kind() == reflect.Int, typ.Kind() == reflect.Int64, typ.Kind() == reflect.Uint32:
		bad := map[string]string{"many": "a whole number", "1.5": "a whole number"}
		if from != "" {
			bad["-1"] = from
		}
		if to != "" {
			bad[to+"0"] = to
		}
		return bad
	case f.Tag.Has("otherwise"):
		return nil
	case f.Tag.Has("oneof"):
		names := strings.Split(f.Tag.Get("oneof"), ",")
		return map[string]string{"wrong": "`" + names[len(names)-1] + "`"}
	case f.Tag.Get("form") == "header":
		return map[string]string{"a b": "a header's name", "a:": "a header's name", "ä": "a header's name"}
	case f.Tag.Get("form") == "path":
		return map[string]string{"metrics": "begins with /", "/{": "begins with /"}
	}
	return nil
}

// flagsByVariable returns flags by variable: the flag of serve, or the flag of another subcommand if serve has no flag
// for the variable.
func flagsByVariable(model *kong.Application) map[string]*kong.Flag {
	flags := make(map[string]*kong.Flag)
	for _, command := range model.Leaves(false) {
		for _, f := range command.Flags {
			for _, name := range f.Envs {
				if flags[name] == nil || command.Name == "serve" {
					flags[name] = f
				}
			}
		}
	}
	return flags
}

// referenceEnvironment returns the variables of envoyproxy/ratelimit, with their types and defaults.
func referenceEnvironment(t *testing.T) map[string]*struct{ kind, value string } {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "reference-environment.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*struct{ kind, value string })
	for _, l := range lines[1:] {
		all[l[0]] = &struct{ kind, value string }{l[1], l[2]}
	}
	if len(all) < 120 {
		t.Fatalf("only %d variables", len(all))
	}
	return all
}

// sameDefault reports whether a flag has envoyproxy/ratelimit's default, in any notation.
func sameDefault(f *kong.Flag, theirs string) bool {
	ours := f.Default
	switch f.Target.Kind() {
	case reflect.Bool, reflect.Pointer:
		return ours == theirs || ours == "" && theirs == "false"
	case reflect.Int64, reflect.Int:
		if strings.HasPrefix(ours, "0") && (theirs == "0" || theirs == "") {
			return true
		}
	}
	return ours == theirs
}

// testNames returns the names of all existing tests.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names[f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

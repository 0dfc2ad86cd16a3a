// Package internal_test checks the structure of the module: the imports that each package may have, that every package
// has a doc comment, and that no name uses a word from the list of unused words.
package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

const module = "github.com/ratelimitd/ratelimitd/"

// imports is the import table: which packages of this module each package may import. A name that ends with /... means
// the package and all packages below it; the longest name that covers a package counts. The table onlyIn has the
// imports of other modules.
var imports = map[string][]string{
	// The wings of internal, from the bottom to the top. A package may import its own wing, and those packages of the
	// wings below it that the row names.
	"internal/descriptor":    {},
	"internal/platform/...":  {"internal/platform/..."},
	"internal/config/...":    {"internal/descriptor", "internal/config/...", "internal/platform/..."},
	"internal/backend/...":   {"internal/descriptor", "internal/backend/...", "internal/platform/..."},
	"internal/limiter/...":   {"internal/descriptor", "internal/backend", "internal/config/override", "internal/limiter/...", "internal/platform/..."},
	"internal/lending/...":   {"internal/descriptor", "internal/backend", "internal/backend/overlimit", "internal/config/override", "internal/limiter", "internal/lending/...", "internal/platform/..."},
	"internal/server/...":    {"internal/descriptor", "internal/limiter", "internal/limiter/grpcstatus", "internal/lending/quota/...", "internal/server/...", "internal/platform/..."},
	"internal/operator/...":  {"internal/descriptor", "internal/config/entries", "internal/config/override", "internal/limiter/...", "internal/lending/...", "internal/operator/...", "internal/platform/...", "proto/..."},
	"internal/assembly/...":  {"internal/descriptor", "internal/config/...", "internal/backend/...", "internal/limiter/...", "internal/lending/...", "internal/server/...", "internal/operator", "internal/assembly", "internal/platform/..."},
	"internal/authoring/...": {"internal/descriptor", "internal/config/...", "internal/backend", "internal/backend/memory", "internal/limiter", "internal/authoring/...", "internal/platform/..."},
	"internal/testkit/...":   {"internal/testkit/..."},

	// Packages that may import less than their wing.
	// package ratelimit links it, and no metrics client
	"internal/platform/metric": {},
	// YAML, independent of the files that it describes
	"internal/config/yamlform/...": {"internal/config/yamlform"},
	// the contract is independent of stores
	"internal/backend": {"internal/descriptor", "internal/backend/scripts", "internal/platform/async"},
	// observers do not see decisions
	"internal/limiter/events": {"internal/descriptor", "internal/platform/..."},
	// an HTTP client, which a limiter does not need
	"internal/limiter/events/destination": {"internal/limiter/events", "internal/platform/..."},
	// the same
	"internal/limiter/hotkeys": {"internal/platform/metric"},
	// the same
	"internal/limiter/usage": {"internal/descriptor", "internal/platform/metric"},
	// the errors of a decision
	"internal/limiter/grpcstatus": {"internal/limiter"},
	// a store in front of a store
	"internal/lending/lease": {"internal/descriptor", "internal/backend", "internal/platform/..."},
	// the same
	"internal/lending/regions": {"internal/descriptor", "internal/backend", "internal/backend/overlimit", "internal/lending/lease", "internal/platform/..."},
	// pure arithmetic
	"internal/lending/quota": {"internal/descriptor"},
	// the same
	"internal/lending/quota/envoymodel": {"internal/lending/quota"},
	// it stores the results of the arithmetic
	"internal/lending/quota/redisshares": {"internal/lending/quota"},
	// package redisstore links it, and no server
	"internal/assembly": {"internal/descriptor", "internal/config/override/...", "internal/assembly/parts", "internal/backend/...", "internal/limiter", "internal/lending/lease", "internal/platform/metric"},
	// package ratelimit links it, and no Redis
	"internal/assembly/parts":     {"internal/descriptor", "internal/config/...", "internal/backend", "internal/limiter"},
	"internal/platform/intake":    {},                           // bounds, independent of the requests
	"internal/server/transport":   {"internal/platform/intake"}, // HTTP/2
	"internal/server/reservation": {},                           // signatures

	// Packages that may import more than their wing, and why.
	// it cuts the entries of requests
	"internal/platform/logging": {"internal/descriptor"},
	// it reads a mapping file of statsd_exporter
	"internal/operator/promcompat": {"internal/platform/statsd", "internal/config/yamlform"},
	// the suite of all stores
	"internal/testkit/backendtest": {"internal/descriptor", "internal/backend/...", "internal/testkit/rapidtest"},
	// it carries the messages between the stores of two regions
	"internal/server/regionrpc": {"internal/server/transport", "internal/descriptor", "internal/backend", "internal/lending/regions", "internal/platform/...", "proto/ratelimitd/region/v1"},
	// it shows the fleet and the regions
	"internal/operator": {"internal/descriptor", "internal/config/entries", "internal/config/override", "internal/limiter/...", "internal/lending/...", "internal/operator/...", "internal/platform/...", "internal/backend/fleet", "proto/..."},
	// overrides as messages
	"internal/operator/overridepb": {"internal/descriptor", "internal/config/override", "proto/..."},
	// a server's explanation looks like a local one
	"internal/operator/serviceclient": {"internal/descriptor", "internal/limiter", "internal/operator/overridepb", "internal/platform/...", "internal/authoring/explain", "proto/..."},

	// The public packages, and the packages that are not part of the program.
	"limits":            {},
	"limits/limitsprom": {"limits"},
	"client":            {"limits", "proto/ratelimitd/v1"},
	// no Redis
	"ratelimit":            {"limits", "internal/descriptor", "internal/config", "internal/config/override", "internal/config/yamlform", "internal/assembly/parts", "internal/backend", "internal/backend/memory", "internal/limiter"},
	"ratelimit/redisstore": {"ratelimit", "internal/config/override/redissource", "internal/assembly", "internal/assembly/parts", "internal/backend/...", "internal/limiter"},
	"ratelimit/rulefiles":  {"ratelimit", "internal/config/...", "internal/assembly/parts"},
	"middleware/...":       {"limits", "middleware/internal/..."},
	// internal/platform/problem needs only the standard library
	"middleware/httplimit": {"limits", "middleware/internal/...", "internal/platform/problem"},
	// both deciders
	"middleware/internal/gate/gatetest": {"limits", "client", "ratelimit", "ratelimit/rulefiles", "internal/config", "internal/backend/memory", "internal/limiter", "internal/server", "internal/testkit/servicetest"},
	"proto/...":                         {"proto/..."},
	"proto/ratelimitd/admin/v1":         {},
	// it writes requests to the admin port
	"cmd/ratelimitd":             {"internal/...", "proto/ratelimitd/admin/v1"},
	"examples/...":               {"client", "limits", "middleware/...", "ratelimit/..."},
	"docs/figures":               {"internal/descriptor", "internal/backend"},
	"workshop/bench/emptyserver": {"internal/server/...", "internal/platform/intake"},
	"workshop/attack":            {"internal/testkit/http2test"},
	"workshop/bench":             {"internal/testkit/envoytest", "internal/testkit/http2test"},
	"workshop/models":            {},
	// the fleet
	"workshop/simulate":    {"internal/descriptor", "internal/config/...", "internal/backend/...", "internal/limiter", "internal/lending/...", "internal/testkit/..."},
	"workshop/matrix":      {"internal/...", "limits", "ratelimit"}, // every way to count
	"workshop/scripts/...": {},
}

// onlyIn lists imports that only some packages may have: an import that starts with the path is allowed only in these
// packages.
var onlyIn = map[string][]string{
	"google.golang.org/grpc":                            {"internal/server/regionrpc", "internal/limiter/grpcstatus", "client", "middleware/grpclimit", "internal/server", "internal/server/transport", "internal/operator", "internal/platform/endpoint", "internal/config/xds", "cmd/ratelimitd", "proto/...", "workshop/attack", "workshop/bench/...", "internal/operator/serviceclient", "examples/...", "internal/testkit/otlptest", "internal/testkit/servicetest"},
	"google.golang.org/protobuf":                        {"internal/server/transport", "internal/server/regionrpc", "client", "internal/authoring/conform", "middleware/grpclimit", "internal/server", "internal/operator", "internal/operator/overridepb", "internal/config/xds", "cmd/ratelimitd", "proto/...", "workshop/attack", "workshop/bench/...", "internal/operator/serviceclient", "internal/testkit/otlptest"},
	"github.com/envoyproxy/go-control-plane":            {"internal/authoring/conform", "internal/server", "internal/config/xds", "cmd/ratelimitd", "workshop/attack", "workshop/bench/...", "internal/operator/serviceclient", "examples/...", "internal/testkit/servicetest"},
	"net/http":                                          {"internal/assembly/service", "internal/platform/problem", "middleware/httplimit", "workshop/attack", "workshop/bench/...", "internal/limiter/events/destination", "internal/server", "internal/server/transport", "internal/operator/console", "internal/operator", "internal/platform/endpoint", "cmd/ratelimitd", "examples/...", "internal/testkit/otlptest", "internal/testkit/servicetest", "proto/..."},
	"connectrpc.com":                                    {"internal/operator", "proto/..."},
	"gopkg.in/yaml.v3":                                  {"internal/config/yamlform"},
	"github.com/DataDog":                                {"internal/platform/statsd"},
	"github.com/prometheus":                             {"internal/assembly/service", "limits/limitsprom", "internal/platform/metric/prom", "internal/lending/quota/assigner", "internal/platform/endpoint", "internal/platform/intake", "internal/operator/promcompat", "internal/server", "internal/platform/statsd", "internal/platform/tracing", "cmd/ratelimitd"},
	"github.com/prometheus/statsd_exporter":             {"internal/operator/promcompat"},
	"github.com/fsnotify/fsnotify":                      {"internal/config/follow", "internal/platform/tlsfiles"},
	"go.opentelemetry.io":                               {"internal/server", "internal/platform/tracing", "internal/testkit/otlptest"},
	"github.com/redis/go-redis":                         {"internal/assembly", "internal/backend/redisconn", "internal/backend/redis", "internal/config/override/redissource", "internal/lending/quota/redisshares", "internal/backend/fleet", "internal/server/reservation", "internal/testkit/redistest", "internal/backend/redisconn/redisconntest", "internal/testkit/servicetest", "cmd/ratelimitd", "ratelimit/redisstore", "examples/http-queue"},
	"github.com/alecthomas/kong":                        {"cmd/ratelimitd"},
	module + "internal/testkit/rapidtest":               {"internal/testkit/backendtest"},      // tests only
	module + "internal/lending/quota/envoymodel":        {},                                    // tests only
	module + "internal/testkit/redistest":               {"internal/testkit/servicetest"},      // tests only
	module + "internal/testkit/tlstest":                 {"internal/testkit/redistest"},        // tests only
	module + "internal/testkit/otlptest":                {},                                    // tests only
	module + "internal/testkit/envoytest":               {"workshop/bench"},                    // tests and loads only
	module + "internal/testkit/http2test":               {"workshop/attack", "workshop/bench"}, // tests and loads only
	module + "internal/testkit/golden":                  {},                                    // tests only
	module + "internal/testkit/simkit":                  {},                                    // tests only
	module + "internal/testkit/servicetest":             {"middleware/internal/gate/gatetest"}, // tests only
	module + "middleware/internal/gate/gatetest":        {},                                    // tests only
	module + "internal/backend/redisconn/redisconntest": {},                                    // tests only
	module + "internal/testkit/backendtest":             {},                                    // tests only
	module + "internal/config/yamlform/yamlformtest":    {},                                    // tests only
}

// modulesOf lists packages that import only these modules and the standard library.
var modulesOf = map[string][]string{
	"internal/descriptor":      {"github.com/gaissmai/bart"},
	"internal/platform/metric": {},
	"limits":                   {},
	"middleware/httplimit":     {module + "limits", module + "middleware/internal/address", module + "middleware/internal/gate", module + "internal/platform/problem"},
}

// notUsed lists words that no name may contain: they carry no meaning, or mean something else in this project. Names
// are split into words at capitals, so Simple does not contain Impl.
var notUsed = []string{"manager", "helper", "impl", "util", "utils", "throttle", "policy"}

// pkg is a directory of Go files.
type pkg struct {
	dir   string // below the module, with slashes
	files map[string]*ast.File
	fset  *token.FileSet
}

// packages parses every Go file of the module, including tests. It skips testdata and nested modules.
func packages(t *testing.T) []pkg {
	t.Helper()
	const top = ".."
	byDir := make(map[string]map[string]*ast.File)
	fset := token.NewFileSet()
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			hidden := name != top && strings.HasPrefix(d.Name(), ".")
			module, _ := filepath.Glob(filepath.Join(name, "go.mod"))
			if hidden || d.Name() == "testdata" || name != top && len(module) > 0 {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, name)
		if err != nil {
			return err
		}
		dir, file := path.Split(filepath.ToSlash(rel))
		dir = path.Clean(dir)
		if byDir[dir] == nil {
			byDir[dir] = make(map[string]*ast.File)
		}
		byDir[dir][file] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	for _, dir := range slices.Sorted(maps.Keys(byDir)) {
		all = append(all, pkg{dir, byDir[dir], fset})
	}
	if len(all) < 5 {
		t.Fatalf("found only %d packages", len(all))
	}
	return all
}

func isTest(file string) bool { return strings.HasSuffix(file, "_test.go") }

func isGenerated(file string) bool {
	return strings.HasSuffix(file, ".pb.go") || strings.HasSuffix(file, ".connect.go")
}

// covers reports whether a pattern of the import table matches a package.
func covers(pattern, dir string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dir == tree || strings.HasPrefix(dir, tree+"/")
	}
	return dir == pattern
}

func anyCovers(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, dir) })
}

// allowed returns the row of the import table for a package: the longest pattern that matches.
func allowed(dir string) (patterns []string, listed bool) {
	if patterns, listed = imports[dir]; listed {
		return patterns, true
	}
	best := ""
	for p := range imports {
		if strings.HasSuffix(p, "/...") && covers(p, dir) && len(p) > len(best) {
			best = p
		}
	}
	return imports[best], best != ""
}

func hasCode(p pkg) bool {
	for file := range p.files {
		if !isTest(file) {
			return true
		}
	}
	return false
}

func TestImportTable(t *testing.T) {
	for _, p := range packages(t) {
		if !hasCode(p) {
			continue
		}
		patterns, listed := allowed(p.dir)
		if !listed {
			t.Errorf("%s is not in the import table: add a row with what it may import", p.dir)
			continue
		}
		for file, f := range p.files {
			if isTest(file) {
				continue // tests may connect packages that must not import each other
			}
			for _, imp := range f.Imports {
				target, err := strconv.Unquote(imp.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if dir, ours := strings.CutPrefix(target, module); ours && !anyCovers(patterns, dir) {
					t.Errorf("%s/%s imports %s; it may import %q", p.dir, file, dir, patterns)
				}
				if modules, listed := modulesOf[p.dir]; listed && !inStdlib(target) && !slices.Contains(modules, target) {
					t.Errorf("%s/%s imports %s; besides the standard library it may import only %q", p.dir, file, target, modules)
				}
				for prefix, dirs := range onlyIn {
					if (target == prefix || strings.HasPrefix(target, prefix+"/")) && !anyCovers(dirs, p.dir) {
						t.Errorf("%s/%s imports %s, which only %q may", p.dir, file, target, dirs)
					}
				}
			}
		}
	}
}

// Tests that draw values draw the same ones in every run of .ci/run.
func TestDrawnValuesAreTheSameInCI(t *testing.T) {
	for _, p := range packages(t) {
		draws, seeded := false, false
		for _, f := range p.files {
			for _, imp := range f.Imports {
				draws = draws || imp.Path.Value == `"pgregory.net/rapid"`
				seeded = seeded || imp.Path.Value == strconv.Quote(module+"internal/testkit/rapidtest")
			}
		}
		if draws && !seeded && p.dir != "internal/testkit/rapidtest" {
			t.Errorf("%s imports rapid; import internal/testkit/rapidtest too", p.dir)
		}
	}
}

// inStdlib reports whether an import is from the standard library: the first element of every other module has a dot.
func inStdlib(target string) bool {
	first, _, _ := strings.Cut(target, "/")
	return !strings.Contains(first, ".")
}

// Every row of the import table names a package that exists.
func TestImportTableNamesPackages(t *testing.T) {
	var dirs []string
	for _, p := range packages(t) {
		dirs = append(dirs, p.dir)
	}
	for pattern := range imports {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return covers(pattern, dir) }) {
			t.Errorf("%s is in the import table, but there is no such package", pattern)
		}
	}
}

// Every package under internal has its package comment in doc.go; commands have it above package main.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if !hasCode(p) || strings.HasPrefix(p.dir, "proto/") {
			continue
		}
		var documented []string
		for file, f := range p.files {
			if !isTest(file) && f.Doc != nil {
				documented = append(documented, file)
			}
		}
		switch {
		case len(documented) == 0:
			t.Errorf("%s has no package comment", p.dir)
		case len(documented) > 1:
			t.Errorf("%s has package comments in %q", p.dir, documented)
		case strings.HasPrefix(p.dir, "internal/") && len(p.files) > 1 && documented[0] != "doc.go":
			t.Errorf("%s has its package comment in %s instead of doc.go", p.dir, documented[0])
		}
	}
}

// words splits the name of a Go identifier or of a file into words, in lower case.
func words(name string) []string {
	var all []string
	var word []rune
	runes := []rune(name)
	end := func() {
		if len(word) > 0 {
			all = append(all, strings.ToLower(string(word)))
		}
		word = nil
	}
	for i, r := range runes {
		startsWord := unicode.IsUpper(r) && i > 0 &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if startsWord || !unicode.IsLetter(r) {
			end()
		}
		if unicode.IsLetter(r) {
			word = append(word, r)
		}
	}
	end()
	return all
}

func TestWords(t *testing.T) {
	for name, want := range map[string]string{
		"HTTPPolicyHeader":   "http policy header",
		"SimpleImpl":         "simple impl",
		"rate_limit_util.go": "rate limit util go",
		"KeyBuilder2":        "key builder",
	} {
		if got := strings.Join(words(name), " "); got != want {
			t.Errorf("%s has the words %q, want %q", name, got, want)
		}
	}
}

func TestWordsNotUsed(t *testing.T) {
	check := func(where, name string) {
		for _, w := range words(name) {
			if slices.Contains(notUsed, w) {
				t.Errorf("%s: the name %s contains the word %q, which this project does not use", where, name, w)
			}
		}
	}
	for _, p := range packages(t) {
		check(p.dir, p.dir)
		for file, f := range p.files {
			check(p.dir, file)
			if isGenerated(file) {
				continue
			}
			for name := range exported(f) {
				if name == "Helper" {
					continue // a method of testing.TB, which the stores' test suite uses
				}
				check(path.Join(p.dir, file), name)
			}
		}
	}
}

// exported returns the exported names that a file declares: types, functions, methods, fields, constants, variables.
func exported(f *ast.File) map[string]bool {
	names := make(map[string]bool)
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id.IsExported() {
				names[id.Name] = true
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d.Name)
		case *ast.GenDecl:
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					add(n.Name)
				case *ast.ValueSpec:
					add(n.Names...)
				case *ast.Field:
					add(n.Names...)
				}
				return true
			})
		}
	}
	return names
}

// namedInTable returns the names in the first column of the table in a section of docs/contributing/packages.md.
func namedInTable(t *testing.T, section string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "contributing", "packages.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## "+section+"\n")
	table, _, _ = strings.Cut(table, "\n## ")
	named := make(map[string]bool)
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		column, _, _ := strings.Cut(line[1:], "|")
		for i, part := range strings.Split(column, "`") {
			if i%2 == 1 {
				named[part] = true
			}
		}
	}
	if len(named) == 0 {
		t.Fatalf("docs/contributing/packages.md has no table in a section %q", section)
	}
	return named
}

// docs/contributing/packages.md gives the purpose of every package, and names no other directory.
func TestPackagesAreDocumented(t *testing.T) {
	named := namedInTable(t, "Packages")
	exist := map[string]bool{
		// separate modules
		"workshop/e2e": true, "deploy": true, "envoymodule": true, "workshop/bench/libraries": true, "examples/routers": true, "workshop/tools": true,
		"workshop/site": true, // no Go
	}
	for _, p := range packages(t) {
		if hasCode(p) {
			exist[p.dir] = true
		}
	}
	for dir := range exist {
		if !named[dir] {
			t.Errorf("docs/contributing/packages.md does not say what %s is for", dir)
		}
	}
	for dir := range named {
		if !exist[dir] {
			t.Errorf("docs/contributing/packages.md names %s, which is no package", dir)
		}
	}
}

// Every module that go.mod requires directly has a reason in docs/contributing/packages.md, and every module that is
// named there is required.
func TestDependenciesHaveReasons(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	required := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.HasPrefix(fields[1], "v") {
			required[fields[0]] = true
		}
	}
	if len(required) < 10 {
		t.Fatalf("found only %d requirements", len(required))
	}
	named := namedInTable(t, "Dependencies")
	for module := range required {
		if !named[module] {
			t.Errorf("go.mod requires %s, and docs/contributing/packages.md gives no reason", module)
		}
	}
	for module := range named {
		if !required[module] {
			t.Errorf("docs/contributing/packages.md gives a reason for %s, which go.mod does not require", module)
		}
	}
}
